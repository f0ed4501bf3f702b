"""Tables say no more than the runs behind them do."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from lossbench.errors import UsageError
from lossbench.report.between import compare
from lossbench.report.content import Content, gather
from lossbench.report.groups import groups_of, lines_of_point
from lossbench.report.tables import table as tables
from lossbench.report.tables.probes import ROWS_SHOWN, rule_by_rule
from lossbench.results import machine, measures, naming
from lossbench.results.index import read_suite
from lossbench.results.models import ProofRow
from lossbench.spec.about import Measure

from . import made

POINTS = [{"strategy": name, "profile": "loss_10"} for name in ("reliable", "rps", "gradient_averaging")]
WORSE = {"reliable": 0.0, "rps": 0.001, "gradient_averaging": 0.5}


def losses(point: dict[str, Any], seed: int) -> dict[str, Any]:
    noise = 0.01 * np.random.default_rng([seed, len(point["strategy"])]).normal()
    return {"train_loss": 1.0 + noise + WORSE[point["strategy"]], "ms_step": 10.0 + seed}


def content(folder: Path, seeds: int = 5, row: made.Row = losses, **keys: Any) -> Content:
    return gather(read_suite(made.suite(folder, POINTS, seeds, row, **keys)))


def table(found: Content, title: str) -> tables.Table:
    (one,) = [one for one in found.tables if title in one.title]
    return one


def cells(one: tables.Table, column: str) -> dict[str, tables.Cell]:
    return {row[0].text: row[one.head.index(column)] for row in one.rows}


def test_means_over_seeds_with_their_interval(tmp_path: Path) -> None:
    one = cells(table(content(tmp_path), "results"), "train_loss")["reliable loss_10"]
    assert float(one.text.split()[0]) == pytest.approx(1, rel=0.02) and "±" in one.text
    assert "n = 5, standard deviation" in one.detail


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


def test_what_a_sweep_sets_itself_has_no_best(tmp_path: Path) -> None:
    """As it was: bold where least was asked to be lost."""

    def resent(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"tcp_resent_percent": WORSE[point["strategy"]] + 1e-5 * seed * (1 + len(point["strategy"]))}

    found = table(content(tmp_path, row=resent, measures={"tcp_resent_percent": {"better": "low"}}), "results")
    assert not [name for name, cell in cells(found, "tcp_resent_percent").items() if cell.style == "best"]


def test_a_target_that_was_not_reached_is_called_so_and_whose_time_is_told(tmp_path: Path) -> None:
    """As it was: a dash, and "the others did not end" of runs that had."""
    late = {"reliable": 0, "rps": 2, "gradient_averaging": 5}  # seeds that did not

    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        took = "not reached" if seed < late[point["strategy"]] else 3.0 + seed
        return {"train_loss": 1.0, "target_s": took}

    one = table(content(tmp_path, row=row), "results")
    found = cells(one, "target_s")
    assert found["gradient_averaging loss_10"].text == "not reached"
    assert "(3 of 5)" in found["rps loss_10"].text and "the others: not reached" in found["rps loss_10"].detail
    assert "of 5" not in found["reliable loss_10"].text
    assert "target_s: of the other seeds: not reached (rps loss_10)." in one.notes


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
    place = made.suite(tmp_path, POINTS[:1], 3, losses)
    for run in ("000", "001", "002"):
        made.samples(place / run, "step_ms", np.linspace(1, 100, 600))
    (row,) = table(gather(read_suite(place)), "tail").rows
    first = ["reliable loss_10", "1800", "3", "50.5", "99.01", "-", "100"]
    assert [cell.text.split("\n")[0] for cell in row] == first
    assert row[3].text == "50.5\n48.26 to 52.74", "equal seeds: as wide as independent samples leave it"
    tidy = [one for one in table(gather(read_suite(place)), "tail").tidy if one["measure"] == "step_ms p50"]
    assert [(round(one["low"], 1), one["method"]) for one in tidy] == [(48.3, "seeds")]


def test_what_is_one_sample_of_a_tail_is_said_of_steps_requests_and_round_trips(tmp_path: Path) -> None:
    """As it was: a round trip was called as long as its slowest rank took, beside a median of another make."""
    place = made.suite(tmp_path, POINTS[:1], 2, losses)
    for run in ("000", "001"):
        made.samples(place / run, "rtt_ms", np.linspace(1, 100, 600), together=False)
    found = table(gather(read_suite(place)), "tail")
    assert cells(found, "p50")["reliable loss_10: rtt"].text == "50.5\n-", "two seeds"
    assert any("each rank's median" in note for note in found.notes)
    assert not any("slowest rank" in note for note in found.notes)
    made.samples(place / "000", "get_ms", np.linspace(1, 100, 600), together=False)
    made.samples(place / "000", "step_ms", np.linspace(1, 100, 600))
    notes = table(gather(read_suite(place)), "tail").notes
    assert any("slowest rank" in note for note in notes) and any(note.startswith("Of get_ms each") for note in notes)


def test_seeds_that_failed_are_missed_in_every_table(tmp_path: Path) -> None:
    """As it was: what failed was left out, and only the table of results said so."""
    place = made.suite(tmp_path, POINTS, 4, losses)
    for one in made.read(place / "suite.json")["plan"]:
        folder = place / f"{one['number']:03d}"
        made.samples(folder, "step_ms", np.linspace(1, 100, 100))
        if one["point"] == POINTS[1] and one["seed"] == 0:
            (folder / "summary.json").unlink()
    found = gather(read_suite(place))
    tail, change = table(found, "tail"), table(found, "change")
    assert [cell.text for cell in cells(tail, "seeds").values()].count("3 of 4") == 1
    assert {cell.text for cell in cells(change, "n").values()} == {"4"}
    assert any("(3 of 4)" in cell.text for cell in cells(change, "train_loss").values())
    assert any("(2 of 3)" in note for note in change.notes)


def test_four_ranks_of_one_stall_are_one_event_and_p99_counts_those(tmp_path: Path) -> None:
    """300 steps of four ranks stood as "n = 1200" with a p99, and its four largest were one stall."""
    place = made.suite(tmp_path, POINTS[:1], 1, losses)
    steps = np.linspace(1, 100, 300)
    steps[100] = 2100.0
    for rank in range(4):
        made.samples(place / "000", "step_ms", steps + rank, rank=rank)
    (row,) = table(gather(read_suite(place)), "tail").rows
    assert [cell.text.split("\n")[0] for cell in row][1:] == ["300", "1", "53.83", "-", "-", "2103"]


def test_requests_are_events_of_their_own(tmp_path: Path) -> None:
    place = made.suite(tmp_path, POINTS[:1], 1, losses)
    for rank in range(4):
        made.samples(place / "000", "get_ms", np.linspace(1, 100, 300), rank=rank, together=False)
    (row,) = table(gather(read_suite(place)), "tail").rows
    assert [cell.text for cell in row][1] == "1200"


def test_requests_of_several_clients_are_blocks_of_time_and_not_of_clients(tmp_path: Path) -> None:
    """All four wait for the same slow stretch: a quarter of the time, whoever asked."""
    place = made.suite(tmp_path, POINTS[:1], 1, losses)
    waits = np.where(np.arange(400) // 100 == 2, 100.0, 1.0) + np.linspace(0, 0.1, 400)
    for rank in range(4):
        made.samples(place / "000", "get_ms", waits, rank=rank, together=False)
    (found,) = gather(read_suite(place)).sets
    assert (found.numbers[800:1200] > 50).all() and (found.numbers > 50).sum() == 400


@pytest.mark.parametrize(
    ("name", "units", "void"),
    [
        ("wall_s", {}, True),
        ("seconds", {}, True),
        ("throughput", {}, True),
        ("ms_step", {}, True),
        ("gain", {}, False),
        ("gain", {"gain": "s"}, True),
        ("gain", {"gain": "seconds"}, True),
        ("gain", {"gain": "req/sec"}, True),
        ("wall_s", {"wall_s": "odd"}, True),
        ("served", {"served": "1/s"}, True),
        ("forms", {}, False),
        ("ms_of_text", {"ms_of_text": ""}, False),
        ("accuracy", {}, False),
        *((name, {}, True) for name in ("stepTime", "samplesPerSecond", "fps", "runtime", "speedup", "GBs")),
        *((name, {}, False) for name in ("accuracyTop", "timesLost", "sometimes", "learning_rate", "f1", "psnr")),
        ("gain", {"gain": "FPS"}, True),
        *((name, {}, True) for name in ("tokens_per_minute", "samples_per_hour", "epochs_per_day", "step_usec")),
        *((name, {}, True) for name in ("minute", "hour", "wallclock", "ttfb", "fct", "jct", "cct", "tbt", "makespan")),
        *((name, {}, True) for name in ("pps", "bps", "kbps", "mibps", "mbits", "link_gibps", "tpm")),
    ],
)
def test_a_number_is_a_time_by_its_declared_unit_else_by_its_name(
    name: str, units: dict[str, str], void: bool, tmp_path: Path
) -> None:
    """A user's `seconds` and `wall_s` were averaged although timing was unknown; later `stepTime`, `fps`, `runtime`."""
    columns = {"fault": "valid", "timing": "unknown", "outcome": "valid"}
    found = content(tmp_path, row=lambda point, seed: {name: 1.5}, columns=columns, units=units)
    texts = {cell.text for cell in cells(table(found, "results"), name).values()}
    assert all("?" in text for text in texts) == void, texts


