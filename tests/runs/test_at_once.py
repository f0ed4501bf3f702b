"""A campaign's runs several at once (tests/bench/at_once.py): what is made next, and one folder a suite of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lossbench.results import index
from tests.bench import at_once
from tests.bench.at_once import Queue, Task
from tests.shared import ROOT

CAMPAIGN = """why = "t"
set = ["probe.packets=2000", "workload.options.seconds=0.2"]
[[run]]
suite = "proof"
seeds = 3
"""


def queue(*tasks: Task, ranks: int = 100, seconds: float = 1000.0) -> Queue:
    return Queue(list(tasks), ranks, time.monotonic() + seconds)


def test_what_is_too_wide_beside_the_others_waits_and_what_is_not_goes_first() -> None:
    wide, narrow = Task(part=0, number=1, ranks=16), Task(part=0, number=2, ranks=4)
    found = queue(Task(part=0, number=0, ranks=16), wide, narrow, ranks=24)
    first = found.next()
    assert first is not None and first.number == 0
    assert found.next() is narrow
    found.done(first, 1.0)
    assert found.next() is wide


def test_a_run_wider_than_allowed_is_made_alone() -> None:
    assert queue(Task(part=0, number=0, ranks=16), ranks=4).next() is not None


def test_a_run_that_is_not_expected_to_fit_is_not_begun_and_one_of_another_suite_is() -> None:
    found = queue(*(Task(part=0, number=n) for n in range(3)), Task(part=1, number=0), seconds=50.0)
    first = found.next()
    assert first is not None
    found.done(first, 60.0)
    other = found.next()
    assert other is not None and other.part == 1
    assert found.next() is None and queue(Task(part=0, number=0), seconds=-1.0).next() is None


def test_cores_are_shared_out_only_when_asked_and_when_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_once.os, "sched_getaffinity", lambda _: set(range(16)))
    assert at_once.shares(3, own=True) == [set(range(5)), set(range(5, 10)), set(range(10, 15))]
    assert at_once.shares(2, own=False) == [set(range(16))] * 2
    assert at_once.shares(20, own=True) == [set(range(16))] * 20


@pytest.mark.netns
def test_runs_side_by_side_are_one_suite_and_what_is_left_is_made_by_the_same_command(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "out"
    file.write_text(CAMPAIGN)
    command = [sys.executable, str(ROOT / "tests/bench/at_once.py"), str(file), "--at-once", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert "all is done" in done.stdout, done
    (found,), _ = index.scan(out)
    kept = json.loads((found.folder / "summary.json").read_text())
    assert sorted(one["seed"] for one in kept["summary"]) == [0, 1, 2]
    (found.folder / "001" / "summary.json").unlink()
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    made = [line for line in again.stdout.splitlines() if line.startswith("proof 1")]
    assert len(made) == 1 and "proof 0" not in again.stdout and "all is done" in again.stdout, again
