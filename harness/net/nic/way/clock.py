"""The maps that the gates of a NIC share: their deadline, and what they counted. Watchdogs load this alone, and nothing
of rules and experiments: they are started before every change, two on every machine."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass

from lossbench.net.bpf.syscalls import ArrayMap
from lossbench.net.tc.hook import Side

COUNTERS = ("returned", "expired", "protected", "other", "taken", "spare1", "spare2", "spare3")
SIDES: tuple[Side, Side] = ("egress", "ingress")
DEADLINE_BYTES, COUNTS_BYTES = 8, len(SIDES) * len(COUNTERS) * 8


def counter_at(side: Side, name: str) -> int:
    return (SIDES.index(side) * len(COUNTERS) + COUNTERS.index(name)) * 8


@dataclass(frozen=True, kw_only=True)
class Fds:
    """Of two maps: what is counted by packets is never written by anybody else."""

    deadline: int
    counts: int


class Clock:
    """They live as long as a gate refers to them; anybody with the right may open them again."""

    def __init__(self, deadline: ArrayMap, counts: ArrayMap) -> None:
        self._deadline, self._counts = deadline, counts

    @classmethod
    def made(cls) -> Clock:
        deadline = ArrayMap.create(value_bytes=DEADLINE_BYTES, name="lb_deadline")
        return cls(deadline, ArrayMap.create(value_bytes=COUNTS_BYTES, name="lb_gates"))

    @classmethod
    def opened(cls, ids: tuple[int, int]) -> Clock | None:
        """None if no gate holds them any more."""
        with suppress(OSError, struct.error):
            deadline = ArrayMap.open(map_id=ids[0], value_bytes=DEADLINE_BYTES)
            try:
                return cls(deadline, ArrayMap.open(map_id=ids[1], value_bytes=COUNTS_BYTES))
            except (OSError, struct.error):
                deadline.close()
        return None

    def fds(self) -> Fds:
        return Fds(deadline=self._deadline.fd, counts=self._counts.fd)

    def ids(self) -> tuple[int, int]:
        return self._deadline.kernel_id(), self._counts.kernel_id()

    def set(self, deadline_s: float) -> None:
        """In seconds of CLOCK_BOOTTIME."""
        self._deadline.write(struct.pack("<Q", int(deadline_s * 1e9)))

    def deadline_s(self) -> float:
        return float(struct.unpack("<Q", self._deadline.read())[0] / 1e9)

    def counted(self) -> dict[str, dict[str, int]]:
        value = self._counts.read()
        names = [name for name in COUNTERS if not name.startswith("spare")]
        return {side: {n: struct.unpack_from("<Q", value, counter_at(side, n))[0] for n in names} for side in SIDES}

    def close(self) -> None:
        self._deadline.close()
        self._counts.close()
