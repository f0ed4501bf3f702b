"""Percentiles of long sample sets, each only with enough samples behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lossbench.report import within
from lossbench.report.gathered import Gathered
from lossbench.report.inference import Estimate
from lossbench.report.samples import SampleSet
from lossbench.report.tables.table import Cell, Table
from lossbench.report.tables.words import out_of, why_void
from lossbench.results.measures import short
from lossbench.results.naming import key_of

RTT = "rtt_ms"  # of a program of the user's own (runs/launch/companion.py)
PERCENTILES = (0.5, 0.99, 0.999)


def tails(found: Gathered) -> Table | None:
    suite, sets = found.suite, found.sets
    planned = Counter(key_of(one.point) for one in suite.plan.plan)
    rows, tidy = [], []
    for one in sets:
        numbers = one.numbers
        if not len(numbers):
            continue
        mark, style = ("", "") if one.sound else ("?", "void")
        percentiles = [within.percentile(one.parts, q) for q in PERCENTILES]
        rows.append(
            [
                Cell(one.label),
                Cell(str(len(numbers))),
                Cell(out_of(len(one.folders), planned[key_of(one.swept)])),
                *(_cell(value, mark, style) for value in percentiles),
                Cell(short(float(numbers.max())) + mark, style),
            ]
        )
        tidy += [
            {
                "suite": suite.name,
                "point": one.point,
                "measure": f"{one.what} p{100 * q:g}",
                "n": len(numbers),
                **_tidy(value if one.sound else None),
                "void": 0 if one.sound else len(one.folders),
                "folders": one.folders,
            }
            for q, value in zip(PERCENTILES, percentiles, strict=True)
        ]
    if not rows:
        return None
    notes = [
        "A percentile q is printed only with at least 10/(1-q) samples: p99 needs 1000, p99.9 needs 10000.",
        *_samples_of(sets),
        "Below a percentile: its 95 % interval. Samples follow from each other, so it is by how far whole seeds lie "
        "apart (-: two seeds, or samples that do not tell); of one seed, blocks of its samples.",
    ]
    void: dict[str, list[str]] = {}
    for one in sets:
        for why in one.void:
            void.setdefault(why, []).append(one.label)
    notes += why_void(void, [row[0].text for row in rows])
    head = ["samples (ms)", "n", "seeds", *(f"p{100 * q:g}" for q in PERCENTILES), "max"]
    return Table(f"{suite.name}: tail", head, rows, notes, tidy)


def _samples_of(sets: Sequence[SampleSet]) -> list[str]:
    """What is one sample."""
    out = []
    if any(one.together for one in sets):
        out.append("A step or call is one sample: as long as its slowest rank took.")
    if any(one.what == RTT for one in sets):
        out.append(
            "Of rtt each look at a connection is one sample, of all ranks and seeds together; the table of results has "
            "each rank's median, and their mean."
        )
    if apart := ", ".join(dict.fromkeys(one.what for one in sets if not one.together and one.what != RTT)):
        out.append(f"Of {apart} each is a sample of its own, of all ranks and seeds together.")
    return out


def _cell(value: Estimate | None, mark: str, style: str) -> Cell:
    if value is None:
        return Cell("-", style)
    ends = _ends(value)
    return Cell(f"{short(value.mean)}{mark}\n{ends}", style, f"n = {value.n}")


def _ends(value: Estimate) -> str:
    if value.low is not None and value.high is not None:
        return f"{short(value.low)} to {short(value.high)}"
    if value.low is not None:
        return f"above {short(value.low)}"
    return f"below {short(value.high)}" if value.high is not None else "-"


def _tidy(value: Estimate | None) -> dict[str, object]:
    """A number that may not be believed is none."""
    if value is None:
        return {"mean": None}
    return {"mean": value.mean, "low": value.low, "high": value.high, "method": value.method}
