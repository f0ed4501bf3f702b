"""Stored results for other programs, and as values in Python."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import polars
import pytest
from rich.console import Console

import lossbench
from lossbench.errors import NotAbleError, UsageError
from lossbench.report.content import gather
from lossbench.report.export import frames, goal, trackers
from lossbench.report.export.handle import Results
from lossbench.results import index, notes
from tests import forked
from tests.forms import forms, full

from . import made

POINTS = [{"strategy": "reliable"}, {"strategy": "rps"}]
STEPS = 12


def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
    return {"accuracy": 0.9 + 0.01 * seed, "ms_step": 5.0 + seed}


def stored(folder: Path) -> Path:
    """As training leaves it: two ranks, steps with their computing times."""
    place = made.suite(folder, POINTS, 2, row, hosts=2)
    for number in range(4):
        for rank in range(2):
            about = {"rank": rank, "time_s": 1e9}
            lines = [{"kind": "begin", "parameters": 1001, **about}]
            lines += [
                {"kind": "step", "step": n, "loss": 2.0 / (1 + n), "compute_ms": 1.5, "optimizer_ms": 0.5, **about}
                for n in range(STEPS)
            ]
            path = place / f"{number:03d}" / "records" / f"rank-{rank}.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return forked.lossbench(*words)


@forms("kind", ["csv", "parquet"])
def test_tables_runs_and_steps_are_files_with_a_number_a_cell(tmp_path: Path, kind: str) -> None:
    place = stored(tmp_path)
    done = command("export", str(place), f"--{kind}", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    read = polars.read_csv if kind == "csv" else polars.read_parquet
    results, runs, steps = (read(tmp_path / "out" / f"{name}.{kind}") for name in ("results", "runs", "steps"))
    assert runs["accuracy"].to_list() == [0.9, 0.91, 0.9, 0.91] and runs["verdict"].to_list() == ["valid"] * 4
    assert results.filter(polars.col("measure") == "accuracy")["mean"][0] == pytest.approx(0.905)
    assert len(steps) == 4 * 2 * STEPS


def test_a_number_that_may_not_be_averaged_says_so_in_its_line(tmp_path: Path) -> None:
    columns = {"fault": "valid", "timing": "unknown", "outcome": "valid"}
    content = gather(index.read_suite(made.suite(tmp_path, POINTS, 1, row, columns=columns)))
    first = frames.frame(content, "runs").to_dicts()[0]
    assert first["ms_step"] == 5.0 and "ms_step: the machine was too busy" in first["void"]


def test_a_run_that_lacks_a_number_takes_none_of_another_seed(tmp_path: Path) -> None:
    """As it was: seed 0 had no accuracy, and was given seed 1's; seed 2 had none."""

    def lacking(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"ms_step": 5.0} | ({"accuracy": 0.9 + 0.01 * seed} if seed else {})

    runs = frames.frame(gather(index.read_suite(made.suite(tmp_path, POINTS[:1], 3, lacking))), "runs")
    assert dict(zip(runs["seed"], runs["accuracy"], strict=True)) == {0: None, 1: 0.91, 2: 0.92}


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX import event_file_writer, proto  # noqa: F401
    from tensorboardX.proto import event_pb2

    content = gather(index.read_suite(stored(tmp_path)))
    assert trackers.tensorboard([content], tmp_path / "logs") == 4
    files = sorted((tmp_path / "logs").rglob("events.out*"))
    assert len({path.parent for path in files}) == 4
    found: dict[str, list[float]] = {}
    raw = files[0].read_bytes()
    while raw:  # TFRecord: length, its checksum, data, its checksum
        length = int.from_bytes(raw[:8], "little")
        event = event_pb2.Event.FromString(raw[12 : 12 + length])
        raw = raw[16 + length :]
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(value.simple_value)
    assert found["loss"] == pytest.approx([2.0 / (1 + n) for n in range(STEPS)])
    assert found["result/accuracy"] == pytest.approx([0.9])


@pytest.mark.parametrize(
    ("columns", "backend", "marks"),
    [
        ({}, "ebpf", ""),
        ({"timing": "unknown"}, "ebpf", ""),
        ({"fault": "unknown"}, "ebpf", ".not-valid"),
        ({"outcome": "failed"}, "ebpf", ".not-valid"),
        ({}, "simulated", ".simulated"),
    ],
)
def test_curves_of_a_run_that_is_not_valid_say_so_where_they_are_drawn(
    tmp_path: Path, columns: dict[str, str], backend: str, marks: str
) -> None:
    """As it was: TensorBoard and W&B drew them beside the others, and `steps` had no word of it."""
    place = stored(tmp_path)
    told = made.read(place / "000" / "summary.json")
    told |= {"columns": {**told["columns"], **columns}, "backend": backend}
    made.write(place / "000" / "summary.json", told)
    content = gather(index.read_suite(place))
    assert trackers._name(content, content.suite.runs[0]).partition("-seed0")[2] == marks
    steps = frames.frame(content, "steps").filter(polars.col("run") == 0).to_dicts()[0]
    assert {name: steps[f"verdict.{name}"] for name in told["columns"]} == told["columns"]
    assert steps["simulated"] is (backend == "simulated")


def test_every_row_of_a_run_is_exported_under_its_name(tmp_path: Path) -> None:
    """As it was: the first row's numbers, and nothing of the other contenders."""
    place = made.suite(tmp_path, POINTS[:1], 1, row)
    told = made.read(place / "000" / "summary.json")
    told["rows"] = [{"contender": name, "ms_step": ms} for name, ms in (("lossy", 1.0), ("gloo", 5.0), ("gloo", 6.0))]
    made.write(place / "000" / "summary.json", told)
    (run,) = index.read_suite(place).runs
    assert trackers._numbers(run) == {"lossy/ms_step": 1.0, "gloo/ms_step": 5.0, "gloo 2/ms_step": 6.0}


