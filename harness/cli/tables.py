"""What people see at a terminal when a suite has ended: tables that fit 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness import measures
from harness.cli import reporting
from harness.naming import beside_the_verdict, point_name, said_once
from harness.suite import SuiteResult

COLOURS = {"valid": "green", "unknown": "yellow", "failed": "red"}
PROOF_ROWS = 8
NAME_WIDTH = 26  # leaves room for six numbers in 80 columns


def coloured(word: str) -> str:
    return f"[{COLOURS.get(word, 'white')}]{word}[/]"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.3g} %"


def show_suite(console: Console, result: SuiteResult) -> None:
    rows = list(result.summaries)
    if len({row["seed"] for row in rows}) > 1 and reporting.libraries_missing() == []:
        _show_over_seeds(console, result)
    else:
        _show_each(console, result, rows)
    for text in dict.fromkeys(text for row in rows for text in row["warnings"]):
        console.print(f"warning: {text}", markup=False)
    beside = beside_the_verdict([row["columns"] for row in rows if row["verdict"] == "valid"])
    console.print(f"verdict: {coloured(result.status.word)}{beside}   results: {result.folder}", soft_wrap=True)


def _show_over_seeds(console: Console, result: SuiteResult) -> None:
    """Means over seeds need statistics: the tables of a report."""
    from harness.report.content import gather
    from harness.report.index import read_suite
    from harness.report.tables import terminal

    content = gather(read_suite(result.folder))
    for table in content.tables:
        terminal(console, table)
    for text in content.reasons:
        console.print(text, markup=False)


def _show_each(console: Console, result: SuiteResult, rows: list[dict[str, Any]]) -> None:
    if len(rows) == 1:
        show_proof(console, result.folder / "000", rows[0])
    names = [_name(row, seeds=len({r["seed"] for r in rows})) for row in rows]
    table = Table(box=box.SIMPLE, pad_edge=False, padding=0)
    for column in ("point", "asked", "kernel", "receiver", "fault", "timing", "outcome", "verdict"):
        justify: Any = "right" if column in ("asked", "kernel", "receiver") else "left"
        width = min(max(map(len, names)), NAME_WIDTH) if column == "point" else None
        table.add_column(column, justify=justify, overflow="fold", min_width=width)
    for name, row in zip(names, rows, strict=True):
        table.add_row(
            name,
            _asked(row["asked_loss"]),
            percent(row["kernel"]["loss"]),
            percent(row["receiver"]["loss"]),
            *(coloured(row["columns"][column]) for column in ("fault", "timing", "outcome")),
            coloured(row["verdict"]),
        )
    console.print(table)
    show_results(console, rows, names)
    reasons = [
        (name, f"{column}: {reason}")
        for name, row in zip(names, rows, strict=True)
        for column, status in row["columns"].items()
        if status != "valid"
        for reason in row["reasons"][column]
    ]
    for text in said_once(reasons):
        console.print(text, markup=False)


def show_results(console: Console, rows: list[dict[str, Any]], names: list[str]) -> None:
    """One table for all runs where each has one line, else one for each."""
    lines = [[Line(line, row) for line in row["rows"]] for row in rows]
    if len(rows) > 1 and all(len(some) <= 1 for some in lines):
        named = [some[0].named(name) for name, some in zip(names, lines, strict=True) if some]
        show_lines(console, named, title="results")
        return
    for name, some in zip(names, lines, strict=True):
        show_lines(console, some, title=name)


class Line:
    """One line a workload made, and the verdict of its run, which says what of it may be believed."""

    def __init__(self, row: dict[str, Any], summary: dict[str, Any]) -> None:
        self.row, self.summary = row, summary
        self.shown: list[str] = row.get("shown") or list(row)

    def named(self, name: str) -> Line:
        """The run's name instead of the workload's."""
        return Line({**self.row, "point": name, "shown": ["point", *self.shown[1:]]}, self.summary)

    def void(self, column: str) -> str:
        if measures.number(self.row.get(column)) is None or column in measures.NOT_MEASURED:
            return ""
        simulated = self.summary["backend"] == "simulated"
        return measures.void_because(column, self.row, columns=self.summary["columns"], simulated=simulated)

    def cell(self, column: str) -> str:
        value, void = self.row.get(column), self.void(column)
        if value is None or void.startswith("fewer"):
            return "-"
        text = measures.short(value) if isinstance(value, float) else str(value)
        return f"{text}?" if void else text


def show_lines(console: Console, lines: list[Line], *, title: str) -> None:
    """What can't be believed is greyed, has a question mark, and the reason below."""
    if not lines:
        return
    shown = lines[0].shown
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
    for column in shown:
        width = max(len(line.cell(column)) for line in lines)
        if column == shown[0]:  # names may take two lines, numbers are never cut
            table.add_column(column.replace("_", " "), overflow="fold", min_width=min(width, NAME_WIDTH))
        else:
            table.add_column(column.replace("_", "\n"), justify="right", min_width=width)
    for line in lines:
        cells = [Text(line.cell(column), style="dim" if line.void(column) else "") for column in shown]
        table.add_row(*cells)
    console.print(table)
    for reason in dict.fromkeys(reason for line in lines for column in shown if (reason := line.void(column))):
        mark = "-: a percentile is not printed with" if reason.startswith("fewer") else "?: not to be believed:"
        console.print(f"{mark} {reason}", markup=False)
    for note, about in _notes([line.row for line in lines], shown[0]).items():
        console.print(f"{about}: {note}", markup=False)