def test_what_the_workload_met_stands_in_the_table_split_by_cause(tmp_path: Path) -> None:
    met = {"packets": 10, "rule_loss": 0.0103, "queue_loss": 0.471, "elsewhere_loss": 0.0}
    found = content(tmp_path, met=met)
    assert {cell.text for cell in cells(table(found, "asked and proven"), "met").values()} == {"1.03 %\n+47.1 % queue"}


def test_asked_and_proven_says_of_how_many_runs(tmp_path: Path) -> None:
    """As it was: a loss over one of three runs and one over three looked the same."""
    place = made.suite(tmp_path, POINTS, 3, losses)
    first = place / "000" / "summary.json"
    one = made.read(first)
    one["columns"]["fault"] = "unknown"
    made.write(first, one)
    found = cells(table(gather(read_suite(place)), "asked and proven"), "n")
    assert [cell.text for cell in found.values()] == ["2 of 3", "3", "3"]


def test_results_whose_seeds_share_patterns_say_so(tmp_path: Path) -> None:
    assert any("seeds shared patterns" in text for text in content(tmp_path / "old", seeds_version=1).warnings)
    assert not content(tmp_path / "new").warnings


def test_runs_of_two_programs_are_never_one_line(tmp_path: Path) -> None:
    """As it was: three seeds of a script and two of what became of it had one mean, and a p-value."""
    place = made.suite(tmp_path, POINTS[:2], 5, lambda point, seed: {"accuracy": 0.9 if seed < 3 else 0.1})
    plan = json.loads((place / "suite.json").read_text())
    plan["sessions"][0]["programs"] = [{"command": ["python", "train.py"]}]
    made.write(place / "suite.json", plan)
    for number in range(10):
        files = {"train.py": "first" if number % 5 < 3 else "second"}
        program = {"command": ["python", "train.py"], "executable": {"sha256": "x"}, "files": files, "folders": {}}
        manifest = {"started": f"2026-11-15T10:00:{number % 5:02d}+0000", "programs": [program]}
        made.write(place / f"{number:03d}" / "manifest.json", manifest)
    found = gather(read_suite(place))
    assert {group.name: group.sound("accuracy") for group in found.groups} == {
        group.name: dict.fromkeys(range(3), 0.9) for group in found.groups
    }
    (said,) = found.warnings
    assert "train.py changed between its runs: those of another program than most (003, 004, 008, 009) are" in said


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
    assert f"| rps loss\\_10 | 5 | {mean} ±" in tables.markdown(found.tables)
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


