"""How busy the machine is, as far as this run may use it: cores by affinity, threads that wait for one, a hypervisor or
control groups that hold it back, what stands still altogether."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from operator import sub
from pathlib import Path

from lossbench.proof.watched import Quiet
from lossbench.runs.launch.standstill import Standstill
from lossbench.runs.launch.waits import Waits

Ticks = dict[int, tuple[int, int, int]]  # by core: all, idle, stolen by a hypervisor (which is no idling)


class Load:
    """`begin` when the clock starts, `sample` several times a second. See ground.Gauge. `ours`: the run's processes."""

    def __init__(self, ours: Callable[[], Iterable[int]] = tuple) -> None:
        self._cpus = os.sched_getaffinity(0)
        self._first: Ticks = {}
        self._before: Ticks = {}
        self._held_us, self._began = 0, 0.0
        self._waits, self._standstill = Waits(ours), Standstill()
        self.busy: list[float] = []
        self.busiest: list[float] = []

    @property
    def cores(self) -> int:
        return len(self._cpus)

    def begin(self) -> None:
        self._before, self._held_us, self._began = _cpu_times(self._cpus), _throttled_us(), time.monotonic()
        self._first = self._before
        self._waits.begin()
        self._standstill.begin(self._waits.unseen.group)

    def sample(self) -> None:
        self._waits.sample()
        self._standstill.sample(self._waits.processes)
        now = _cpu_times(self._cpus)
        grown = [tuple(map(sub, now[core], self._before[core])) for core in now if core in self._before]
        passed = [one for one in grown if one[0] > 0]
        if passed:
            self.busy.append(1 - sum(idle for _, idle, _ in passed) / sum(ticks for ticks, _, _ in passed))
            self.busiest.append(max(1 - idle / ticks for ticks, idle, _ in passed))
            self._before = now

    @property
    def stolen(self) -> list[float]:
        """Of each core, over all the time: in a quarter of a second three ticks are a tenth."""
        grown = [tuple(map(sub, now, self._first[core])) for core, now in self._before.items() if core in self._first]
        return [stolen / ticks for ticks, _, stolen in grown if ticks > 0]

    def throttled(self) -> float:
        """Share of the time since `begin` in which a control group held us back."""
        passed = time.monotonic() - self._began
        return (_throttled_us() - self._held_us) / 1e6 / passed if self._began and passed > 0 else 0.0

    def into(self, quiet: Quiet) -> None:
        quiet.cpu_busy, quiet.busiest, quiet.stolen = self.busy, self.busiest, self.stolen
        quiet.waited, quiet.each_ms = self._waits.waited, self._waits.each_ms()
        quiet.unseen_waits, quiet.own_cores = self._waits.unseen.times(), self._waits.unseen.cores()
        quiet.throttled, quiet.cores = self.throttled(), self.cores
        self._standstill.into(quiet)


def _cpu_times(cpus: set[int]) -> Ticks:
    names = {f"cpu{number}": number for number in cpus}
    out: Ticks = {}
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *rest = line.split()
        if name in names:
            fields = [int(field) for field in rest]
            out[names[name]] = (sum(fields[:8]), fields[3] + fields[4], fields[7])
    return out


def _throttled_us() -> int:
    """Of this process's control group and all above it; 0 where there is none that limits."""
    out = 0
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup", controllers)
        for folder in (root / path.lstrip("/"), *(root / path.lstrip("/")).parents):
            out += _of_group(folder / "cpu.stat")
            if folder == root:
                break
    return out


def _of_group(path: Path) -> int:
    try:
        numbers = dict(line.split(maxsplit=1) for line in path.read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):
        return 0
    return int(numbers.get("throttled_usec", 0)) or int(numbers.get("throttled_time", 0)) // 1000
