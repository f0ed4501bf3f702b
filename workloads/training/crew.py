"""The ranks that live in this process, each in a thread inside its own host; and what they tell each other reliably."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from lossbench.contract import Door
from lossbench.workloads.training.links import control_bytes_sent

T = TypeVar("T")
PATIENCE_S = 600
SWITCH_S = 0.0002
CALL_BYTES = 512  # headers and answers of a gather with one other rank: Gloo sends it in two pieces


class Crew:
    """`each(work)` runs `work(seat number)` for all ranks here at once. One rank: in the calling thread."""

    def __init__(self, doors: Sequence[Door]) -> None:
        self.doors = list(doors)
        self.barriers: list[threading.Barrier] = []  # at which ranks of this process meet
        self._threads = [] if len(doors) == 1 else [ThreadPoolExecutor(1, f"rank-{d.rank}") for d in doors]
        if self._threads:
            sys.setswitchinterval(SWITCH_S)  # a thread that wakes up would wait 5 ms for each of the others
            self.each(self._settle)

    def _settle(self, seat: int) -> None:
        self.doors[seat].enter()
        torch.set_num_threads(1)

    def each(self, work: Callable[[int], T]) -> list[T]:
        if not self._threads:
            return [work(0)]
        futures = [thread.submit(work, seat) for seat, thread in enumerate(self._threads)]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            if future.exception() is not None:  # others may wait for this one: for them it is over, too
                for barrier in self.barriers:
                    barrier.abort()
                future.result()
        return [future.result() for future in futures]


class Control(Protocol):
    """Beside the experiment: over the control link, or within the process. Never over the impaired link."""

    sent: int
    """Bytes that this rank sent over the control link itself: coming to life as measured, then what was gathered, as
    computed. What else leaves there is somebody else's."""

    def began(self) -> None:
        """All ranks are ready: until now nothing was sent but to find each other."""

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """[world, ...]: everybody's, in order of ranks."""


class _Counted:
    def __init__(self) -> None:
        """In the rank's own thread, before it is connected to others."""
        self.sent, self._before = 0, control_bytes_sent()

    def began(self) -> None:
        """In the rank's own thread."""
        self.sent = control_bytes_sent() - self._before


class LocalControl(_Counted):
    """All ranks are threads of this process."""

    def __init__(self, table: LocalTable, rank: int) -> None:
        super().__init__()
        self._table, self._rank = table, rank

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        self._table.rows[self._rank] = tensor
        self._table.barrier.wait(PATIENCE_S)
        out = torch.stack(self._table.rows)
        self._table.barrier.wait(PATIENCE_S)
        return out


class LocalTable:
    def __init__(self, world: int) -> None:
        self.rows = [torch.empty(0)] * world
        self.barrier = threading.Barrier(world)


class LinkedControl(_Counted):
    """Gloo over the control link, in a ring: what a rank has got it passes on."""

    def __init__(self, door: Door, interface: str) -> None:
        super().__init__()
        self._door, self._interface, self._world = door, interface, door.world_size

    def connect(self, store: Any) -> None:
        options = dist.ProcessGroupGloo._Options()
        where = {"interface": self._interface} if self._interface else {"hostname": "127.0.0.1"}
        options._devices = [dist.ProcessGroupGloo.create_device(**where)]
        options._timeout = timedelta(seconds=PATIENCE_S)
        under = dist.PrefixStore("control", store)
        self._group = dist.ProcessGroupGloo(under, self._door.rank, self._world, options)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        here = tensor.detach().cpu().contiguous()
        self.sent += (self._world - 1) * (here.nbytes + CALL_BYTES)
        rows = [torch.empty_like(here) for _ in range(self._world)]
        self._group.allgather([rows], [here]).wait()
        return torch.stack(rows).to(tensor.device)