@pytest.mark.parametrize(
    ("lines", "base"),
    [
        ([("rps", 0.1), ("reliable", 0.1), ("ddp", 0.1)], "reliable"),
        ([("rps", 0.1), ("rps", 0.0), ("ddp", 0.1)], "rps 0.0"),
        ([("rps", 0.0), ("reliable", 0.1), ("reliable", 0.0)], "reliable 0.0"),
        ([("reliable", 0.0), ("rps", 0.1), ("the baseline", 0.1)], "the baseline"),
        ([("strict: reliable (TCP)", 0.0), ("uncontended", 0.0), ("uncontended, pace=20", 0.0)], "uncontended 0.0"),
        ([("rps", 0.1), ("ddp", 0.1), ("unreliable", 0.1)], "rps"),
        ([("rps", 0.0), ("ddp", 0.0), ("web alone", 0.0)], "rps"),
    ],
)
def test_without_a_word_changes_are_against_the_line_that_readers_would_take(
    tmp_path: Path, lines: list[tuple[str, float]], base: str
) -> None:
    """As it was: against the first, be it 10 % of loss."""
    points = [{"strategy": name, "loss": loss} for name, loss in lines]
    place = made.suite(tmp_path, points, 3, lambda point, seed: {"train_loss": point["loss"] + 0.1 * seed})
    for number, one in enumerate(made.read(place / "suite.json")["plan"]):
        path = place / f"{number:03d}" / "summary.json"
        made.write(path, {**made.read(path), "asked_loss": [one["point"]["loss"]]})
    assert table(gather(read_suite(place)), "change").title.startswith(f"made: change against '{base}")