def _notes(rows: list[dict[str, Any]], name: str) -> dict[str, str]:
    """Each note once, with whom it is about."""
    out: dict[str, list[str]] = {}
    for row in rows:
        if row.get("note"):
            out.setdefault(row["note"], []).append(str(row[name]))
    return {note: about[0] if len(about) == 1 else f"{len(about)} lines" for note, about in out.items()}


def _asked(losses: list[float]) -> str:
    if not losses:
        return "-"
    return percent(losses[0]) if len(losses) == 1 else f"{percent(losses[0])[:-2]}-{percent(losses[-1])}"


def _name(row: dict[str, Any], *, seeds: int) -> str:
    name = point_name(row["point"])
    return f"{name} #{row['seed']}" if seeds > 1 else name


def show_proof(console: Console, folder: Path, row: dict[str, Any]) -> None:
    """Asked, read back, kernel, receiver: the four figures side by side."""
    path = folder / "proof.json"
    if path.exists():
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        show_rows(console, rows, title=f"{row['hosts']} hosts, backend {row['backend']}")


def show_rows(console: Console, rows: list[dict[str, Any]], *, title: str) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False, title=title, title_justify="left")
    for name in ("where", "asked", "read back", "kernel dropped", "receiver", "burst", "proof"):
        table.add_column(name, justify="left" if name in ("where", "proof") else "right")
    for row in rows[:PROOF_ROWS]:
        table.add_row(
            row["hook"],
            percent(row["asked"]),
            percent(row["read_back"]),
            "-" if row["kernel_seen"] is None else f"{row['kernel_dropped']} of {row['kernel_seen']}",
            str(row["receiver_missing"]),
            _burst(row),
            _proof_word(row),
        )
    console.print(table)
    if len(rows) > PROOF_ROWS:
        console.print(f"... and {len(rows) - PROOF_ROWS} more rows in proof.json")


def _burst(row: dict[str, Any]) -> str:
    if row["burst_seen"] is None:
        return "-"
    return f"{row['burst_seen']:.2f}" + (f" ({row['burst_asked']:.2f})" if row["burst_asked"] is not None else "")


def _proof_word(row: dict[str, Any]) -> str:
    if row["exact"] is not None:
        return "exact" if row["exact"] else "[red]differs[/]"
    return "-" if row["p_value"] is None else f"p={row['p_value']:.2g}"
