"""How much longer messages take than alone, by their size: short ones suffer most from whoever stands before them."""

from __future__ import annotations

from typing import Any

from lossbench.report.gathered import Gathered
from lossbench.report.tables.table import Cell, Table
from lossbench.results.measures import short

BY_DECILE = "slowdown_by_decile"


def slowdowns(found: Gathered) -> Table | None:
    """One line for each run's row that knows sizes; columns are the largest size of each decile."""
    rows: list[tuple[str, list[Any]]] = []
    for run in found.suite.runs:
        for row in run.summary.rows:
            values = next((value for key, value in row.items() if key.rpartition(".")[2] == BY_DECILE), None)
            if isinstance(values, list) and values:
                rows.append((f"{run.name} #{run.summary.seed}", values))
    if not rows:
        return None
    sizes = sorted({int(size) for _, values in rows for size, _ in values})
    body = []
    for name, values in rows:
        known = {int(size): float(slow) for size, slow in values}
        body.append([Cell(name), *(Cell(short(known[size]) if size in known else "-") for size in sizes)])
    head = ["p99 of completion / alone", *(f"to {_bytes(size)}" for size in sizes)]
    notes = ["Columns: deciles of the sizes that were asked for, by their largest."]
    return Table(f"{found.suite.name}: slowdown by size", head, body, notes)


def _bytes(size: int) -> str:
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB" if size >= 1000 else f"{size} B"