def test_a_single_row_needs_no_name(tmp_path: Path) -> None:
    (run, *_) = index.read_suite(made.suite(tmp_path, POINTS, 1, row)).runs
    assert trackers._numbers(run) == {"accuracy": 0.9, "ms_step": 5.0}


@pytest.mark.parametrize(("words", "said"), [(["003"], "rps, seed 1"), ([], "reliable, seed 0")])
def test_a_goal_file_is_of_the_run_whose_folder_was_given(tmp_path: Path, words: list[str], said: str) -> None:
    """As it was: of run 000, whichever folder was given."""
    place = stored(tmp_path)
    done = command("export", str(place.joinpath(*words)), "--goal", str(tmp_path / "steps.goal"))
    assert f"steps of {said}" in done.stdout.replace("\n", " "), done.stdout + done.stderr


@pytest.mark.parametrize(("library", "export"), [("tensorboardX", trackers.tensorboard), ("wandb", trackers.wandb)])
def test_a_file_where_a_folder_should_be_is_said_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, export: Callable[..., int]
) -> None:
    """As it was: FileExistsError, with a traceback."""
    monkeypatch.setitem(sys.modules, library, ModuleType(library))
    (tmp_path / "taken").touch()
    with pytest.raises(NotAbleError, match=r"taken can't be written.*give another name"):
        export([], tmp_path / "taken")


def test_wandb_is_written_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb (pip install wandb)")
    content = gather(index.read_suite(stored(tmp_path)))
    assert trackers.wandb([content], tmp_path / "logs") == 4
    assert len(list((tmp_path / "logs" / "wandb").glob("offline-run-*/*.wandb"))) == 4


def test_a_goal_file_sends_what_is_received_and_computes_what_was_computed(tmp_path: Path) -> None:
    run = index.read_suite(stored(tmp_path)).runs[0]
    assert goal.write(run, tmp_path / "steps.goal") == STEPS
    text = (tmp_path / "steps.goal").read_text()
    assert text.startswith("num_ranks 2\n")
    ranks = re.findall(r"rank (\d) \{\n(.*?)\}", text, re.S)
    messages = {
        (rank, kind): sorted(re.findall(rf"{kind} (\d+)b (?:to|from) (\d) tag (\d+)", body))
        for rank, body in ranks
        for kind in ("send", "recv")
    }
    for mine, other in (("0", "1"), ("1", "0")):
        sent = [(size, tag) for size, _, tag in messages[mine, "send"]]
        assert sent == [(size, tag) for size, _, tag in messages[other, "recv"]] and len(sent) == 2 * STEPS
    assert {int(size) for size, *_ in messages["0", "send"]} == {4 * 500, 4 * 501}
    for _, body in ranks:
        assert sum(map(int, re.findall(r"calc (\d+)", body))) == STEPS * 2_000_000
        labels, needed = set(re.findall(r"^l(\d+):", body, re.M)), set(re.findall(r"requires l(\d+)", body))
        assert needed <= labels


def test_a_run_without_steps_makes_no_goal_file(tmp_path: Path) -> None:
    run = index.read_suite(made.suite(tmp_path, POINTS, 1, row)).runs[0]
    with pytest.raises(UsageError, match="no steps with their computing times"):
        goal.write(run, tmp_path / "x.goal")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("latest",), "nothing to export to; --csv"),
        (("--csv", "x"), "export what?"),
        (("nothing", "--csv", "x"), "no run 'nothing'"),
    ],
)
def test_what_is_missing_is_said_in_a_line(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    stored(tmp_path)
    done = command("export", *words, "--in", str(tmp_path))
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


@full
def test_tags_and_a_note_stay_on_a_result_and_find_it(tmp_path: Path) -> None:
    place = stored(tmp_path)
    assert (
        command("tag", str(place), "baseline", "new-switch", "--note", "before", "--in", str(tmp_path)).returncode == 0
    )
    assert command("tag", str(place), "--remove", "new-switch", "--in", str(tmp_path)).returncode == 0
    assert notes.read(place) == notes.Notes(tags=["baseline"], note="before")
    assert "abc123" in command("report", "--tag", "baseline", "--in", str(tmp_path)).stdout
    assert "abc123" not in command("report", "--tag", "other", "--in", str(tmp_path)).stdout
    wrong = command("tag", str(place), "two words", "--in", str(tmp_path))
    assert wrong.returncode == 2 and "is no tag" in wrong.stderr


def test_a_result_is_a_value_with_tables_pictures_and_words(tmp_path: Path) -> None:
    stored(tmp_path)
    (found,) = lossbench.load("latest", where=tmp_path)
    assert isinstance(found, Results) and found.verdict == "valid" and "4 of 4 runs" in repr(found)
    assert set(found.table("results")["measure"]) == {"accuracy", "ms_step"}
    assert len(found.table("runs")) == 4 and found.plot("convergence")._repr_png_()[:4] == b"\x89PNG"
    assert found.findings[0].startswith("Against reliable, rps takes")
    with pytest.raises(UsageError, match="no picture 'nothing'"):
        found.plot("nothing")
    with pytest.raises(UsageError, match="no table 'nothing'"):
        found.table("nothing")
    with pytest.raises(UsageError, match="nothing for table 'winners'"):  # there is such a one, of other results
        found.table("winners")
    shown = Console(record=True, width=100)
    shown.print(found)
    said = shown.export_text()  # as it was: what came out stood below all tables
    assert said.index(found.findings[0][:30]) < said.index("asked and proven")
    assert "asked and proven" in found._repr_html_()
    assert found.page(tmp_path / "page.html").stat().st_size > 10_000
