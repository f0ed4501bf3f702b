"""Finding results: what is damaged or foreign is named and left out, the rest is reported."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossbench.errors import UsageError
from lossbench.results import index, samples
from tests.forked import lossbench
from tests.report import made

POINTS = [{"loss": 0}, {"loss": 10}]


def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
    return {"train_loss": 1.0 + seed}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two good suites and everything that can be wrong beside them."""
    made.suite(tmp_path, POINTS, 3, row, name="first", run_id="aaaaaa")
    hurt = made.suite(tmp_path, POINTS, 3, row, name="second", run_id="bbbbbb")
    (hurt / "001" / "summary.json").write_text('{"point": {}, "see')
    (hurt / "002" / "summary.json").unlink()
    (hurt / "003" / "summary.json").write_text(json.dumps({"point": {}, "seed": "many", "verdict": "fine"}))
    (hurt / "004" / "samples.parquet").write_bytes(b"PAR1 not really")
    (hurt / "005" / "records" / "rank-0.jsonl").write_bytes(b'\xff\xfe{"kind": "step"\n{"kind":"step","step":1,"lo')
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday" / "photo.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "notes.txt").write_text("mine")
    broken = tmp_path / "20261115-100000_third_cccccc"
    broken.mkdir()
    (broken / "suite.json").write_text("null")
    return tmp_path


def test_good_suites_are_found_and_the_rest_is_named(results: Path) -> None:
    suites, problems = index.scan(results)
    assert [(suite.name, len(suite.runs)) for suite in suites] == [("first", 6), ("second", 3)]
    text = "\n".join([*problems, *(problem for suite in suites for problem in suite.problems)])
    for name in ("holiday", "notes.txt", "cccccc", "bbbbbb/001", "bbbbbb/002", "bbbbbb/003"):
        assert name in text, name


def test_a_report_of_damaged_results_says_what_it_left_out(results: Path) -> None:
    done = lossbench("report", "aaaaaa", "bbbbbb", "--in", str(results), "--html", str(results / "out.html"))
    assert done.returncode == 0, done.stderr
    assert "first: results" in done.stdout and "second: results" in done.stdout
    for name in ("bbbbbb/001", "bbbbbb/002", "bbbbbb/003", "samples.parquet", "holiday"):
        assert name in done.stderr, name
    assert "bbbbbb/003" in (results / "out.html").read_text()


def test_the_list_filters(results: Path) -> None:
    assert "aaaaaa" in lossbench("report", "--in", str(results)).stdout
    listed = lossbench("report", "--in", str(results), "--suite", "second").stdout
    assert "bbbbbb" in listed and "aaaaaa" not in listed and "3 of 6" in listed
    assert "no results that fit" in lossbench("report", "--in", str(results), "--verdict", "failed").stdout
    step = re.search(
        r"next: lossbench (.*) --html", lossbench("report", "--in", str(results)).stdout.replace("\n", " ")
    )
    assert step and lossbench(*shlex.split(step[1])).returncode == 0, "as it was: without --in it found nothing"
    wrong = lossbench("report", "--in", str(results), "--since", "yesterday")
    assert wrong.returncode == 2 and "not a date" in wrong.stderr


@pytest.mark.parametrize(
    ("word", "found"), [("latest", "second"), ("first", "first"), ("aaaaaa", "first"), ("ddddddd", "first second")]
)
def test_runs_are_picked_by_id_suite_commit_or_as_the_latest(word: str, found: str, results: Path) -> None:
    assert " ".join(suite.name for suite in index.pick([word], results)[0]) == found


