"""Who takes part in the benchmark, behind one interface: `call(whole, part)` makes the collective asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from lossbench.contract import HALVES, Door
from lossbench.workloads.allreduce import tcp
from lossbench.workloads.allreduce.blast import Blast, Floor
from lossbench.workloads.allreduce.operation import OPERATIONS, Operation
from lossbench.workloads.collective.group import LossyGroup
from lossbench.workloads.transport import tuning
from lossbench.workloads.transport.policy import Policy


class Contender(Protocol):
    only: tuple[str, ...]  # operations that it has

    def call(self, whole: torch.Tensor, part: torch.Tensor) -> None: ...
    def close(self) -> None: ...


class Lossy:
    only: tuple[str, ...] = OPERATIONS

    def __init__(self, door: Door, store: Any, limit_s: float, operation: Operation) -> None:
        policy, self._operation = Policy.from_environment(), operation
        self.group = LossyGroup(store, door.rank, door.world_size, timedelta(seconds=limit_s), policy)
        self.fractions: list[list[float]] = []  # that arrived, by half, of each turn
        self.halves: list[list[tuple[str, float]]] = []  # why each ended, and its milliseconds from the first packet

    def call(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        self._operation.call(self.group, whole, part)

    def note(self) -> None:
        """After the calls of a turn, outside their time: what of them arrived."""
        accounts = self.group.accounts_of_step()
        self.group.set_step(None)
        by_half = [[one.fraction for one in accounts if one.half == half] for half in sorted(HALVES.values())]
        self.fractions.append([sum(found) / len(found) for found in by_half if found])
        self.halves.append([(one.ended, round(one.seconds * 1000, 2)) for one in accounts])

    def close(self) -> None:
        self.group.shutdown()


class BusyLossy(Lossy):
    """While another thread of the same program computes in Python."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._on, self._ends = threading.Event(), False
        self._thread = threading.Thread(target=self._compute, daemon=True)
        self._thread.start()

    def _compute(self) -> None:
        while not self._ends:
            self._on.wait(1.0)
            sum(n * n for n in range(2000))

    def call(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        self._on.set()
        try:
            super().call(whole, part)
        finally:
            self._on.clear()

    def close(self) -> None:
        self._ends = True
        self._thread.join()
        super().close()


class Gloo:
    """As PyTorch ships it."""

    only: tuple[str, ...] = OPERATIONS

    def __init__(
        self, door: Door, store: Any, limit_s: float, operation: Operation, *, control: str, rto_ms: float
    ) -> None:
        self._operation = operation
        with tuning.tuned(control=control, rto_ms=rto_ms):
            self._group = dist.ProcessGroupGloo(store, door.rank, door.world_size, timedelta(seconds=limit_s))

    def call(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        self._operation.call(self._group, whole, part)

    def close(self) -> None:
        """Its connections close with the process."""


class DirectTcp:
    """Our schedule over TCP."""

    only: tuple[str, ...] = ("all_reduce",)

    def __init__(
        self, door: Door, store: Any, limit_s: float, operation: Operation, *, control: str, rto_ms: float
    ) -> None:
        if operation.dtype != "float32":
            raise tuning.NotHereError("it adds float32 alone")
        with tuning.tuned(control=control, rto_ms=rto_ms):
            self._mesh = tcp.Mesh(door.rank, door.addresses, store)
        self._limit_s = limit_s

    def call(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        del part
        self._mesh.all_reduce(whole.numpy(), self._limit_s)

    def close(self) -> None:
        self._mesh.close()


Make = Callable[[Door, Any, float, Operation], Contender]


def _gloo(control: str, rto_ms: float) -> Make:
    return lambda door, store, limit_s, op: Gloo(door, store, limit_s, op, control=control, rto_ms=rto_ms)


def _direct(control: str, rto_ms: float) -> Make:
    return lambda door, store, limit_s, op: DirectTcp(door, store, limit_s, op, control=control, rto_ms=rto_ms)


CONTENDERS: dict[str, Make] = {
    "lossy": Lossy,
    "gloo-bbr": _gloo("bbr", 200),
    "gloo-bbr-5ms": _gloo("bbr", 5),
    "gloo-cubic": _gloo("cubic", 200),
    "gloo-cubic-5ms": _gloo("cubic", 5),
    "tcp-bbr-5ms": _direct("bbr", 5),
    "tcp-cubic-5ms": _direct("cubic", 5),
    "udp-blast": Blast,
    "floor": Floor,
    "lossy-busy": BusyLossy,
}
ON_REQUEST = ("lossy-busy",)  # not in the race unless named
TCP = tuple(name for name in CONTENDERS if "gloo" in name or "tcp" in name)
LIMITS = ("udp-blast", "floor")  # no contenders, what there is to be had
FLOOR_BYTES = 64_000  # up to here the floor says something
