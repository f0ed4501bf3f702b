"""`make test-all` is everything there is: no folder of tests, no marker and no test that none of its slices runs."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.bench import again, side_by_side, steady
from tests.bench import all as everything
from tests.shared import ROOT

# Where a test with this marker is run; whatever has another one is run in its folder's slice.
SLICES = {"guest": "guest-full", "tier": "guest-tier", "clock": "guest-clock", "pair": "guest-pair", "quiet": "quiet"}
IN_ITS_FOLDER = {"netns", "training", "gpu", "full", "wallclock"}


def selection(target: str) -> str:
    """What a target of the Makefile gives to pytest -m."""
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None, target
    return str(re.findall(r"-m \"?([\w ]+?)\"?(?: -| tests| \$|$)", recipe[1], re.MULTILINE)[-1])


def test_every_folder_of_tests_is_a_slice() -> None:
    folders = {path.relative_to(ROOT / "tests").parts[:-1] for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders == {(room,) for room in everything.ROOMS}
    assert set(everything.ROOMS) <= set(everything.slices())


def test_every_marker_leads_to_a_slice() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    assert {re.match(r"\w+", one)[0] for one in declared} == set(SLICES) | IN_ITS_FOLDER  # type: ignore[index]
    assert set(SLICES.values()) <= set(everything.slices())
    for marker in ("tier", "clock", "pair"):
        assert selection(everything.GUEST[SLICES[marker]]).split()[0] == marker


def test_what_only_a_stock_kernel_can_run_is_run_in_a_guest(request: pytest.FixtureRequest) -> None:
    """Of the tests that were collected: it has what the whole guest selects, and nothing that it leaves out."""
    words = selection(everything.GUEST["guest-full"])
    wanted, *left_out = [word for word in words.split() if word not in ("and", "not")]
    for item in request.session.items:
        marks = {mark.name for mark in item.iter_markers()}
        if "guest" in marks and not marks & {"tier", "clock", "pair"}:
            assert wanted in marks and not marks & set(left_out), item.nodeid


@pytest.mark.parametrize(
    "states, status", [(["green"], 0), (["green", "unsteady"], 1), (["red", "left"], 1), (["left"], 3)]
)
def test_only_what_is_green_ends_well(states: list[str], status: int) -> None:
    """As it was: a slice with an unsteady test ended with 0."""
    assert everything.status_of([everything.Slice("a", state) for state in states]) == status


def test_runs_of_other_commits_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it was: those from before a mend did."""
    state = tmp_path / "steady.jsonl"
    rows = [{"test": "a", "outcome": "failed"}, {"test": "a", "outcome": "passed", "commit": "new"}]
    state.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert steady.of_commit(state, "new") == rows[1:]
    assert "1 runs of other commits" in capsys.readouterr().out


def test_what_is_missing_is_run_again_and_what_was_skipped_is_not() -> None:
    rows = [{"test": "a", "outcome": "passed"}, {"test": "a", "outcome": "failed"}, {"test": "b", "outcome": "skipped"}]
    assert steady.missing(rows, ["a", "b", "c"], 3) == {"a": 1, "c": 3}


def test_each_round_has_what_is_still_wanted_once(request: pytest.FixtureRequest) -> None:
    """And every time as another item, since pytest takes down only what the next one does not share."""
    one = request.node
    found = list(again.rounds([one], {one.nodeid: 3, "elsewhere": 9}, most=2))
    assert [item.nodeid for item in found] == [one.nodeid] * 2 and found[0] is one is not found[1]
    assert list(again.rounds([one], {"elsewhere": 1}, most=2)) == []


def test_a_plugin_is_named_where_pytest_looks_for_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: in the file of arguments, which is read after plugins were loaded; each test was run once a call."""
    asked: list[str] = []

    def popen(command: list[str], **_: object) -> subprocess.Popen[bytes]:
        asked.extend(command)
        return subprocess.Popen(["true"])

    monkeypatch.setattr(side_by_side, "subprocess", SimpleNamespace(Popen=popen))
    assert side_by_side.run_tests(["a"], count=1, log=tmp_path / "log", more=["-p", "tests.bench.again"]) == 0
    assert "tests.bench.again" in asked
