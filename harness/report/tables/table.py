"""Tables as data, and the four ways to write them: terminal, Markdown, CSV, LaTeX."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from lossbench.report.tables.digits import aligned
from lossbench.report.tables.words import heading

WORDS = {"valid": "good", "unknown": "unknown", "failed": "bad"}  # a verdict's style
STYLES = {"void": "dim", "best": "bold green", "bad": "red", "good": "green", "unknown": "yellow", "": ""}


@dataclass(frozen=True)
class Cell:
    """`text` may have a second line (an interval). `detail`: where it comes from, for those who ask."""

    text: str
    style: str = ""
    detail: str = ""

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


HEAD_WIDTH = 14
NAME_WIDTH = 26  # of the first column; longer names take two lines


def terminal(console: Console, table: Table) -> None:
    for one in rendered(table, width=console.width):
        console.print(one)


def rendered(table: Table, *, width: int) -> Iterator[RichTable | Text]:
    """Numbers are never cut: columns that do not fit go into a further table below, with the names again."""
    first = min(max((len(part) for row in table.rows for part in row[0].text.split("\n")), default=4), NAME_WIDTH)
    for part, columns in enumerate(_fitting(table, room=width - first - 2)):
        title = table.title if part == 0 else f"{table.title} (continued)"
        out = RichTable(box=box.SIMPLE, pad_edge=False, padding=0, title=Text(title), title_justify="left")
        out.add_column(Text(table.head[0]), overflow="fold", min_width=first)
        shown: list[list[Text]] = []
        for number in columns:
            words = all(re.fullmatch(r"[a-z ]*", row[number].text) for row in table.rows)
            head, wide = Text(_head(table.head[number])), _width(table, number)
            out.add_column(head, justify="left" if words else "right", min_width=wide, max_width=wide)
            shown.append([_set(text, wide, words=words) for text in _texts(table, number)])
        for row, *cells in zip(table.rows, *shown, strict=True):
            for cell, of in zip(cells, columns, strict=True):
                cell.stylize(STYLES[row[of].style])
            out.add_row(Text(row[0].text, style=STYLES[row[0].style]), *cells)
        yield out
    yield from map(Text, table.notes)


def _texts(table: Table, number: int) -> list[str]:
    return aligned([row[number].text for row in table.rows])


def _set(text: str, wide: int, *, words: bool) -> Text:
    """Rich cuts blanks at the end of what it puts to the right, and with them what holds digits in line."""
    return Text(text) if words else Text("\n".join(line.rjust(wide) for line in text.split("\n")), justify="left")


def _head(name: str) -> str:
    """In as many lines as its longest word asks for; a word that is too long is cut where it has a seam, or else said
    to be."""
    words = [part for word in heading(name).split(" ") for part in _parts(word)]
    return "\n".join(textwrap.wrap(" ".join(words), max([1, *map(len, words)]), break_on_hyphens=False))


def _parts(word: str) -> list[str]:
    """validationAccuracy: two words; validationaccuracy: its beginning, with a hyphen, and its end."""
    if len(word) <= HEAD_WIDTH:
        return [word]
    seams = re.split(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[./-])", word)
    if len(seams) > 1:
        return [part for seam in seams for part in _parts(seam)]
    return [f"{word[: HEAD_WIDTH - 1]}-", *_parts(word[HEAD_WIDTH - 1 :])]


def _width(table: Table, number: int) -> int:
    texts = [_head(table.head[number]), *_texts(table, number)]
    return max(len(part) for text in texts for part in text.split("\n"))


def _fitting(table: Table, *, room: int) -> list[list[int]]:
    """The columns behind the first, in as few tables as the width needs."""
    out: list[list[int]] = [[]]
    used = 0
    for number in range(1, len(table.head)):
        width = _width(table, number) + 1
        if out[-1] and used + width > room:
            out.append([])
            used = 0
        out[-1].append(number)
        used += width
    return out


def markdown(tables: Sequence[Table]) -> str:
    out = []
    for table in tables:
        out += [f"### {md(table.title)}", "", _md_row(map(md, table.head)), "|" + "---|" * len(table.head)]
        out += [_md_row(_md_cell(cell) for cell in row) for row in table.rows]
        out += ["", *(f"- {md(note)}" for note in table.notes), ""]
    return "\n".join(out)


def md(text: str) -> str:
    """Words stay words: no markup, no HTML, no new lines."""
    return re.sub(r"([\\`*_<>\[\]|])", r"\\\1", " ".join(text.split()))


def _md_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _md_cell(cell: Cell) -> str:
    text = md(cell.line)
    if cell.style == "best":
        return f"**{text}**"
    return f"*{text}*" if cell.style == "void" else text


def csv_text(tables: Sequence[Table]) -> str:
    """One number per line, every column named: what a data frame wants."""
    lines = [line for table in tables for line in table.tidy]
    out = io.StringIO()
    names = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**line, "folders": " ".join(line.get("folders", []))} for line in lines)
    return out.getvalue()


LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "≥": r"$\ge$",
    "<": "$<$",
    ">": "$>$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


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
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}",
            r"\toprule",
            " & ".join(_tex(name.replace("_", " ")) for name in table.head) + r" \\",
            r"\midrule",
            *(" & ".join(_tex_cell(cell) for cell in row) + r" \\" for row in table.rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        out += [rf"\par\footnotesize {_tex(note)}" for note in table.notes]
        out += [r"\end{table}", ""]
    return "\n".join(out)
