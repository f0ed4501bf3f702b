"""What a run may use of the machine, and whether something held it back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lossbench.proof.judge import judge_timing
from lossbench.proof.verdict import Status
from lossbench.proof.watched import Quiet
from lossbench.runs import load
from lossbench.runs.launch import waits
from lossbench.runs.launch.waits import Account


def test_what_starting_up_took_is_not_the_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sample contained everything since the watch was made: seconds of imports."""
    times = iter([{0: (1000, 0, 0)}, {0: (1100, 90, 0)}, {0: (1200, 140, 0)}])
    monkeypatch.setattr(load, "_cpu_times", lambda _: next(times))
    watched = load.Load()
    watched.begin()
    watched.sample()
    watched.sample()
    assert watched.busy == pytest.approx([0.1, 0.5])


def test_only_cores_that_may_be_used_count(monkeypatch: pytest.MonkeyPatch) -> None:
    stat = (
        "cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 50 0 0 50 0 0 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\ncpu10 7 0 0 0 0 0 0 0 0 0\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: stat)
    assert load._cpu_times({0}) == {0: (100, 50, 0)} and set(load._cpu_times({0, 1})) == {0, 1}


def test_one_full_core_and_a_stolen_one_are_seen_beside_an_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: the sum of all cores, so that one full core of two was half a machine."""
    times = iter([{0: (0, 0, 0), 1: (0, 0, 0)}, {0: (100, 0, 30), 1: (100, 100, 0)}])
    monkeypatch.setattr(load, "_cpu_times", lambda _: next(times))
    watched = load.Load()
    watched.begin()
    watched.sample()
    assert (watched.busy, watched.busiest, watched.stolen) == ([0.5], [1.0], [0.3, 0.0])


MS, SECOND = 10**6, 10**9


@pytest.mark.parametrize(
    ("one", "share", "each_ms"),
    [
        (Account(SECOND, 0, 9), 0.0, 0.0),  # a core of its own
        (Account(SECOND // 2, SECOND // 2, 100_000), 0.0, 0.0),  # takes turns, microseconds at a time
        (Account(SECOND // 2, SECOND // 2, 200), 0.5, 0.0),  # shares its core with somebody who computes
        (Account(MS, 80 * MS, 20), 0.08, 4.0),  # seldom runs, and waits each time
        (Account(MS, 8 * MS, 2), 0.008, 0.0),  # twice is not often
    ],
)
def test_what_counts_is_waiting_for_a_core_and_not_using_it(one: Account, share: float, each_ms: float) -> None:
    assert waits.longest_waiter({1: one, 2: Account()}, 1.0) == pytest.approx(share)
    assert waits.slowest_start({1: one, 2: Account()}) == pytest.approx(each_ms, rel=0.01)


def test_a_program_on_a_core_that_others_fill_is_seen_to_wait() -> None:
    """Also where it is a child of the one that was started; the other core idles, or not."""
    core = min(os.sched_getaffinity(0))
    busy = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    hogs = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(3)]
    program = subprocess.Popen([sys.executable, "-c", parent], start_new_session=True)
    try:
        watched = load.Load(lambda: [program.pid])
        watched.begin()
        quiet, said, deadline = Quiet(), "", time.monotonic() + 60
        while time.monotonic() < deadline and "waited" not in said:
            time.sleep(0.25)
            watched.sample()
            watched.into(quiet)
            found, _ = judge_timing(quiet, late=[], interleaved=False)
            said = " ".join(found.reasons())
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        for one in (program, *hogs):
            one.kill()
            one.wait()
    assert found.status == Status.UNKNOWN and "waited" in said, quiet


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("nr_throttled 3\nthrottled_usec 2500\n", 2500), ("throttled_time 7000000\n", 7000), ("nothing\n", 0), ("", 0)],
)
def test_both_kinds_of_control_groups_tell_how_long_they_held_back(
    text: str, microseconds: int, tmp_path: Path
) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert load._of_group(tmp_path / "cpu.stat") == microseconds
    assert load._of_group(tmp_path / "none") == 0