def test_pooling_keeps_what_is_void_apart(tmp_path: Path) -> None:
    """Tails: one run of a busy machine and one good one; the good one stands alone."""
    place = made.suite(tmp_path, POINTS[:1], 2, losses)
    for run, scale in (("000", 1.0), ("001", 100.0)):
        made.samples(place / run, "step_ms", scale * np.linspace(1, 100, 1000))
    busy = json.loads((place / "001" / "summary.json").read_text())
    busy["columns"]["timing"] = "unknown"
    made.write(place / "001" / "summary.json", busy)
    (row,) = table(gather(read_suite(place)), "tail").rows
    assert [cell.text.split("\n")[0] for cell in row][1:4] == ["1000", "1 of 2", "50.5"]
    busy["columns"] = {"fault": "failed", "timing": "valid", "outcome": "valid"}
    made.write(place / "001" / "summary.json", busy)
    made.write(place / "000" / "summary.json", busy | {"seed": 0})
    one = table(gather(read_suite(place)), "tail")
    assert all("?" in cell.text or cell.text == "-" for cell in one.rows[0][3:])
    assert all(line["mean"] is None and line["void"] == 2 for line in one.tidy)


def test_of_a_busy_machine_only_ratios_stand(tmp_path: Path) -> None:
    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"n": 20, "p50_ms": 5.0 + seed, "vs_tcp": 1.2}

    one = table(content(tmp_path, row=row, marks=["timing: ratios only"]), "results")
    assert all(cell.style == "void" for cell in cells(one, "p50_ms").values())
    assert all(cell.style != "void" for cell in cells(one, "vs_tcp").values())


def test_points_called_alike_stay_apart(tmp_path: Path) -> None:
    points = [{"profile": {"name": "x", "loss": 5}}, {"profile": {"name": "x", "corrupt": 5}}]

    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"train_loss": 1.0 if "loss" in point["profile"] else 9.0}

    found = gather(read_suite(made.suite(tmp_path, points, 3, row)))
    assert {name: cell.text for name, cell in cells(table(found, "results"), "train_loss").items()} == {
        "x 5 (1)": "1",
        "x 5 (2)": "9",
    }


def test_two_rows_called_alike_are_both_shown(tmp_path: Path) -> None:
    place = made.suite(tmp_path, POINTS[:1], 1, losses)
    one = json.loads((place / "000" / "summary.json").read_text())
    one["rows"] = [{"what": "all-reduce", "train_loss": v, "shown": ["what", "train_loss"]} for v in (1.0, 2.0)]
    made.write(place / "000" / "summary.json", one)
    found = cells(table(gather(read_suite(place)), "results"), "train_loss")
    assert sorted(cell.text for cell in found.values()) == ["1", "2"]


def test_survivors_are_counted_and_never_best(tmp_path: Path) -> None:
    """A strategy that is NaN in some seeds is not the best of the rest."""

    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        good = WORSE[point["strategy"]] + 1 + 1e-5 * seed * (1 + len(point["strategy"]))
        return {"train_loss": float("nan") if point["strategy"] == "reliable" and seed < 2 else good}

    found = cells(table(content(tmp_path, row=row), "results"), "train_loss")
    assert "(3 of 5)" in found["reliable loss_10"].text
    assert not [name for name, cell in found.items() if cell.style == "best"]


def test_a_run_that_left_no_row_is_missed(tmp_path: Path) -> None:
    place = made.suite(tmp_path, POINTS, 3, losses)
    one = json.loads((place / "004" / "summary.json").read_text()) | {"rows": [], "verdict": "failed"}
    one["columns"]["outcome"] = "failed"
    made.write(place / "004" / "summary.json", one)
    found = cells(table(gather(read_suite(place)), "results"), "train_loss")
    assert "(2 of 3)" in found["rps loss_10"].text and len(found) == 3


