"""Digits of a column stand one below the other, at a terminal and on a page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lossbench.report import page
from lossbench.report.content import gather
from lossbench.report.tables.digits import aligned, filled, pads
from lossbench.report.tables.table import Cell, Table, rendered
from lossbench.results.index import read_suite

from . import made


def test_a_column_has_the_decimals_that_its_precision_allows() -> None:
    """As it was: "33.37?" over "39?"."""
    assert filled(["33.37?", "39?"]) == ["33.37?", "39.00?"]
    assert filled(["1", "0.962\n± 0.04", "0"]) == ["1.000", "0.962\n± 0.040", "0"]
    assert filled(["0.93\nto 0.975", "33.5"]) == ["0.93\nto 0.975", "33.50"]
    assert filled(["0.0585", "6.6", "39", "1235", "0.0012"]) == ["0.0585", "6.600", "39.00", "1235", "0.0012"]
    untouched = ["12", "7", "-", "(2 of 3)", "1.2e+07", "nan?", "5 %", "12345"]
    assert filled(untouched) == untouched


def test_points_stand_in_one_line_and_a_mark_moves_none() -> None:
    cells = aligned(["33.37?", "39.00", "1235\n± 2.5", "-"])
    assert cells == ["33.37?", "39.00 ", "1235    \n± 2.5  ", "-"]
    assert pads(["33.37?", "39.00", "1235", "-"]) == ["", "?", ".00?", ""] and pads(["12", "7"]) == ["", ""]


def test_a_table_of_a_users_may_have_one_column(tmp_path: Path) -> None:
    """As it was: its page ended in a traceback."""
    content = gather(read_suite(made.suite(tmp_path, [{"a": 1}], 1, lambda *_: {"loss": 1.0})))
    mine = Table("mine", ["a"], [[Cell("x")]])
    page.write([replace(content, named={"mine": mine})], [], tmp_path / "out.html")
    assert "<td" in (tmp_path / "out.html").read_text()


def test_a_terminal_keeps_them_in_line() -> None:
    """Rich takes blanks from the end of what it puts to the right."""
    rows = [[Cell(name), Cell(text)] for name, text in zip("abc", ["33.37?", "39.00", "1235"], strict=True)]
    table = Table("made", ["point", "wall_s"], rows)
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as caught:
        for one in rendered(table, width=80):
            console.print(one)
    lines = [line for line in caught.get().splitlines() if re.match(r" ?[abc] ", line)]
    assert len(lines) == 3 and len({line.index(".") for line in lines if "." in line}) == 1
    assert lines[2].rstrip()[-4:] == "1235" and lines[2].index("1235") + 4 == lines[0].index(".")


def test_a_page_has_the_same_and_says_nothing_more(tmp_path: Path) -> None:
    times = {1: 33.37, 2: 39.0}
    place = made.suite(tmp_path, [{"n": 1}, {"n": 2}], 1, lambda point, seed: {"wall_s": times[point["n"]]})
    summary = made.read(place / "000" / "summary.json")
    summary["columns"]["timing"] = "unknown"
    made.write(place / "000" / "summary.json", summary)
    page.write([gather(read_suite(place))], [], tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert ">33.37?</td>" in text and '>39.00<i data-pad="?"></i></td>' in text
    assert "td i::after { content: attr(data-pad); visibility: hidden; }" in text


@pytest.mark.parametrize("text", ["", "a\n"])
def test_what_is_no_number_is_left_alone(text: str) -> None:
    assert filled([text, "1.25"]) == [text, "1.25"]
