"""What stood still while a workload ran, other than for a core: disks, memory, the machine, its wall clock."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lossbench.proof.judge import judge_timing
from lossbench.proof.verdict import Status
from lossbench.proof.watched import Quiet
from lossbench.runs import load
from lossbench.runs.lab import crew
from lossbench.runs.launch import standstill
from lossbench.runs.launch.standstill import Clocks, Standstill, Totals

S = 10**9


def said(**more: Any) -> tuple[Status, str]:
    quiet = Quiet(**{"cpu_busy": [0.1] * 10, "late_ms": [0.1] * 10, **more})
    found, _ = judge_timing(quiet, late=[], interleaved=True)
    return found.status, " ".join(found.reasons())


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ({"stalled": {"io": 0.3, "memory": 0.0}}, "the run's programs stood still for disks in 30% of the time"),
        ({"stalled": {"io": 0.0, "memory": 0.11}}, "the run's programs stood still for memory in 11%"),
        ({"suspended_s": 3.0}, "the machine was suspended for 3 s"),
        ({"clock_set_s": -7200.0}, "the wall clock was set by -7.2e+03 s"),
        ({"clock_set_s": 0.06}, "the wall clock was set by +0.06 s"),
    ],
)
def test_what_stood_still_voids_times_also_of_sides_in_turn(seen: dict[str, Any], text: str) -> None:
    """As it was: valid, whatever it was but a core."""
    status, words = said(**seen)
    assert status == Status.UNKNOWN and text in words


@pytest.mark.parametrize(
    "seen",
    [
        {"stalled": {"io": 0.09, "memory": 0.1}},
        {"stalled": {}},  # a kernel without PSI
        {"watched_s": 3600.0, "clock_set_s": 1.8, "suspended_s": 0.001},  # slewed for an hour
        {"clock_set_s": -0.04},
    ],
)
def test_a_little_of_it_and_a_slewed_clock_void_nothing(seen: dict[str, Any]) -> None:
    assert said(**seen)[0] == Status.VALID


def test_what_programs_of_anybodys_waited_for_is_said_and_voids_nothing() -> None:
    """Without a group of its own a run beside somebody's backup had no times."""
    status, words = said(stalled={"io": 0.6}, stalled_alone=False)
    assert status == Status.VALID and "whosever they are, stood still for disks in 60% of the time" in words


def test_gpus_that_were_held_are_said_to_be_nobodys_concern() -> None:
    assert said(gpus=True) == (Status.VALID, said()[1] + "; GPUs were used: how busy they were nobody watched")


def told(*marks: tuple[float, Totals]) -> dict[str, float]:
    who = Standstill()
    who._before = marks[0][1]
    for at, totals in marks[1:]:
        who.look(at, totals)
    return who.shares()


def of(io_full: int, memory_full: int = 0) -> Totals:
    return (io_full, io_full), (memory_full, memory_full)


@pytest.mark.parametrize(
    ("marks", "shares"),
    [
        # renewed every other second, half a second of disks in each
        ([(n / 4, of(n // 8 * 500_000)) for n in range(41)], {"io": 0.25, "memory": 0.0}),
        # programs are read from a cold disk for three seconds, and then nothing is
        ([(n / 4, of(min(n // 8 * 2_000_000, 3_000_000))) for n in range(101)], {"io": 0.0, "memory": 0.0}),
        # all of it before the clock started, as the kernel tells later
        ([(n / 4, of(1_900_000 * (n > 3), 7)) for n in range(41)], {"io": 0.0, "memory": 0.0}),
        ([(n / 4, of(0)) for n in range(41)], {"io": 0.0, "memory": 0.0}),  # nobody waited: nothing ever changed
        ([(n / 4, of(n * 900_000)) for n in range(4)], {}),  # too short to be told anything
        ([(n / 4, of(n * 900_000) if n < 20 else ()) for n in range(41)], {"io": 1.0, "memory": 0.0}),  # it went away
        ([(n / 4, ()) for n in range(41)], {}),  # a kernel that does not tell
    ],
)
def test_what_counts_is_what_was_stalled_between_two_moments_at_which_the_kernel_said_it_anew(
    marks: list[tuple[float, Totals]], shares: dict[str, float]
) -> None:
    assert told(*marks) == pytest.approx(shares)


def test_the_runs_own_group_is_asked_and_without_one_the_machine(tmp_path: Path, monkeypatch: Any) -> None:
    """Files as kernels have them; none of them breaks anything where it is missing, off or older."""
    line = "avg10=0.00 avg60=0.00 avg300=0.00 total="
    for kind, full in (("io", 5), ("memory", 7)):
        (tmp_path / kind).write_text(f"some {line}9\nfull {line}{full}\n")
        (tmp_path / f"{kind}.pressure").write_text(f"some {line}90\nfull {line}{full}0\n")
    monkeypatch.setattr(standstill, "MACHINE", tmp_path)
    assert standstill.totals(None) == ((9, 5), (9, 7))
    assert standstill.totals(tmp_path) == ((90, 50), (90, 70))
    for text in ("", f"some {line}9\n"):
        (tmp_path / "io").write_text(text)
        assert standstill.totals(None) == ()
    assert standstill.totals(tmp_path / "none") == ()


def test_suspend_and_a_set_clock_are_told_apart(monkeypatch: Any) -> None:
    """The wall clock goes on in suspend."""
    read = iter([Clocks(5 * S, 100 * S, 1000 * S), Clocks(65 * S, 103 * S, 1001 * S)])
    monkeypatch.setattr(standstill, "clocks", lambda: next(read))
    who, quiet = Standstill(), Quiet()
    who.begin(None)
    who.into(quiet)
    assert (quiet.watched_s, quiet.suspended_s, quiet.clock_set_s) == (60.0, 3.0, -2.0)


def test_clocks_between_which_somebody_else_ran_are_read_once_more(monkeypatch: Any) -> None:
    """A tick of 100 ms between two of them looked like a clock that was set."""
    monotonic, others = iter([0, 100_000_000, 200_000_000, 200_000_900]), iter([100_000_000, 7, 200_000_300, 9])
    known = {standstill.time.CLOCK_MONOTONIC: monotonic}
    monkeypatch.setattr(standstill.time, "clock_gettime_ns", lambda which: next(known.get(which, others)))
    assert standstill.clocks() == Clocks(200_000_000, 300, 9 - 200_000_000)


def test_a_load_tells_all_of_it_and_so_does_a_labs_machine(monkeypatch: Any) -> None:
    read = iter([Clocks(S, 0, 0), Clocks(4 * S, 2 * S, 2 * S)])
    monkeypatch.setattr(standstill, "clocks", lambda: next(read))
    watched, quiet = load.Load(), Quiet()
    watched.begin()
    watched.sample()
    watched.into(quiet)
    assert (quiet.watched_s, quiet.suspended_s) == (3.0, 2.0)
    assert {"stalled", "stalled_alone", "watched_s", "suspended_s", "clock_set_s", "gpus"} <= set(crew.SAID)


def test_whoever_holds_a_gpu_is_known_by_its_open_files(tmp_path: Path, monkeypatch: Any) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    monkeypatch.setattr(standstill, "GPUS", (str(device),))
    assert not standstill._holds_gpu(os.getpid())
    with device.open():
        assert standstill._holds_gpu(os.getpid())
    assert not standstill._holds_gpu(2**22 + 1)