def test_best_is_nobody_while_one_line_could_not_be_tested(tmp_path: Path) -> None:
    place = made.suite(
        tmp_path, POINTS, 5, lambda p, s: {"train_loss": WORSE[p["strategy"]] + 1e-6 * s * len(p["strategy"])}
    )
    for number in range(10, 15):
        one = json.loads((place / f"{number:03d}" / "summary.json").read_text())
        one["columns"]["fault"] = "unknown"
        made.write(place / f"{number:03d}" / "summary.json", one)
    found = cells(table(gather(read_suite(place)), "results"), "train_loss")
    assert not [name for name, cell in found.items() if cell.style == "best"]


@pytest.mark.parametrize("row", [{"p99_ms": 9.0}, {"n": 60.0, "p99_ms": 9.0}, {"n": "60", "p99_ms": 9.0}])
def test_a_percentile_that_does_not_say_its_samples_is_not_printed(row: dict[str, Any], tmp_path: Path) -> None:
    columns = {"fault": "unknown", "timing": "valid", "outcome": "valid"}
    for keys in ({}, {"columns": columns}):
        one = table(content(tmp_path / str(len(keys)), row=lambda p, s: dict(row), **keys), "results")
        assert {cell.text for cell in cells(one, "p99_ms").values()} == {"-"}


def test_names_with_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    points = [{"model": name} for name in ("mlp[tanh]", "a[/b]", "<rank>*", "a$x^$b", "_hidden")]
    found = gather(read_suite(made.suite(tmp_path, points, 2, lambda p, s: {"loss[/x]": 1.0 + s})))
    out = io.StringIO()
    for one in found.tables:
        tables.terminal(Console(file=out, width=80), one)
    assert all(point["model"] in out.getvalue() for point in points) and "loss[/x]" in out.getvalue()
    assert r"\<rank\>\*" in tables.markdown(found.tables)
    assert r"a\$x\textasciicircum{}\$b" in tables.latex(found.tables)


def test_words_and_counts_that_a_row_shows_are_shown(tmp_path: Path) -> None:
    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"tag": "text", "n": 5, "good": 1.0}

    found = table(gather(read_suite(made.suite(tmp_path, [{"a": 1}], 1, row))), "results")
    assert found.head == ["point", "tag", "n", "good"]
    assert [cell.text for cell in found.rows[0][1:3]] == ["text", "5"]


def test_numbers_of_a_program_beside_are_judged_by_what_it_declared() -> None:
    declared = {"web.served": Measure(better="high", column="timing")}
    assert measures.of("web.served", None, declared).column == "timing"
    assert measures.too_few({"web.p99_ms": 1.0, "web.n": 3}, "web.p99_ms") == 1000
    assert measures.too_few({"web.p99_ms": 1.0, "web.n": 3000, "n": 3}, "web.p99_ms") == 0
    assert measures.of("vs_tcp", None, {}).column == "timing", "a command of the user's has what is known of names"


def test_a_line_that_nobody_named_is_asked_for(tmp_path: Path) -> None:
    """As it was: `replay latest` of several lines: "several lines ''"."""
    suite = read_suite(made.suite(tmp_path, POINTS, 1, losses))
    with pytest.raises(UsageError, match="which line of the table. known: 'reliable loss_10', 'rps loss_10'"):
        lines_of_point(suite, "")
    with pytest.raises(UsageError, match="several lines 'loss_10'; known"):
        lines_of_point(suite, "loss_10")


def test_one_difference_is_not_corrected_for_all_of_them(tmp_path: Path) -> None:
    """As it was: "after Holm's correction for all 1 differences here"."""
    two, one = POINTS, POINTS[:2]
    for points, said in ((two, "Holm's correction for all 2 differences"), (one, "* = p < 0.05.")):
        place = made.suite(tmp_path / str(len(points)), points, 3, lambda p, s: {"train_loss": s + len(p["strategy"])})
        found = table(gather(read_suite(place)), "change against")
        assert said in " ".join(found.notes)
    (group, *_) = groups_of(read_suite(made.suite(tmp_path / "c", POINTS[:1], 3, lambda p, s: {"train_loss": 1.0 + s})))
    both = compare.results(compare.lines_of([(group, group)]))
    assert len(both.rows) == 1 and "corrected" not in " ".join(both.notes)


