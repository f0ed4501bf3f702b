"""What a run may use of the machine, and whether something held it back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lossbench.net.host import cgroups
from lossbench.proof.judge import judge_timing
from lossbench.proof.verdict import Status
from lossbench.proof.watched import Quiet
from lossbench.runs import load
from lossbench.runs.launch import unseen, waits
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
    with monkeypatch.context() as here:
        here.setattr(Path, "read_text", lambda *_, **__: stat)
        one, both = load._cpu_times({0}), load._cpu_times({0, 1})
    assert one == {0: (100, 50, 0)} and set(both) == {0, 1}


def test_columns_of_proc_stat_are_those_of_its_manual(monkeypatch: pytest.MonkeyPatch) -> None:
    """user, nice, system, idle, iowait, irq, softirq, steal; what guests had is among the first two already."""
    with monkeypatch.context() as here:  # whoever explains a failure reads files, too
        here.setattr(Path, "read_text", lambda *_, **__: "cpu0 1 2 4 8 16 32 64 128 256 512\n")
        found = load._cpu_times({0})
    assert found == {0: (255, 8 + 16, 128)}


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


CHILDREN = """import os, time
os.sched_setaffinity(0, {core})
while True:  # a request: a child that computes for some milliseconds
    if not (child := os.fork()):
        while time.process_time() < 0.0026:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(0.005)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    path = cgroups.folder(f"test{os.getpid()}")
    if path is None or not cgroups.make(path):
        pytest.skip("no control groups (v2) can be made here")
    yield path
    cgroups.remove(path)


def test_children_of_a_few_milliseconds_are_seen_to_wait_for_a_core(group: Path) -> None:
    """As it was: a program with a child for each request, whose child waited thirty times as long as it computed, was
    valid: no child lived when somebody looked, and the parent hardly waits."""
    if cgroups.waited_us(group) is None:
        pytest.skip("this kernel does not tell how long a group waits")
    core = min(os.sched_getaffinity(0))
    busy = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    hogs = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2)]
    join, command = partial(cgroups.join, cgroups.to_join(group)), [sys.executable, "-c", CHILDREN.format(core={core})]
    program = subprocess.Popen(command, preexec_fn=join)
    try:
        watched, quiet, deadline = load.Load(lambda: [program.pid]), Quiet(cpu_busy=[0.0] * 3), time.monotonic() + 100
        watched.begin()
        while time.monotonic() < deadline and quiet.unseen_waits <= 1.0:
            time.sleep(0.25)
            watched.sample()
            watched.into(quiet)
    finally:
        for one in (program, *hogs):
            one.kill()
            one.wait()
    alone = Quiet(cpu_busy=[0.0] * 3, unseen_waits=quiet.unseen_waits)
    found, _ = judge_timing(alone, late=[], interleaved=False)
    assert found.status == Status.UNKNOWN and "too shortly to be watched" in found.reasons()[0], quiet


Told = tuple[float, int, int, float, float]  # second, CPU time and waiting of the group, of those that were seen


@pytest.mark.parametrize(
    ("told", "times"),
    [
        # every quarter of a second 25 ms of others' CPU; what they wait for it is renewed every other second
        ([(n / 4, 25_000 * n, n // 8 * 200_000, 0.0, 0.0) for n in range(30)], 1.0),
        ([(n / 4, 25_000 * n, n // 8 * 200_000, 0.025, 0.0) for n in range(30)], 0.0),  # that was seen, all of it
        ([(n / 4, 25_000 * n, n // 8 * 200_000, 0.0, 0.025) for n in range(30)], 0.0),  # who was seen, waited for it
        ([(n / 4, 25_000 * n, 900_000 * (n > 2), 0.0, 0.0) for n in range(30)], 0.0),  # before the clock started
        ([(n / 4, 25_000 * n, 0, 0.0, 0.0) for n in range(30)], 0.0),  # nobody waited
        ([(n / 4, 25_000 * n, n // 8 * 800_000, 0.0, 0.0) for n in range(8)], 0.0),  # too short to be told anything
    ],
)
def test_waiting_is_of_the_unseen_as_far_as_nobody_that_was_seen_did_it(
    told: list[Told], times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: list[int] = []
    monkeypatch.setattr(cgroups, "used_us", lambda _: here[0])
    monkeypatch.setattr(cgroups, "waited_us", lambda _: here[1])
    who = unseen.Unseen(lambda: Path("group"))
    here[:] = told[0][1:3]
    who.begin(told[0][0])
    for at, used, waited, seen_used, seen_waited in told[1:]:
        here[:] = used, waited
        who.look(at, seen_used, seen_waited)
    assert who.times() == pytest.approx(times) and who.cores() == pytest.approx(0.1)


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
