"""Tables as data, and the four ways to write them: terminal, Markdown, CSV, LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

STYLES = {"void": "dim", "best": "bold green", "bad": "red", "good": "green", "unknown": "yellow", "": ""}


@dataclass(frozen=True)
class Cell:
    """`text` may have a second line (an interval). `detail`: where it comes from, for those who ask."""

    text: str
    style: str = ""
    detail: str = ""
    runs: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        return self.text.replace("\n", " ")


@dataclass
class Table:
    title: str
    head: list[str]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    tidy: list[dict[str, Any]] = field(default_factory=list)  # the same as one number per line, for machines


def terminal(console: Console, table: Table) -> None:
    """The first column may fold; numbers are never cut."""
    out = RichTable(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), title=table.title, title_justify="left")
    for number, name in enumerate(table.head):
        if number == 0:
            longest = max((len(row[0].text) for row in table.rows), default=4)
            out.add_column(name, overflow="fold", min_width=min(longest, 26))
        else:
            widest = max((len(part) for row in table.rows for part in row[number].text.split("\n")), default=1)
            words = all(re.fullmatch(r"[a-z ]*", row[number].text) for row in table.rows)
            out.add_column(name.replace("_", "\n").replace(" ", "\n"), justify="left" if words else "right",
                           min_width=widest)  # fmt: skip
    for row in table.rows:
        out.add_row(*(Text(cell.text, style=STYLES[cell.style]) for cell in row))
    console.print(out)
    for note in table.notes:
        console.print(note, markup=False)


def markdown(tables: Sequence[Table]) -> str:
    out = []
    for table in tables:
        out += [f"### {table.title}", "", _md_row(table.head), "|" + "---|" * len(table.head)]
        out += [_md_row(_md_cell(cell) for cell in row) for row in table.rows]
        out += ["", *(f"- {note}" for note in table.notes), ""]
    return "\n".join(out)


def _md_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _md_cell(cell: Cell) -> str:
    if cell.style == "best":
        return f"**{cell.line}**"
    return f"*{cell.line}*" if cell.style == "void" else cell.line


def csv_text(tables: Sequence[Table]) -> str:
    """One number per line, every column named: what a data frame wants."""
    lines = [line for table in tables for line in table.tidy]
    out = io.StringIO()
    names = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**line, "folders": " ".join(line.get("folders", []))} for line in lines)
    return out.getvalue()


LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
         "−": "$-$", "≥": r"$\ge$", "<": "$<$", ">": "$>$", **{c: f"\\{c}" for c in "&%$#_{}"}}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def _tex_cell(cell: Cell) -> str:
    text = _tex(cell.line)
    if cell.style == "best":
        return rf"\textbf{{{text}}}"
    return rf"\textcolor{{gray}}{{{text}}}" if cell.style == "void" else text


def latex(tables: Sequence[Table]) -> str:
    """booktabs and xcolor."""
    out = ["% needs \\usepackage{booktabs,xcolor}"]
    for table in tables:
        out += [
            r"\begin{table}", r"\centering", rf"\caption{{{_tex(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}", r"\toprule",
            " & ".join(_tex(name.replace("_", " ")) for name in table.head) + r" \\", r"\midrule",
            *(" & ".join(_tex_cell(cell) for cell in row) + r" \\" for row in table.rows),
            r"\bottomrule", r"\end{tabular}",
        ]  # fmt: skip
        out += [rf"\par\footnotesize {_tex(note)}" for note in table.notes]
        out += [r"\end{table}", ""]
    return "\n".join(out)
