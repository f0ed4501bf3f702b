"""Collectives in the columns of nccl-tests, which people and their scripts know: size, count, type, redop, time, algbw,
busbw, #wrong. Times are means over calls, as there; bandwidths in GB/s follow from them by its rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lossbench.errors import UsageError
from lossbench.report.content import Content
from lossbench.results import samples
from lossbench.results.index import Run
from lossbench.results.measures import number

TYPES = {"float32": ("float", 4), "bfloat16": ("bfloat16", 2), "float16": ("half", 2)}
REDUCING = ("all_reduce", "reduce_scatter")
HEAD = ("size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong")
UNITS = ("(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", "")
WIDTHS = (12, 12, 9, 7, 10, 8, 8, 8)


def text(contents: list[Content]) -> str:
    """A block for every contender of every run; what may not be believed is said above its numbers."""
    blocks = [_block(run, row) for one in contents for run in one.suite.runs for row in run.summary.rows if "op" in row]
    if not blocks:
        step = "these columns are of `collectives`: lossbench run collectives"
        raise UsageError("no collectives in these results", next_step=step)
    return "\n".join(blocks) + "\n"


def _block(run: Run, row: dict[str, Any]) -> str:
    about = f"# {run.name}, seed {run.summary.seed}: {row['op']} by {row['contender']} on {run.summary.hosts} ranks"
    doubt = run.standing.void("p50_ms", row)
    lines = [about + (f" (not to be believed: {doubt})" if doubt else "")]
    lines += ["#" + _line(HEAD)[1:], "#" + _line(UNITS)[1:]]
    if row.get("note"):
        lines.append(f"# {row['note']}")
    numbers = columns(run.folder, row, run.summary.hosts)
    return "\n".join([*lines, _line(numbers)] if numbers is not None else lines)


def columns(folder: Path, row: dict[str, Any], ranks: int) -> tuple[str, ...] | None:
    """None for what made no call."""
    mean_ms = _mean_ms(folder, row)
    if mean_ms is None:
        return None
    name, size = TYPES[str(row["dtype"])]
    total = round(float(row["mb"]) * 1e6)
    algbw = total / mean_ms / 1e6
    wrong = number(row.get("wrong"))
    redop = "sum" if row["op"] in REDUCING else "none"
    speeds = (f"{1000 * mean_ms:.1f}", f"{algbw:.3f}", f"{algbw * bus_factor(str(row['op']), ranks):.3f}")
    return (str(total), str(total // size), name, redop, *speeds, "N/A" if wrong is None else f"{wrong:.0f}")


def bus_factor(operation: str, ranks: int) -> float:
    """nccl-tests, PERFORMANCE.md: what a link carries for each byte of the whole."""
    others = (ranks - 1) / ranks
    return {"all_reduce": 2 * others, "broadcast": 1.0}.get(operation, others)


def _mean_ms(folder: Path, row: dict[str, Any]) -> float | None:
    found, _ = samples.read(folder)
    kind = found.get(f"{row['contender']}_ms")
    if kind is not None and len(kind.events()):
        return float(np.mean(kind.events()))
    return None


def _line(cells: tuple[str, ...]) -> str:
    return "".join(cell.rjust(width + 1) for cell, width in zip(cells, WIDTHS, strict=True))
