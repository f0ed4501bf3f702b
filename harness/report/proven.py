"""What was asked and what was proven: the first table of every report, and why something is not valid."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from harness import measures
from harness.measures import percent
from harness.naming import key_of, said_once
from harness.report.index import Run, Suite
from harness.report.tables import WORDS, Cell, Table

COLUMNS = ("fault", "timing", "outcome")


def proven(suite: Suite) -> Table:
    """One line per point: the verdicts of its runs, then asked, counted by the kernel, missed by receivers, bursts."""
    points: dict[str, list[Run]] = {}
    for run in suite.runs:
        points.setdefault(key_of(run.summary.point), []).append(run)
    rows, tidy = [], []
    for runs in points.values():
        name = runs[0].name
        figures, numbers = _figures(runs)
        rows.append([Cell(name), *(_verdicts(runs, column) for column in COLUMNS), *figures])
        common = {"suite": suite.name, "point": name}
        tidy += [{**common, **line} for line in numbers]
        tidy += [
            {
                **common, "measure": f"verdict {column}", "seed": run.summary.seed,
                "value": run.summary.columns.get(column, "unknown"), "folders": [str(run.folder)],
            }
            for run in runs for column in COLUMNS
        ]  # fmt: skip
    head = ["point", *COLUMNS, "asked", "kernel", "receiver", "bursts"]
    notes = ["kernel: counted as dropped; receiver: missed there; bursts: mean length of losses in a row."]
    if any("/" in cell.text for row in rows for cell in row[1:4]):
        notes.append("unknown 1/3: one of three runs.")
    if any("?" in cell.text for row in rows for cell in row):
        notes.append("?: the fault was not proven.")
    backends = ", ".join(sorted({run.summary.backend for run in suite.runs}))
    return Table(f"{suite.name}: asked and proven (backend {backends})", head, rows, notes, tidy)


def _figures(runs: list[Run]) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Over the runs whose fault was proven; where there are none, over the others, with a question mark."""
    good = [run for run in runs if run.summary.columns.get("fault") == "valid"]
    some, mark = (good, "") if good else (runs, "?")
    asked = sorted({loss for run in runs for loss in run.summary.asked_loss})
    proofs = [row for run in some for row in run.proof_rows()]
    wanted = mean_of([row.get("burst_asked") for row in proofs])
    numbers = {
        "kernel loss": mean_of([run.summary.kernel.loss for run in some]),
        "receiver loss": mean_of([run.summary.receiver.loss for run in some]),
        "burst": mean_of([row.get("burst_seen") for row in proofs]),
    }
    texts = [percent(numbers["kernel loss"]), percent(numbers["receiver loss"]),
             "-" if numbers["burst"] is None else f"{numbers['burst']:.2f}"]  # fmt: skip
    cells = [Cell(" to ".join(percent(a) for a in dict.fromkeys((asked[0], asked[-1]))) if asked else "-")]
    cells += [Cell(text if text == "-" else text + mark, "void" if mark else "") for text in texts]
    if wanted is not None:
        cells[-1] = replace(cells[-1], detail=f"asked for: {wanted:.2f}")
    folders = [str(run.folder) for run in some]
    return cells, [
        {"measure": name, "n": len(some), "mean": value, "void": len(some) if mark else 0, "folders": folders}
        for name, value in numbers.items()
    ]


def mean_of(values: list[Any]) -> float | None:
    known = [number for value in values if (number := measures.number(value)) is not None]
    return sum(known) / len(known) if known else None


def _verdicts(runs: list[Run], column: str) -> Cell:
    words = Counter(run.summary.columns.get(column, "unknown") for run in runs)
    worst = max(words, key=list(WORDS).index)
    text = worst if len(words) == 1 else f"{worst} {words[worst]}/{len(runs)}"
    reasons = {reason for run in runs for reason in run.summary.reasons.get(column, [])}
    return Cell(text, WORDS[worst], "; ".join(sorted(reasons)[:6]))


def reasons(suite: Suite) -> list[str]:
    """Why something is not valid."""
    return said_once(
        (f"{run.name} #{run.summary.seed}", f"{column}: {text}")
        for run in suite.runs
        for column in COLUMNS
        if run.summary.columns.get(column) != "valid"
        for text in run.summary.reasons.get(column, [])
    )
