"""The wires of the relay backend: reads frames from TAP devices, keeps each until its time, writes it back.

Started by backend.py with the TAPs' descriptors; orders come as JSON lines on standard input, and each
is answered with a line on standard output once it is obeyed."""

from __future__ import annotations

import bisect
import heapq
import json
import os
import random
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from lossbench.net.counters import LATE_MS
from lossbench.net.impair.ebpf.delay import STAMP_AT, STAMP_BYTES, STAMP_SHIFT
from lossbench.spec.topology import MAC_PREFIX

LATE_S = [limit / 1000 for limit in LATE_MS]
BURST = 64  # frames read from one wire before the clock is looked at again


@dataclass(kw_only=True)
class Kept:
    """Of one rule: what counters.Held is made of."""

    packets: int = 0
    overtook: int = 0
    late: list[int] = field(default_factory=lambda: [0] * (len(LATE_MS) + 1))
    waited: int = 0
    stayed_s: float = 0.0
    late_s: float = 0.0
    spread_s2: float = 0.0

    def left(self, due: float, came: float | None, now: float) -> None:
        """A packet; `came`: when, if it did not overtake."""
        late = now - due
        self.late[bisect.bisect_left(LATE_S, late)] += 1
        if came is not None:
            stayed = now - came
            self.waited += 1
            self.stayed_s += stayed
            self.late_s += late
            self.spread_s2 += (stayed - late) ** 2


@dataclass(kw_only=True)
class Wire:
    """One TAP. Frames leave in order of their time; equal times in order of arrival."""

    descriptor: int
    mean_s: float = 0.0
    jitter_s: float = 0.0
    distribution: str = "uniform"
    overtake: float = 0.0
    gap: int = 1
    behind: int = 0  # packets since the last that overtook
    kept: dict[str, Kept] = field(default_factory=dict)  # by rule
    rule: Kept = field(default_factory=Kept)  # the one in force
    generator: random.Random = field(default_factory=random.Random)
    order: dict[str, Any] = field(default_factory=dict)

    def obey(self, order: dict[str, Any]) -> None:
        delay, reorder = order.get("delay") or {}, order.get("reorder") or {}
        self.mean_s, self.jitter_s = delay.get("mean_ms", 0) / 1000, delay.get("jitter_ms", 0) / 1000
        self.distribution = delay.get("distribution", "uniform")
        self.overtake, self.gap = reorder.get("percent", 0) / 100, reorder.get("gap", 1)
        if order != self.order:  # what did not change goes on where it stood
            self.generator.seed(order.get("seed", 0))
            self.behind = 0
        self.order = order
        self.rule = self.kept.setdefault(order.get("rule", ""), Kept())

    def forget(self) -> None:
        self.rule = Kept()
        self.kept = {self.order.get("rule", ""): self.rule}

    def wait_s(self) -> float | None:
        """How long this frame stays, None if it overtakes; as netem, after gap - 1 that wait each of the next may go at
        once, until one does."""
        self.rule.packets += 1
        if self.overtake and self.behind >= self.gap - 1 and self.generator.random() < self.overtake:
            self.behind = 0
            self.rule.overtook += 1
            return None
        self.behind += 1
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


Waiting = list[tuple[float, int, Wire, Kept, float | None, bytes]]  # due, number, wire, whose packet, Kept.left, frame


def main() -> None:
    wires: dict[int, Wire] = {}
    waiting: Waiting = []
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
        answer: dict[str, Any] = {}
        if "forget" in order:
            for wire in wires.values():
                wire.forget()
        elif "report" in order:
            answer["wires"] = {
                number: {rule: asdict(one) for rule, one in wire.kept.items()} for number, wire in wires.items()
            }
        else:
            descriptor = order["wire"]
            if descriptor not in wires:
                wires[descriptor] = Wire(descriptor=descriptor)
                poll.register(descriptor, select.EPOLLIN)
            wires[descriptor].obey(order)
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
    return rest


def _read(wire: Wire, waiting: Waiting, number: int) -> int:
    """A frame waits from the moment that the program in the kernel has stamped into it, not from when it is read."""
    for _ in range(BURST):
        try:
            frame = os.read(wire.descriptor, 65536)
        except OSError:  # nothing more now, or the device is going away
            break
        number += 1
        now = time.monotonic_ns()
        stamp = int.from_bytes(frame[STAMP_AT : STAMP_AT + STAMP_BYTES], "little")
        age = ((now >> STAMP_SHIFT) - stamp) % (1 << 8 * STAMP_BYTES)
        came = (now - (age << STAMP_SHIFT)) / 1e9
        whole = b"".join((frame[:STAMP_AT], MAC_PREFIX, frame[STAMP_AT + STAMP_BYTES :]))
        wait_s = wire.wait_s()
        entry = (came, None) if wait_s is None else (came + wait_s, came)
        heapq.heappush(waiting, (entry[0], number, wire, wire.rule, entry[1], whole))
    return number


def _write_due(waiting: Waiting) -> None:
    while waiting and waiting[0][0] <= (now := time.monotonic()):  # who is held up here is late too
        due, _, wire, rule, came, frame = heapq.heappop(waiting)
        rule.left(due, came, now)
        with suppress(OSError):  # one frame the kernel will not take must not end all wires
            os.write(wire.descriptor, frame)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its orders end
    main()
