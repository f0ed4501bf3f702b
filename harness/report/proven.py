"""What was asked and what was proven: the first table of every report, and why something is not valid."""

from __future__ import annotations

from collections import Counter

from harness.naming import said_once
from harness.report.index import Run, Suite
from harness.report.tables import Cell, Table

COLUMNS = ("fault", "timing", "outcome")
MARKS = {"valid": "good", "unknown": "unknown", "failed": "bad"}


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.3g} %"


def proven(suite: Suite) -> Table:
    """One line per point: asked, counted by the kernel, missed by receivers, bursts, and the verdicts of its runs."""
    points: dict[str, list[Run]] = {}
    for run in suite.runs:
        points.setdefault(run.name, []).append(run)
    rows, tidy = [], []
    for name, runs in points.items():
        asked = sorted({loss for run in runs for loss in run.summary.asked_loss})
        kernel = _mean([run.summary.kernel.loss for run in runs])
        receiver = _mean([run.summary.receiver.loss for run in runs])
        span = " to ".join(percent(a) for a in dict.fromkeys((asked[0], asked[-1]))) if asked else "-"
        figures = [Cell(span), Cell(percent(kernel)), Cell(percent(receiver)), _bursts(runs)]
        rows.append([Cell(name), *(_verdicts(runs, column) for column in COLUMNS), *figures])
        tidy += [
            {
                "suite": suite.name, "point": name, "measure": f"verdict {column}", "seed": run.summary.seed,
                "value": run.summary.columns.get(column, "unknown"), "folders": [str(run.folder)],
            }
            for run in runs for column in COLUMNS
        ]  # fmt: skip
    head = ["point", *COLUMNS, "asked", "kernel", "receiver", "bursts"]
    notes = ["kernel: counted as dropped; receiver: missed there; bursts: mean length of losses in a row."]
    if any("/" in cell.text for row in rows for cell in row[1:4]):
        notes.append("unknown 1/3: one of three runs.")
    backends = ", ".join(sorted({run.summary.backend for run in suite.runs}))
    return Table(f"{suite.name}: asked and proven (backend {backends})", head, rows, notes, tidy)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _bursts(runs: list[Run]) -> Cell:
    rows = [row for run in runs for row in run.proof_rows()]
    seen, wanted = (_mean([row.get(key) for row in rows]) for key in ("burst_seen", "burst_asked"))
    if seen is None:
        return Cell("-")
    return Cell(f"{seen:.2f}", detail=f"asked for: {wanted:.2f}" if wanted else "")


def _verdicts(runs: list[Run], column: str) -> Cell:
    words = Counter(run.summary.columns.get(column, "unknown") for run in runs)
    worst = max(words, key=list(MARKS).index)
    text = worst if len(words) == 1 else f"{worst} {words[worst]}/{len(runs)}"
    reasons = {reason for run in runs for reason in run.summary.reasons.get(column, [])}
    return Cell(text, MARKS[worst], "; ".join(sorted(reasons)[:6]))


def reasons(suite: Suite) -> list[str]:
    """Why something is not valid."""
    return said_once(
        (f"{run.name} #{run.summary.seed}", f"{column}: {text}")
        for run in suite.runs
        for column in COLUMNS
        if run.summary.columns.get(column) != "valid"
        for text in run.summary.reasons.get(column, [])
    )
