"""The wires of the relay backend: reads frames from TAP devices, keeps each until its time, writes it back.

Started by harness/net/impair/relay.py with the TAPs' descriptors; orders come as JSON lines on standard input."""

from __future__ import annotations

import heapq
import json
import os
import random
import select
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

BURST = 64  # frames read from one wire before the clock is looked at again


@dataclass(kw_only=True)
class Wire:
    """One TAP. Frames leave in order of their time; equal times in order of arrival."""

    descriptor: int
    mean_s: float = 0.0
    jitter_s: float = 0.0
    distribution: str = "uniform"
    overtake: float = 0.0
    gap: int = 1
    seen: int = 0
    generator: random.Random = field(default_factory=random.Random)

    def obey(self, order: dict[str, Any]) -> None:
        delay, reorder = order.get("delay") or {}, order.get("reorder") or {}
        self.mean_s, self.jitter_s = delay.get("mean_ms", 0) / 1000, delay.get("jitter_ms", 0) / 1000
        self.distribution = delay.get("distribution", "uniform")
        self.overtake, self.gap = reorder.get("percent", 0) / 100, reorder.get("gap", 1)
        self.generator.seed(order.get("seed", 0))

    def wait_s(self) -> float:
        """How long this frame stays; as netem, some of those that complete a gap go at once."""
        self.seen += 1
        if self.overtake and self.seen % self.gap == 0 and self.generator.random() < self.overtake:
            return 0.0
        if not self.jitter_s:
            return self.mean_s
        return max(0.0, self.mean_s + self.jitter_s * self._spread())

    def _spread(self) -> float:
        """In units of the jitter, as netem's tables: uniform in [-1, 1], or with deviation 1."""
        if self.distribution == "uniform":
            return self.generator.uniform(-1, 1)
        normal = self.generator.gauss(0, 1)
        if self.distribution == "normal":
            return normal
        pareto: float = ((1 - self.generator.random()) ** (-1 / 3) - 1.5) * 4 / 3
        return pareto if self.distribution == "pareto" else 0.25 * normal + 0.75 * pareto


def main() -> None:
    wires: dict[int, Wire] = {}
    waiting: list[tuple[float, int, int, bytes]] = []
    poll = select.epoll()
    poll.register(sys.stdin.fileno(), select.EPOLLIN)
    number, pending = 0, b""
    while True:
        left = waiting[0][0] - time.monotonic() if waiting else -1.0
        # epoll rounds up to a millisecond: the last one is spent asking.
        for descriptor, _ in poll.poll(max(left - 0.001, 0) if waiting else None):
            if descriptor == sys.stdin.fileno():
                data = os.read(descriptor, 65536)
                if not data:
                    return
                pending = _orders(pending + data, wires, poll)
                continue
            number = _read(wires[descriptor], waiting, number)
        _write_due(waiting)


def _orders(data: bytes, wires: dict[int, Wire], poll: select.epoll) -> bytes:
    *lines, rest = data.split(b"\n")
    for line in lines:
        order = json.loads(line)
        descriptor = order["wire"]
        if descriptor not in wires:
            wires[descriptor] = Wire(descriptor=descriptor)
            poll.register(descriptor, select.EPOLLIN)
        wires[descriptor].obey(order)
    return rest


def _read(wire: Wire, waiting: list[tuple[float, int, int, bytes]], number: int) -> int:
    now = time.monotonic()
    for _ in range(BURST):
        try:
            frame = os.read(wire.descriptor, 65536)
        except OSError:  # nothing more now, or the device is going away
            break
        number += 1
        heapq.heappush(waiting, (now + wire.wait_s(), number, wire.descriptor, frame))
    return number


def _write_due(waiting: list[tuple[float, int, int, bytes]]) -> None:
    now = time.monotonic()
    while waiting and waiting[0][0] <= now:
        _, _, descriptor, frame = heapq.heappop(waiting)
        with suppress(OSError):  # one frame the kernel will not take must not end all wires
            os.write(descriptor, frame)


if __name__ == "__main__":
    main()
