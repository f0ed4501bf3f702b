"""Tables say no more than the runs behind them do."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from harness.errors import UsageError
from harness.report import tables
from harness.report.content import Content, gather
from harness.report.index import read_suite

from . import made

POINTS = [{"strategy": name, "profile": "loss_10"} for name in ("reliable", "rps", "gradient_averaging")]
WORSE = {"reliable": 0.0, "rps": 0.001, "gradient_averaging": 0.5}


def losses(point: dict[str, Any], seed: int) -> dict[str, Any]:
    noise = 0.01 * np.random.default_rng(seed).normal()
    return {"train_loss": 1.0 + noise + WORSE[point["strategy"]] + 0.003 * (seed % 2), "ms_step": 10.0 + seed}


def content(folder: Path, seeds: int = 5, row: made.Row = losses, **keys: Any) -> Content:
    return gather(read_suite(made.suite(folder, POINTS, seeds, row, **keys)))


def table(found: Content, title: str) -> tables.Table:
    (one,) = [one for one in found.tables if title in one.title]
    return one


def cells(one: tables.Table, column: str) -> dict[str, tables.Cell]:
    return {row[0].text: row[one.head.index(column)] for row in one.rows}


def test_means_over_seeds_with_their_interval(tmp_path: Path) -> None:
    one = cells(table(content(tmp_path), "results"), "train_loss")["reliable loss_10"]
    assert one.text.startswith("1.0") and "±" in one.text
    assert "n = 5, standard deviation" in one.detail and len(one.runs) == 5


def test_a_change_is_starred_only_if_it_is_significant(tmp_path: Path) -> None:
    found = cells(table(content(tmp_path), "change against 'reliable loss_10'"), "train_loss")
    assert "%*" in found["gradient_averaging loss_10"].text
    assert "*" not in cells(table(content(tmp_path / "b"), "change"), "ms_step")["rps loss_10"].text


def test_best_is_marked_only_beyond_doubt(tmp_path: Path) -> None:
    close = cells(table(content(tmp_path), "results"), "ms_step")
    assert not [name for name, cell in close.items() if cell.style == "best"]

    def apart(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"train_loss": WORSE[point["strategy"]] + 1e-5 * seed * (1 + len(point["strategy"]))}

    clear = cells(table(content(tmp_path / "b", row=apart), "results"), "train_loss")
    assert [name for name, cell in clear.items() if cell.style == "best"] == ["reliable loss_10"]


def test_what_is_unknown_is_shown_greyed_and_never_averaged(tmp_path: Path) -> None:
    columns = {"fault": "valid", "timing": "unknown", "outcome": "valid"}
    one = table(content(tmp_path, columns=columns), "results")
    times, found = cells(one, "ms_step"), cells(one, "train_loss")
    assert all(cell.style == "void" and "?" in cell.text and "±" not in cell.text for cell in times.values())
    assert all(cell.style != "void" for cell in found.values())
    assert any("too busy for times" in note for note in one.notes)


def test_an_unproven_fault_voids_every_number(tmp_path: Path) -> None:
    columns = {"fault": "unknown", "timing": "valid", "outcome": "valid"}
    one = table(content(tmp_path, columns=columns), "results")
    assert all(cell.style == "void" for row in one.rows for cell in row[2:])


def test_simulated_runs_are_labelled_and_averaged_only_if_asked(tmp_path: Path) -> None:
    columns = {"fault": "unknown", "timing": "valid", "outcome": "valid"}
    place = made.suite(tmp_path, POINTS, 3, losses, backend="simulated", columns=columns)
    for asked in (False, True):
        one = table(gather(read_suite(place), with_simulated=asked), "results")
        assert all("(simulated)" in row[0].text for row in one.rows)
        assert all((cell.style != "void") == asked for cell in cells(one, "train_loss").values())


def test_a_percentile_of_few_samples_is_not_printed(tmp_path: Path) -> None:
    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"n": 60, "p50_ms": 5.0, "p99_ms": 9.0}

    one = table(content(tmp_path, row=row), "results")
    assert {cell.text for cell in cells(one, "p99_ms").values()} == {"-"}
    assert all(cell.text.startswith("5") for cell in cells(one, "p50_ms").values())
    assert any("fewer than 1000 samples" in note for note in one.notes)


def test_tails_stand_on_samples(tmp_path: Path) -> None:
    place = made.suite(tmp_path, POINTS[:1], 2, losses)
    for run in ("000", "001"):
        made.samples(place / run, "step_ms", np.linspace(1, 100, 600))
    (row,) = table(gather(read_suite(place)), "tail").rows
    assert [cell.text for cell in row] == ["reliable loss_10", "1200", "50.5", "99.01", "-", "100"]


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_of_80_columns_loses_no_number(width: int, tmp_path: Path) -> None:
    def wide(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {f"measure_number_{n}": 1000.123 * n + seed for n in range(9)}

    out = io.StringIO()
    found = content(tmp_path, row=wide)
    for one in found.tables:
        tables.terminal(Console(file=out, width=width, highlight=False), one)
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for n in range(1, 9):
        mean = tables.Cell(cells(table(found, "results"), f"measure_number_{n}")["rps loss_10"].text).text.split("\n")[
            0
        ]
        assert mean in text
    assert "…" not in text


def test_markdown_csv_and_latex_hold_the_same_numbers(tmp_path: Path) -> None:
    found = content(tmp_path)
    mean = cells(table(found, "results"), "train_loss")["rps loss_10"].text.split("\n")[0]
    assert f"| rps loss_10 | 5 | {mean} ±" in tables.markdown(found.tables)
    tex = tables.latex(found.tables)
    assert rf"rps loss\_10 & 5 & {mean} $\pm$" in tex and tex.count(r"\toprule") == len(found.tables)
    lines = list(csv.DictReader(io.StringIO(tables.csv_text(found.tables))))
    (line,) = [x for x in lines if (x["point"], x["measure"]) == ("rps loss_10", "train_loss")]
    assert float(line["mean"]) == pytest.approx(float(mean), rel=1e-3) and int(line["n"]) == 5
    assert float(line["low"]) < float(line["mean"]) < float(line["high"]) and len(line["folders"].split()) == 5


def test_a_baseline_that_is_not_there_is_named(tmp_path: Path) -> None:
    place = made.suite(tmp_path, POINTS, 2, losses)
    assert gather(read_suite(place), baseline="rps").tables[2].title == "made: change against 'rps loss_10'"
    with pytest.raises(UsageError, match="no line of that name; known: 'reliable loss_10'"):
        gather(read_suite(place), baseline="typo")
