"""How busy the machine is, as far as this run may use it: cores by affinity, control groups that hold it back."""

from __future__ import annotations

import os
import time
from pathlib import Path

from lossbench.proof.watched import Quiet


class Load:
    """`begin` when the clock starts, `sample` several times a second. See ground.Gauge."""

    def __init__(self) -> None:
        self._cpus = os.sched_getaffinity(0)
        self._before = (0, 0)
        self._held_us, self._began = 0, 0.0
        self.busy: list[float] = []

    @property
    def cores(self) -> int:
        return len(self._cpus)

    def begin(self) -> None:
        self._before, self._held_us, self._began = _cpu_times(self._cpus), _throttled_us(), time.monotonic()

    def sample(self) -> None:
        now = _cpu_times(self._cpus)
        total, idle = now[0] - self._before[0], now[1] - self._before[1]
        if total > 0:
            self.busy.append(1 - idle / total)
            self._before = now

    def throttled(self) -> float:
        """Share of the time since `begin` in which a control group held us back."""
        passed = time.monotonic() - self._began
        return (_throttled_us() - self._held_us) / 1e6 / passed if self._began and passed > 0 else 0.0

    def into(self, quiet: Quiet) -> None:
        quiet.cpu_busy, quiet.throttled, quiet.cores = self.busy, self.throttled(), self.cores


def _cpu_times(cpus: set[int]) -> tuple[int, int]:
    """(all, idle) ticks of these cores; time stolen by a hypervisor counts as busy."""
    names = {f"cpu{number}" for number in cpus}
    total = idle = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *rest = line.split()
        if name in names:
            fields = [int(field) for field in rest]
            total, idle = total + sum(fields[:8]), idle + fields[3] + fields[4]
    return total, idle


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
