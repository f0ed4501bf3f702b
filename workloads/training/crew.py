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

T = TypeVar("T")
PATIENCE_S = 600
SWITCH_S = 0.0002


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

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """[world, ...]: everybody's, in order of ranks."""


class LocalControl:
    """All ranks are threads of this process."""

    def __init__(self, table: LocalTable, rank: int) -> None:
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


class LinkedControl:
    """Gloo over the control link."""

    def __init__(self, store: Any, door: Door, interface: str) -> None:
        options = dist.ProcessGroupGloo._Options()
        where = {"interface": interface} if interface else {"hostname": "127.0.0.1"}
        options._devices = [dist.ProcessGroupGloo.create_device(**where)]
        options._timeout = timedelta(seconds=PATIENCE_S)
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("control", store), door.rank, door.world_size, options)
        self._world = door.world_size

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        here = tensor.detach().cpu().contiguous()
        rows = [torch.empty_like(here) for _ in range(self._world)]
        self._group.allgather([rows], [here]).wait()
        return torch.stack(rows).to(tensor.device)
