"""What was asked and what was proven: the first table of every report, and why something is not valid."""

from __future__ import annotations

from collections import Counter

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
        seen, wanted = _bursts(runs)
        rows.append([
            Cell(name), Cell(" to ".join(percent(a) for a in dict.fromkeys((asked[0], asked[-1]))) if asked else "-"),
            Cell(percent(kernel)), Cell(percent(receiver)), Cell(_burst_text(seen, wanted)),
            *(_verdicts(runs, column) for column in COLUMNS),
        ])  # fmt: skip
        tidy += [
            {
                "suite": suite.name, "point": name, "measure": f"verdict {column}", "seed": run.summary.seed,
                "value": run.summary.columns.get(column, "unknown"), "folders": [str(run.folder)],
            }
            for run in runs for column in COLUMNS
        ]  # fmt: skip
    head = ["point", "asked", "kernel", "receiver", "bursts", *COLUMNS]
    backends = ", ".join(sorted({run.summary.backend for run in suite.runs}))
    return Table(f"{suite.name}: asked and proven (backend {backends})", head, rows, tidy=tidy)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _bursts(runs: list[Run]) -> tuple[float | None, float | None]:
    rows = [row for run in runs for row in run.proof_rows()]
    return _mean([row.get("burst_seen") for row in rows]), _mean([row.get("burst_asked") for row in rows])


def _burst_text(seen: float | None, wanted: float | None) -> str:
    if seen is None:
        return "-"
    return f"{seen:.2f} ({wanted:.2f})" if wanted else f"{seen:.2f}"


def _verdicts(runs: list[Run], column: str) -> Cell:
    words = Counter(run.summary.columns.get(column, "unknown") for run in runs)
    worst = max(words, key=list(MARKS).index)
    text = worst if len(words) == 1 else f"{worst} {words[worst]}/{len(runs)}"
    reasons = {reason for run in runs for reason in run.summary.reasons.get(column, [])}
    return Cell(text, MARKS[worst], "; ".join(sorted(reasons)[:6]))


def reasons(suite: Suite) -> list[str]:
    """Why something is not valid, each reason once, with the points it is about."""
    about: dict[str, list[str]] = {}
    for run in suite.runs:
        for column in COLUMNS:
            if run.summary.columns.get(column) != "valid":
                for text in run.summary.reasons.get(column, []):
                    about.setdefault(f"{column}: {text}", []).append(f"{run.name} #{run.summary.seed}")
    return [f"{', '.join(who[:3])}{f' and {len(who) - 3} more' if len(who) > 3 else ''}, {text}"
            for text, who in about.items()]  # fmt: skip