def test_what_comes_of_fewer_steps_is_no_change(tmp_path: Path) -> None:
    """As it was: "perplexity +900 %*" of a line that had trained for 20 of 3000 steps. Times are compared."""
    place = made.suite(tmp_path, POINTS, 5, losses)
    plan = json.loads((place / "suite.json").read_text())
    for one in plan["plan"]:
        steps = 20 if one["point"]["strategy"] == "gradient_averaging" else 3000
        one["experiment"] = {**one["experiment"], "workload": {"options": {"steps": steps}}}
    made.write(place / "suite.json", plan)
    found = gather(read_suite(place))
    change = table(found, "change against")
    assert cells(change, "train_loss")["gradient_averaging loss_10"].text == "-"
    assert cells(change, "ms_step")["gradient_averaging loss_10"].text == "0%"
    assert cells(change, "train_loss")["rps loss_10"].text != "-"
    assert "more or fewer steps than 'reliable loss_10' only times are compared" in " ".join(change.notes)
    assert not any("gradient_averaging" in text and "train loss" in text for text in found.findings)
    assert not any(cell.style == "best" for cell in cells(table(found, "results"), "train_loss").values())


def test_probes_that_no_file_keeps_are_all_shown() -> None:
    """As it was: `net verify` of more than eight rules ended in "more rows in proof.json", which nobody had written."""
    rows = [ProofRow(hook=f"h{number} uplink") for number in range(ROWS_SHOWN + 2)]
    cut, whole = rule_by_rule(rows, title="x"), rule_by_rule(rows, title="x", most=len(rows))
    assert (len(cut.rows), cut.notes) == (ROWS_SHOWN, ["... and 2 more rows in proof.json"])
    assert len(whole.rows) == len(rows) and whole.notes == []


@pytest.mark.parametrize(("seeds", "shown"), [(1, "-"), (3, "95")])
def test_a_percentile_of_few_independent_samples_needs_several_seeds(seeds: int, shown: str, tmp_path: Path) -> None:
    """As it was: 5,000 requests that waited for the same bursts had a p99 of one seed, with an interval of which its
    own row said that nobody knows it."""

    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        known = {"p50_ms": 20.0, "p50_low_ms": 19.0, "p50_high_ms": 21.0}
        return {"n": 5000, "n_independent": 55, **known, "p99_ms": 95.0, "slowdown_p99": 9.5}

    found = table(gather(read_suite(made.suite(tmp_path, [{"a": 1}], seeds, row))), "results")
    (line,) = found.rows
    said = {name: cell.text.split("\n")[0] for name, cell in zip(found.head, line, strict=True)}
    assert said["p99_ms"] == shown and said["p50_ms"] == "20" and (said["slowdown_p99"] == "-") is (seeds == 1)
    assert any("fewer than 1000 independent samples" in note for note in found.notes) is (seeds == 1)


def test_an_exit_is_a_column_where_a_program_ended_otherwise_than_with_0(tmp_path: Path) -> None:
    def ended(code: int) -> Content:
        return content(tmp_path / str(code), 2, lambda point, seed: {"wall_s": 9.0, "exit": code}, own_program=True)

    well = ended(0)
    assert "exit" not in table(well, "results").head and "exit" not in table(well, "change").head
    assert cells(table(ended(-9), "results"), "exit")["rps loss_10"].text == "-9"


def test_of_a_program_of_ones_own_its_tcp_is_said(tmp_path: Path) -> None:
    """As it was: 1 % of loss changed nothing, and nobody said that the machine's TCP was bbr."""

    def notes(folder: Path, **of: Any) -> list[str]:
        row = {"wall_s": 9.0, "tcp_resent_percent": 1.0}
        place = made.suite(folder, POINTS[:2], 1, lambda *_: row, **of)
        plan = made.read(place / "suite.json")
        plan["sessions"][0]["machine"] |= {"congestion_control": "bbr", "congestion_controls": "reno bbr cubic"}
        made.write(place / "suite.json", plan)
        return [note for note in table(gather(read_suite(place)), "results").notes if note.startswith("TCP")]

    slow = "which hardly slows down for a few percent of loss"
    said = f"TCP: bbr, {slow} (also here: reno, cubic), unless the program asks for another."
    assert notes(tmp_path / "own", own_program=True) == [said] and notes(tmp_path / "suite") == []
    assert machine.tcp_in_words({"congestion_control": "cubic"}) == "cubic" and machine.tcp_in_words({}) == ""


