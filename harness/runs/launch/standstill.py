"""What stands still while a workload runs: programs that wait for disks or memory (PSI), the machine (suspend), its
wall clock (set, not slewed). And whether the run's programs hold GPUs, which nobody watches."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lossbench.proof.watched import Quiet
from lossbench.runs.launch.unseen import RENEWED_S, SHORTEST_S

MACHINE = Path("/proc/pressure")
KINDS = ("io", "memory")
CLOCK_TRIES, TOGETHER_NS = 9, 200_000  # clocks are read one after the other; as if at once
GPUS = ("/dev/nvidia", "/dev/kfd")
GPU_NODES = ("/dev/nvidiactl", "/dev/kfd")
GPU_LOOK_S = 2.0

Totals = tuple[tuple[int, int], ...]  # by kind: how long some stood still and how long all did, us


class Clocks(NamedTuple):
    """In ns: the one that stands still in suspend, and what the others are ahead of it."""

    at: int
    boot: int
    wall: int


class Standstill:
    """`begin` when the clock starts, `sample` several times a second, `into` at the end."""

    def __init__(self) -> None:
        self._group: Path | None = None
        self._began = Clocks(0, 0, 0)
        self._before: Totals = ()
        self._marks: list[tuple[float, Totals]] = []  # when the kernel renewed them: twice, and the last time
        self._since = self._next_gpu = 0.0
        self._can_hold = False
        self.gpus = False

    def begin(self, group: Path | None) -> None:
        """`group`: the run's own, if it has one."""
        self._began, self._group = clocks(), group
        self._before, self._marks, self._since = totals(group), [], time.monotonic()
        self._can_hold = any(Path(node).exists() for node in GPU_NODES)

    def sample(self, processes: Iterable[int]) -> None:
        self.look(time.monotonic(), totals(self._group))
        if self._can_hold and not self.gpus and time.monotonic() >= self._next_gpu:
            self.gpus = any(_holds_gpu(process) for process in processes)
            self._next_gpu = time.monotonic() + GPU_LOOK_S

    def look(self, at: float, now: Totals) -> None:
        """What they say is up to two seconds old, and of the time before the workload then: what counts is between two
        moments at which it was new."""
        if not now or not self._before:
            self._before = ()
            return
        last = self._marks[-1][0] if self._marks else self._since
        if now != self._before or at - last >= RENEWED_S:
            self._marks = [*self._marks[:2], (at, now)]
        self._before = now

    def shares(self) -> dict[str, float]:
        """Between the second time and the last: in what comes before programs are still read from disk."""
        if len(self._marks) < 3 or self._marks[2][0] - self._marks[1][0] < SHORTEST_S:
            return {}
        _, (first, before), (last, after) = self._marks
        return {
            kind: min(1.0, (new[1] - old[1]) / 1e6 / (last - first))
            for kind, old, new in zip(KINDS, before, after, strict=True)
        }

    def into(self, quiet: Quiet) -> None:
        quiet.stalled, quiet.stalled_alone, quiet.gpus = self.shares(), self._group is not None, self.gpus
        if self._began.at:
            now = clocks()
            quiet.watched_s = (now.at - self._began.at) / 1e9
            quiet.suspended_s = (now.boot - self._began.boot) / 1e9
            quiet.clock_set_s = (now.wall - self._began.wall) / 1e9 - quiet.suspended_s  # it goes on in suspend


def clocks() -> Clocks:
    """Read so that nothing came in between, or as little as could be had."""
    best, apart = Clocks(0, 0, 0), -1
    for _ in range(CLOCK_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        boot, wall = time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.clock_gettime_ns(time.CLOCK_REALTIME)
        took = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - before
        if apart < 0 or took < apart:
            best, apart = Clocks(before, boot - before, wall - before), took
        if apart < TOGETHER_NS:
            break
    return best


def totals(group: Path | None) -> Totals:
    """Empty where the kernel does not tell."""
    files = [group / f"{kind}.pressure" if group is not None else MACHINE / kind for kind in KINDS]
    try:
        return tuple(_totals(file.read_text(encoding="ascii")) for file in files)
    except (OSError, ValueError, KeyError):  # PSI is compiled out, or off (EOPNOTSUPP)
        return ()


def _totals(text: str) -> tuple[int, int]:
    found = {line.split()[0]: int(line.rpartition("total=")[2]) for line in text.splitlines()}
    return found["some"], found["full"]


def _holds_gpu(process: int) -> bool:
    with suppress(OSError):  # it has ended, or its files have meanwhile
        return any(str(one.readlink()).startswith(GPUS) for one in Path(f"/proc/{process}/fd").iterdir())
    return False