def test_a_word_means_the_same_in_a_suites_own_folder(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: there, every word meant that suite."""
    here = results / "20261115-100000_first_aaaaaa"
    monkeypatch.chdir(here)
    for word in ("bbbbbb", "second", "latest"):
        assert [one.id for one in index.pick([word], results)[0]] == ["bbbbbb"]
    assert [one.id for one in index.pick(["."], results)[0]] == ["aaaaaa"]
    assert [one.id for one in index.pick(["000"], results)[0]] == ["aaaaaa"]


def test_an_id_is_meant_before_a_suite_of_that_name(tmp_path: Path) -> None:
    made.suite(tmp_path, POINTS, 1, row, name="aaaaaa", run_id="bbbbbb")
    made.suite(tmp_path, POINTS, 1, row, name="other", run_id="aaaaaa")
    assert [one.name for one in index.pick(["aaaaaa"], tmp_path)[0]] == ["other"]


def test_a_tag_goes_on_no_copy_by_chance(tmp_path: Path) -> None:
    for place in ("one", "two"):
        made.suite(tmp_path / place, POINTS, 1, row).rename(tmp_path / f"{place}-copy")
        (tmp_path / place).rmdir()
    done = lossbench("tag", "abc123", "mine", "--in", str(tmp_path))
    assert done.returncode == 2 and "names 2 results" in done.stderr and "one-copy" in done.stderr


def test_a_run_that_is_not_there_is_one_line(results: Path) -> None:
    done = lossbench("report", "nope", "--in", str(results))
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1 and "no run 'nope'" in done.stderr
    with pytest.raises(UsageError, match="no such folder; make results first"):
        index.scan(results / "elsewhere")


def test_long_sample_sets_become_parquet_and_short_ones_stay(tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    numbers = np.random.default_rng(0).exponential(size=samples.LONG)
    for folder, count in ((short, 100), (long, samples.LONG)):
        folder.mkdir()
        made.samples(folder, "get_ms", numbers[:count], rank=1)
        made.samples(folder, "step_ms", numbers[:3], rank=0)
    assert (samples.pack(short), samples.pack(long)) == (False, True)
    assert (long / samples.FILE).exists() and not list((long / "samples").glob("*.f64"))
    for folder, count in ((short, 100), (long, samples.LONG)):
        found, problems = samples.read(folder)
        assert not problems and set(found) == {"get_ms", "step_ms"}
        np.testing.assert_array_equal(found["get_ms"].events(), numbers[:count])


def test_half_a_sample_of_a_killed_rank_is_passed_over(tmp_path: Path) -> None:
    made.samples(tmp_path, "get_ms", [1.0, 2.0])
    with open(tmp_path / "samples" / "get_ms.rank-0.f64", "ab") as file:
        file.write(b"\x01\x02\x03")
    assert samples.read(tmp_path)[0]["get_ms"].events().tolist() == [1.0, 2.0]


ODD: list[tuple[str, Any]] = [
    ("summary.json", {"rows": [{"strategy": "s", "x": 1, "shown": None}]}),
    ("summary.json", {"rows": [{"strategy": "s", "x": 10**400, "shown": 5}]}),
    ("proof.json", {"rows": [{"burst_seen": "x", "burst_counts": ["a"], "burst_shares": [1]}]}),
    ("proof.json", {"rows": 7}),
    ("manifest.json", {"experiment": None, "profiles": [1]}),
]


@pytest.mark.parametrize(("name", "content"), ODD, ids=range(len(ODD)))
def test_odd_contents_never_end_a_report(name: str, content: Any, tmp_path: Path) -> None:
    place = made.suite(tmp_path, POINTS, 2, row)
    old = json.loads((place / "001" / name).read_text()) if (place / "001" / name).exists() else {}
    made.write(place / "001" / name, {**old, **content})
    done = lossbench("report", "made", "--in", str(tmp_path), "--html", str(tmp_path / "out.html"))
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "made: results" in done.stdout


def test_damage_beside_the_summary_is_named_on_the_page_too(tmp_path: Path) -> None:
    place = made.suite(tmp_path, POINTS, 2, row)
    (place / "000" / "proof.json").write_text("{")
    (place / "001" / "records" / "rank-0.jsonl").write_text('{"kind":"step","step":0,"loss":1.0}\ngarbage\n')
    (place / "002" / "samples.parquet").write_bytes(b"no")
    done = lossbench("report", "made", "--in", str(tmp_path), "--html", str(tmp_path / "out.html"))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out.html").read_text()
    for words in ("000/proof.json: damaged", "rank-0.jsonl: 1 damaged lines", "002/samples.parquet: damaged"):
        assert words in text, words


def test_a_later_format_is_refused_not_misread(tmp_path: Path) -> None:
    place = made.suite(tmp_path, POINTS, 1, row)
    made.write(place / "suite.json", json.loads((place / "suite.json").read_text()) | {"format": 99})
    _, problems = index.scan(tmp_path)
    assert "format" in problems[0] and "left out" in problems[0]


def test_a_run_of_another_point_is_not_taken_for_the_planned_one(tmp_path: Path) -> None:
    place = made.suite(tmp_path, POINTS, 2, row)
    (place / "003" / "summary.json").write_bytes((place / "000" / "summary.json").read_bytes())
    suite = index.read_suite(place)
    assert len(suite.runs) == 3 and "another point or seed" in suite.problems[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--html", "x.html"], "which results?"),
        (["made", "--suite", "x"], "are for the list"),
        (["made", "--html", "."], "is a folder"),
        (["made", "--plots", __file__], "is a file"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options: list[str], words: str, tmp_path: Path) -> None:
    made.suite(tmp_path, POINTS, 1, row)
    done = lossbench("report", *options, "--in", str(tmp_path))
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_days_and_commits_are_matched_as_people_write_them(tmp_path: Path) -> None:
    made.suite(tmp_path, POINTS, 1, row)
    assert "abc123" in lossbench("report", "--in", str(tmp_path), "--since", "2026-11-9").stdout
    assert "abc123" in lossbench("report", "--in", str(tmp_path), "--commit", "d" * 40).stdout