def test_a_note_says_which_lines_it_is_about(tmp_path: Path) -> None:
    """As it was: "engine loop; TCP: bbr" and "engine loop" below ten lines, and "too busy" of some of them."""
    place = made.suite(tmp_path, POINTS, 2, losses)
    for number in range(6):
        path = place / f"{number:03d}" / "summary.json"
        one = made.read(path)
        note = "over TCP" if one["point"] == POINTS[0] else "over UDP"
        timing = "unknown" if one["point"] == POINTS[1] else "valid"
        rows = [{**row, "note": note} for row in one["rows"]]
        made.write(path, {**one, "rows": rows, "columns": one["columns"] | {"timing": timing}})
        made.samples(path.parent, "step_ms", np.linspace(1, 100, 100))
    found = gather(read_suite(place))
    notes = table(found, "results").notes
    assert "?: not averaged: the machine was too busy for times (rps loss_10)." in notes
    assert "reliable loss_10: over TCP" in notes and "rps loss_10 and gradient_averaging loss_10: over UDP" in notes
    assert any(note.endswith("too busy for times (rps loss_10).") for note in table(found, "tail").notes)
    assert any("timing is well (rps loss_10 #0 and rps loss_10 #1)" in text for text in found.reasons)


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (["rps clean"], "rps clean"),
        (["rps clean", "rps loss_10"], "rps clean and rps loss_10"),
        (["rps loss_10", "tcp loss_10", "ddp loss_10"], "every line with loss_10"),
        (["rps clean", "rps loss_10", "tcp loss_10", "ddp loss_10"], "every line but tcp clean and ddp clean"),
        (["rps clean", "rps loss_10", "tcp clean", "tcp loss_10", "ddp clean", "ddp loss_10"], "every line"),
    ],
)
def test_lines_are_named_in_few_words(mine: list[str], said: str) -> None:
    every = [f"{who} {what}" for who in ("rps", "tcp", "ddp") for what in ("clean", "loss_10")]
    assert naming.whose(mine, every) == said
    assert naming.whose(["run"], ["run"]) == "" and naming.whose([], every) == ""


def test_a_reason_of_many_lines_says_which() -> None:
    """As it was: "(reliable clean #0 and 7 others alike)"."""
    every = [f"{who} {what}" for who in ("rps", "tcp", "ddp") for what in ("clean", "loss_10")]
    (said,) = naming.said_once([(line, 0, "too late by 3 ms") for line in every if "loss" in line], every)
    assert said == "too late by 3 ms (rps loss_10 #0; alike: every line with loss_10)"
    (said,) = naming.said_once([("rps clean", seed, f"{seed} lost") for seed in range(4)], every)
    assert said == "0 lost (rps clean #0; alike in 3 more seeds)"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("samples_s_worker", "samples\nper s\nof a\nworker"),
        ("steps_s", "steps\nper s"),
        ("ms_step", "ms a\nstep"),
        ("ms_step_mean", "mean\nms a\nstep"),
        ("memory_mb", "memory\nMB"),
        ("tcp_resent_percent", "tcp\nresent\n%"),
        ("target_s", "target\ns"),
        ("validationAccuracy", "validation\nAccuracy"),
        ("validationaccuracy", "validationacc-\nuracy"),
        ("", ""),
    ],
)
def test_a_heading_is_words_with_their_unit(name: str, shown: str) -> None:
    """As it was: "samples", "s", "worker", one below the other, and words cut at the fourteenth letter."""
    assert tables._head(name) == shown


def test_a_table_of_many_columns_fits_eighty_characters_and_loses_none(tmp_path: Path) -> None:
    def wide(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {f"measure_number_{n}_ms": 1234.5 + n + seed for n in range(14)} | {"validationaccuracy": 0.5}

    written = io.StringIO()
    console = Console(file=written, width=80)
    for one in content(tmp_path, 2, wide).tables:
        tables.terminal(console, one)
    text = written.getvalue()
    assert max(map(len, text.splitlines())) <= 80 and text.count("1236") >= 1 and "…" not in text
