"""Who takes part in the benchmark, behind one interface: `call(tensor)` all-reduces it in place."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from lossbench.contract import Door
from lossbench.workloads.allreduce import tcp
from lossbench.workloads.collective.group import LossyGroup
from lossbench.workloads.transport import tuning
from lossbench.workloads.transport.policy import Policy
from lossbench.workloads.transport.udp.link import Link

BLAST_PORT = 29390
QUIET_S = 0.02


class Contender(Protocol):
    def call(self, tensor: torch.Tensor) -> None: ...
    def close(self) -> None: ...


class Lossy:
    def __init__(self, door: Door, store: Any, limit_s: float) -> None:
        policy = Policy.from_environment()
        self.group = LossyGroup(store, door.rank, door.world_size, timedelta(seconds=limit_s), policy)
        self.fractions: list[list[float]] = []
        self.halves: list[list[tuple[str, float]]] = []  # why each ended, and its milliseconds from the first packet

    def call(self, tensor: torch.Tensor) -> None:
        self.group.allreduce([tensor]).wait()
        self.fractions.append([account.fraction for account in self.group.accounts])
        self.halves.append([(account.ended, round(account.seconds * 1000, 2)) for account in self.group.accounts])

    def close(self) -> None:
        self.group.shutdown()


class Gloo:
    """As PyTorch ships it; connections take the congestion control and the RTO floor in force when they are made."""

    def __init__(self, door: Door, store: Any, limit_s: float, *, control: str, rto_ms: float) -> None:
        tuning.tune(control=control, rto_ms=rto_ms)
        self._group = dist.ProcessGroupGloo(store, door.rank, door.world_size, timedelta(seconds=limit_s))

    def call(self, tensor: torch.Tensor) -> None:
        self._group.allreduce([tensor]).wait()

    def close(self) -> None:
        """Its connections close with the process."""


class DirectTcp:
    """Our schedule over TCP."""

    def __init__(self, door: Door, store: Any, limit_s: float, *, control: str, rto_ms: float) -> None:
        tuning.tune(control=control, rto_ms=rto_ms)
        self._mesh = tcp.Mesh(door.rank, door.addresses, store)
        self._limit_s = limit_s

    def call(self, tensor: torch.Tensor) -> None:
        self._mesh.all_reduce(tensor.numpy(), self._limit_s)

    def close(self) -> None:
        self._mesh.close()


class Blast:
    """What the ports can carry: the same bytes from all to all, nothing added, nothing waited for."""

    def __init__(self, door: Door, store: Any, limit_s: float) -> None:
        del store
        self._link = Link(door.addresses[door.rank], BLAST_PORT)
        self._peers = [
            (door.addresses[(door.rank + n) % door.world_size], BLAST_PORT) for n in range(1, door.world_size)
        ]
        self._segment = self._link.datagram_bytes(self._peers[0])
        self._limit_s = limit_s
        self._room = bytearray(1 << 16)

    def call(self, tensor: torch.Tensor) -> None:
        batch = self._link.batch(self._segment)
        rows = np.zeros((batch, self._segment), np.uint8)
        per_peer = 2 * tensor.numel() * 4 // (len(self._peers) + 1)
        rounds = -(-per_peer // rows.size)
        expected, got = rounds * rows.size * len(self._peers), 0
        start = time.perf_counter()
        for _ in range(rounds):
            for peer in self._peers:
                while not self._link.send_rows(rows, peer):
                    self._link.wait_writable(0.01)
            got += self._drain()
        while got < expected and time.perf_counter() - start < self._limit_s:
            if not select.select([self._link.socket], [], [], QUIET_S)[0]:
                raise Quiet(QUIET_S)  # the rest is lost: this wait is not the network's time
            got += self._drain()

    def _drain(self) -> int:
        total = 0
        while True:
            try:
                total += self._link.socket.recv_into(self._room)
            except BlockingIOError:
                return total

    def close(self) -> None:
        self._link.close()


class Quiet(Exception):  # noqa: N818 - not an error: how long the end was waited for
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


Make = Callable[[Door, Any, float], Contender]


def _gloo(control: str, rto_ms: float) -> Make:
    return lambda door, store, limit_s: Gloo(door, store, limit_s, control=control, rto_ms=rto_ms)


CONTENDERS: dict[str, Make] = {
    "lossy": Lossy,
    "gloo-bbr": _gloo("bbr", 200),
    "gloo-bbr-5ms": _gloo("bbr", 5),
    "gloo-cubic": _gloo("cubic", 200),
    "gloo-cubic-5ms": _gloo("cubic", 5),
    "tcp-bbr-5ms": lambda door, store, limit_s: DirectTcp(door, store, limit_s, control="bbr", rto_ms=5),
    "udp-blast": Blast,
}
TCP = tuple(name for name in CONTENDERS if "gloo" in name or "tcp" in name)
