"""The proof of one run, rule by rule: asked, read back, kernel, receiver; the four figures side by side."""

from __future__ import annotations

from collections.abc import Sequence

from lossbench.report.gathered import Gathered
from lossbench.report.tables.table import Cell, Table
from lossbench.results.measures import percent
from lossbench.results.models import ProofRow
from lossbench.results.naming import counted
from lossbench.spec.placement import UNTAKEN

ROWS_SHOWN = 8


def probes(found: Gathered) -> Table | None:
    """Of a suite that is a single run; of many they are one line each, in `proven`."""
    if len(found.suite.runs) != 1 or not (rows := found.suite.runs[0].proof_rows()):
        return None
    run = found.suite.runs[0].summary
    return rule_by_rule(rows, title=f"{run.hosts} hosts, backend {run.backend}")


def rule_by_rule(rows: Sequence[ProofRow], *, title: str, most: int = ROWS_SHOWN) -> Table:
    ruled = {row.hook for row in rows if row.rule != UNTAKEN}
    lines = [
        [
            Cell(f"{row.hook}, else" if row.rule == UNTAKEN and row.hook in ruled else row.hook),
            Cell(percent(row.asked)),
            Cell(percent(row.read_back)),
            Cell("-" if row.kernel_seen is None else f"{row.kernel_dropped} of {row.kernel_seen}"),
            Cell(str(row.receiver_missing)),
            Cell(_burst(row)),
            _word(row),
        ]
        for row in rows[:most]
    ]
    head = ["where", "asked", "read back", "kernel dropped", "receiver", "burst", "proof"]
    more = [f"... and {counted(len(rows) - most, 'more row', 'more rows')} in proof.json"] if len(rows) > most else []
    return Table(title, head, lines, more)


def _burst(row: ProofRow) -> str:
    if row.burst_seen is None:
        return "-"
    return f"{row.burst_seen:.2f}" + (f" ({row.burst_asked:.2f})" if row.burst_asked is not None else "")


def _word(row: ProofRow) -> Cell:
    if row.exact is not None:
        return Cell("exact") if row.exact else Cell("differs", "bad")
    return Cell("-" if row.p_value is None else f"p={row.p_value:.2g}")
