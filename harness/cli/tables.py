"""What people see at a terminal when a suite has ended: tables that fit 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from harness.naming import point_name
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
    if len(rows) == 1:
        show_proof(console, result.folder / "000", rows[0])
    names = [_name(row, seeds=len({r["seed"] for r in rows})) for row in rows]
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("point", "asked", "kernel", "receiver", "fault", "timing", "outcome", "verdict"):
        justify: Any = "right" if column in ("asked", "kernel", "receiver") else "left"
        table.add_column(column, justify=justify, overflow="fold")
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
    for text in dict.fromkeys(text for row in rows for text in row["warnings"]):
        console.print(f"warning: {text}", markup=False)
    for name, row in zip(names, rows, strict=True):
        for column, status in row["columns"].items():
            if status != "valid":
                for reason in row["reasons"][column]:
                    console.print(f"{name}, {column}: {reason}", markup=False)
    console.print(f"verdict: {coloured(result.status.word)}   results: {result.folder}", soft_wrap=True)


def show_results(console: Console, rows: list[dict[str, Any]], names: list[str]) -> None:
    """One table for all runs where each has one line, else one for each."""
    if len(rows) > 1 and all(len(row["rows"]) <= 1 for row in rows):
        lines = [{**row["rows"][0], "point": name} for name, row in zip(names, rows, strict=True) if row["rows"]]
        if lines:
            shown = ["point", *(lines[0].get("shown") or list(lines[0]))[1:]]
            show_result_rows(console, [{**line, "shown": shown} for line in lines], title="results")
        return
    for name, row in zip(names, rows, strict=True):
        show_result_rows(console, row["rows"], title=name)


def show_result_rows(console: Console, rows: list[dict[str, Any]], *, title: str) -> None:
    """The lines a workload made; those whose path was not proven are greyed and say so."""
    if not rows:
        return
    shown = rows[0].get("shown") or list(rows[0])
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
    for column in shown:
        if column == shown[0]:  # names may take two lines, numbers are never cut
            longest = max(len(str(row.get(column))) for row in rows)
            table.add_column(column.replace("_", " "), overflow="fold", min_width=min(longest, NAME_WIDTH))
            continue
        width = max(len(_cell(row.get(column))) for row in rows)
        table.add_column(column.replace("_", "\n"), justify="right", min_width=width)
    for row in rows:
        void = row.get("path") == "unknown"
        table.add_row(*(_cell(row.get(column)) for column in shown), style="dim" if void else None)
    console.print(table)
    for row in rows:
        if row.get("path") == "unknown":
            console.print(f"{row[shown[0]]}: unknown, its bytes did not cross the impaired links", markup=False)
    for note, about in _notes(rows, shown[0]).items():
        console.print(f"{about}: {note}", markup=False)


def _notes(rows: list[dict[str, Any]], name: str) -> dict[str, str]:
    """Each note once, with whom it is about."""
    out: dict[str, list[str]] = {}
    for row in rows:
        if row.get("note"):
            out.setdefault(row["note"], []).append(str(row[name]))
    return {note: about[0] if len(about) == 1 else f"{len(about)} lines" for note, about in out.items()}


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.{4 if abs(value) >= 0.1 else 3 if abs(value) >= 0.01 else 2}g}"  # within eight characters
    return str(value)


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
