"""What was asked and what was proven: the first table of every report, and why something is not valid."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from lossbench.report.gathered import Gathered
from lossbench.report.tables.table import WORDS, Cell, Table
from lossbench.report.tables.words import out_of
from lossbench.results import measures
from lossbench.results.index import Run, Suite
from lossbench.results.measures import percent
from lossbench.results.naming import in_brackets, key_of, said_once, whose

COLUMNS = ("fault", "timing", "outcome")
PROBES_AND_MET = (
    "probes: lost of the proof's probes; met: lost of your program's own packets (second line: in full queues, or "
    "elsewhere)."
)


def proven(found: Gathered) -> Table:
    """One line per point: the verdicts of its runs, then asked, proven by probes, met by the workload, bursts."""
    suite, points = found.suite, dict[str, list[Run]]()
    for run in suite.runs:
        points.setdefault(key_of(run.summary.point), []).append(run)
    rows, tidy = [], []
    several = any(len(runs) > 1 for runs in points.values())
    for runs in points.values():
        name = runs[0].name
        figures, numbers = _figures(runs)
        proven_in = len([run for run in runs if is_proven(run)]) or len(runs)
        n = [Cell(out_of(proven_in, len(runs)))] if several else []
        rows.append([Cell(name), *n, *(_verdicts(runs, column) for column in COLUMNS), *figures])
        common = {"suite": suite.name, "point": name}
        tidy += [{**common, **line} for line in numbers]
        tidy += [
            {
                **common,
                "measure": f"verdict {column}",
                "seed": run.summary.seed,
                "value": run.summary.columns.get(column, "unknown"),
                "folders": [str(run.folder)],
            }
            for run in runs
            for column in COLUMNS
        ]
    head = ["point", *(["n"] if several else []), *COLUMNS, "asked", "probes", "met", "bursts"]
    notes = [PROBES_AND_MET, "bursts: mean length of the probes' losses in a row."]
    notes += _not_judged(suite)
    notes += (
        ["n: runs (1 of 3: the others' fault was not proven, and their losses are not averaged)."] if several else []
    )
    if any("/" in cell.text for row in rows for cell in row[1 : len(head) - 4]):
        notes.append("unknown 1/3: one of three runs.")
    if any("?" in cell.text for row in rows for cell in row):
        notes.append("?: the fault was not proven.")
    backends = ", ".join(sorted({run.summary.backend for run in suite.runs}))
    return Table(f"{suite.name}: asked and proven (backend {backends})", head, rows, notes, tidy)


def _not_judged(suite: Suite) -> list[str]:
    """And of which lines."""
    lines: dict[str, list[str]] = {}
    for run in suite.runs:
        for text in run.summary.not_judged:
            lines.setdefault(text, []).append(run.name)
    every = [run.name for run in suite.runs]
    return [f"Not judged: {text}{in_brackets(whose(some, every))}." for text, some in lines.items()]


def _figures(runs: list[Run]) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Over the runs whose fault was proven; where there are none, over the others, with a question mark."""
    good = [run for run in runs if is_proven(run)]
    some, mark = (good, "") if good else (runs, "?")
    asked = sorted({loss for run in runs for loss in run.summary.asked_loss})
    proofs = [row for run in some for row in run.proof_rows()]
    wanted = mean_of([row.burst_asked for row in proofs])
    met = [run.summary.met for run in some]
    numbers = {
        "kernel loss": mean_of([run.summary.kernel.loss for run in some]),
        "receiver loss": mean_of([run.summary.receiver.loss for run in some]),
        "met: lost by rules": mean_of([one.rule_loss for one in met]),
        "met: lost in queues": mean_of([one.queue_loss for one in met]),
        "met: lost elsewhere": mean_of([one.elsewhere_loss for one in met]),
        "burst": mean_of([row.burst_seen for row in proofs]),
    }
    texts = [
        percent(numbers["receiver loss"]),
        measures.met_in_words(*(numbers[f"met: lost {cause}"] for cause in ("by rules", "in queues", "elsewhere"))),
        "-" if numbers["burst"] is None else f"{numbers['burst']:.2f}",
    ]
    cells = [Cell(" to ".join(percent(a) for a in dict.fromkeys((asked[0], asked[-1]))) if asked else "-")]
    cells += [Cell(text if text == "-" else text + mark, "void" if mark else "") for text in texts]
    if wanted is not None:
        cells[-1] = replace(cells[-1], detail=f"asked for: {wanted:.2f}")
    folders = [str(run.folder) for run in some]
    return cells, [
        {"measure": name, "n": len(some), "mean": value, "void": len(some) if mark else 0, "folders": folders}
        for name, value in numbers.items()
    ]


def is_proven(run: Run) -> bool:
    return run.summary.columns.get("fault") == "valid"


def mean_of(values: list[Any]) -> float | None:
    known = [number for value in values if (number := measures.number(value)) is not None]
    return sum(known) / len(known) if known else None


def _verdicts(runs: list[Run], column: str) -> Cell:
    words = Counter(run.summary.columns.get(column, "unknown") for run in runs)
    worst = max(words, key=list(WORDS).index)
    text = worst if len(words) == 1 else f"{worst} {words[worst]}/{len(runs)}"
    reasons = {reason for run in runs for reason in run.summary.reasons.get(column, [])}
    return Cell(text, WORDS[worst], "; ".join(sorted(reasons)[:6]))


def reasons(suite: Suite, of: list[Run] | None = None) -> list[str]:
    """Why something is not valid; `of`: of these runs alone."""
    every = [run.name for run in suite.runs]
    found = (
        (run.name, run.summary.seed, f"{column}: {text}")
        for run in (suite.runs if of is None else of)
        for column in sorted(COLUMNS, key=lambda one: run.summary.columns.get(one) != "failed")
        if run.summary.columns.get(column) != "valid"
        for text in [*run.summary.reasons.get(column, []), run.summary.outcome_by_role() if column == "outcome" else ""]
        if text
    )
    return said_once(found, every)
