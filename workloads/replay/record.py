"""Records when its host sends: beside a training run, one of its hosts counts the bytes that leave it, a thousand times
a second; what comes of it (recording.json in the run's folder) can be replayed.

Options: every_ms.

    lossbench run record-exchange
    lossbench run colocation --set workload.options.recording=results/runs/.../recording.json
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from lossbench.contract import Door
from lossbench.workloads.errors import OptionError, status_of

DEVICES = "/proc/self/net/dev"
WRITE_EVERY = 250  # samples


class Watch:
    def __init__(self, door: Door) -> None:
        self.door, self.ended = door, False
        self.interface = (door.interface or "eth0").encode() + b":"
        self.every_s = float(door.options.get("every_ms", 1.0)) / 1000
        if self.every_s <= 0:
            raise OptionError("replay.record: every_ms must be above 0")
        signal.signal(signal.SIGTERM, self._told)

    def _told(self, *_: Any) -> None:
        self.ended = True

    def run(self) -> None:
        if not Path(DEVICES).exists():
            raise OptionError(f"replay.record: there is no {DEVICES}")
        file = os.open(DEVICES, os.O_RDONLY)
        self._sent_bytes(file)  # says at once if there is no such interface
        self.door.ready()
        found: list[tuple[float, float]] = []
        while not self.ended:
            found.append((time.time(), self._sent_bytes(file)))
            if len(found) == WRITE_EVERY:
                self._write(found)
            time.sleep(self.every_s)
        self._write(found)
        os.close(file)

    def _sent_bytes(self, file: int) -> float:
        for line in os.pread(file, 1 << 16, 0).splitlines():
            name, _, numbers = line.strip().partition(b" ")
            if name == self.interface:
                return float(numbers.split()[8])
        raise OptionError(f"replay.record: no interface {self.interface.decode()[:-1]} here")

    def _write(self, found: list[tuple[float, float]]) -> None:
        """When, and how many bytes had left by then."""
        for name, unit, column in (("at_s", "s", 0), ("sent_bytes", "B", 1)):
            self.door.samples(name, [row[column] for row in found], unit=unit, aside=True)
        found.clear()


def main() -> int:
    return status_of(lambda: Watch(Door.from_environment()).run())


if __name__ == "__main__":
    raise SystemExit(main())
