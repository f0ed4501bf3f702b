"""What people see at a terminal when a suite has ended: tables that fit 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from harness import measures
from harness.cli import reporting
from harness.measures import Standing, percent
from harness.naming import beside_the_verdict, point_name, said_once
from harness.report.proven import PROBES_AND_MET
from harness.report.tables import STYLES, WORDS, Cell, Table, terminal
from harness.suite import SuiteResult

PROOF_ROWS = 8
COLUMNS = ("fault", "timing", "outcome")


def coloured(word: str) -> Text:
    return Text(word, style=STYLES[WORDS.get(word, "")])


def show_suite(console: Console, result: SuiteResult) -> None:
    rows = list(result.summaries)
    if len({row["seed"] for row in rows}) > 1 and not reporting.libraries_missing():
        _show_over_seeds(console, result)
    else:
        _show_each(console, result, rows)
    for text in dict.fromkeys(text for row in rows for text in row["warnings"]):
        console.print(f"warning: {text}", markup=False)
    beside = beside_the_verdict([row["columns"] for row in rows if row["verdict"] == "valid"])
    end = Text.assemble("verdict: ", coloured(result.status.word), f"{beside}   results: {result.folder}")
    console.print(end, soft_wrap=True)


def _show_over_seeds(console: Console, result: SuiteResult) -> None:
    """Means over seeds need statistics: the tables of a report."""
    from harness.report.content import gather
    from harness.report.index import read_suite

    content = gather(read_suite(result.folder))
    for table in content.tables:
        terminal(console, table)
    for text in content.reasons:
        console.print(text, markup=False)


def _show_each(console: Console, result: SuiteResult, rows: list[dict[str, Any]]) -> None:
    if len(rows) == 1:
        show_proof(console, result.folder / "000", rows[0])
    names = [_name(row, seeds=len({r["seed"] for r in rows})) for row in rows]
    lines = [
        [
            Cell(name), Cell(_asked(row["asked_loss"])), Cell(percent(row["receiver"]["loss"])), Cell(_met(row)),
            *(_word(row["columns"][column]) for column in COLUMNS),
            _word(row["verdict"]),
        ]
        for name, row in zip(names, rows, strict=True)
    ]  # fmt: skip
    notes = [PROBES_AND_MET] + [
        f"not judged: {text}" for text in dict.fromkeys(t for r in rows for t in r["not_judged"])
    ]
    terminal(console, Table("", ["point", "asked", "probes", "met", *COLUMNS, "verdict"], lines, notes))
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


def _met(row: dict[str, Any]) -> str:
    return measures.met_in_words(*(row["met"].get(f"{cause}_loss") for cause in ("rule", "queue", "elsewhere")))


def _word(word: str) -> Cell:
    return Cell(word, WORDS.get(word, ""))


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
        wanted = row.get("shown")
        self.shown = [str(name) for name in (wanted if isinstance(wanted, list) and wanted else list(row))]
        self._standing = Standing(
            columns=summary["columns"], marks=summary["marks"], simulated=summary["backend"] == "simulated",
            units=summary.get("units", {}),
        )  # fmt: skip

    def named(self, name: str) -> Line:
        """The run's name instead of the workload's."""
        return Line({**self.row, "point": name, "shown": ["point", *self.shown[1:]]}, self.summary)

    def void(self, column: str) -> str:
        if measures.number(self.row.get(column)) is None or column in measures.NOT_MEASURED:
            return ""
        return self._standing.void(column, self.row)

    def cell(self, column: str) -> Cell:
        value, void = self.row.get(column), self.void(column)
        if value is None or void.startswith(measures.FEW):
            return Cell("-", "void")
        text = measures.short(value) if isinstance(value, float) and measures.number(value) is not None else str(value)
        return Cell(f"{text}?" if void else text, "void" if void else "")


def show_lines(console: Console, lines: list[Line], *, title: str) -> None:
    """What can't be believed is greyed, has a question mark, and the reason below."""
    if not lines:
        return
    first = lines[0].shown[0]
    shown = list(dict.fromkeys(name for line in lines for name in line.shown[1:]))
    cells = [[Cell(str(line.row.get(first, ""))), *(line.cell(column) for column in shown)] for line in lines]
    reasons = dict.fromkeys(reason for line in lines for column in shown if (reason := line.void(column)))
    few = "-: a percentile is not printed with"
    notes = [f"{few if text.startswith(measures.FEW) else '?: not to be believed:'} {text}" for text in reasons]
    notes += [f"{about}: {note}" for note, about in _notes([line.row for line in lines], first).items()]
    terminal(console, Table(title, [first.replace("_", " "), *shown], cells, notes))


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
    lines = [
        [
            Cell(row["hook"]), Cell(percent(row["asked"])), Cell(percent(row["read_back"])),
            Cell("-" if row["kernel_seen"] is None else f"{row['kernel_dropped']} of {row['kernel_seen']}"),
            Cell(str(row["receiver_missing"])), Cell(_burst(row)), _proof_word(row),
        ]
        for row in rows[:PROOF_ROWS]
    ]  # fmt: skip
    head = ["where", "asked", "read back", "kernel dropped", "receiver", "burst", "proof"]
    more = [f"... and {len(rows) - PROOF_ROWS} more rows in proof.json"] if len(rows) > PROOF_ROWS else []
    terminal(console, Table(title, head, lines, more))


def _burst(row: dict[str, Any]) -> str:
    if row["burst_seen"] is None:
        return "-"
    return f"{row['burst_seen']:.2f}" + (f" ({row['burst_asked']:.2f})" if row["burst_asked"] is not None else "")


def _proof_word(row: dict[str, Any]) -> Cell:
    if row["exact"] is not None:
        return Cell("exact") if row["exact"] else Cell("differs", "bad")
    return Cell("-" if row["p_value"] is None else f"p={row['p_value']:.2g}")
