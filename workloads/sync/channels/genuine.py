"""The channel that packets really cross: the lossy backend for the halves, Gloo or NCCL for what is reliable."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lossbench.contract import Door
from lossbench.workloads.collective.group import LossyGroup
from lossbench.workloads.collective.primitives import Pending, begin_gather, begin_scatter
from lossbench.workloads.collective.where import inner_gloo
from lossbench.workloads.sync.channels.members import Members
from lossbench.workloads.transport import tuning
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.policy import Policy

CONNECT_LIMIT = timedelta(seconds=120)
CALL_LIMIT = timedelta(hours=24)  # others may evaluate, or write a checkpoint
TRUSTED = ("gloo", "nccl", "lossy")  # who carries what must arrive; lossy: our own datagrams, repeated until they do


class Genuine:
    simulated = False

    def __init__(self, group: LossyGroup, store: Any = None, *, trusted: str = "gloo", rto_min_ms: float = 0.0) -> None:
        """`rto_min_ms`: the floor of TCP's retransmission timer for Gloo; 0 leaves the kernel's (200 ms)."""
        if trusted not in TRUSTED:
            raise ValueError(f"trusted transport '{trusted}': one of {', '.join(TRUSTED)}")
        self.group = group
        self.rank, self.world = group.rank(), group.size()
        self.members = Members(group) if group.policy.absent == "continue" else None
        self._store, self._trusted, self._rto_min_ms = store, trusted, rto_min_ms
        self._reliable: Any = None
        self.notes: list[str] = []  # what a reader of the results should know

    @classmethod
    def of_default_group(cls) -> Genuine:
        """For a user's own loop: after init_process_group("lossy")."""
        group: Any = dist.group.WORLD if dist.is_initialized() else None
        if not isinstance(group, LossyGroup):
            raise RuntimeError(
                'no lossy process group: import lossbench.torch, init_process_group("lossy"); or give channel='
            )
        return cls(group, trusted="lossy")

    @classmethod
    def at(cls, door: Door, store: Any, *, policy: Policy, **keys: Any) -> Genuine:
        """For one of several ranks in a process; call it in a thread that is inside the rank's host."""
        under = dist.PrefixStore("channel", store)
        group = LossyGroup(under, door.rank, door.world_size, CALL_LIMIT, policy, door)
        return cls(group, store, **keys)

    @property
    def present(self) -> tuple[int, ...]:
        return self.group.roll.members

    def set_step(self, step: int) -> None:
        self.group.set_step(step)

    def begin_scatter(self, values: torch.Tensor, **how: Any) -> Pending:
        return begin_scatter(self.group, values, **{"normaliser": "count", **how})

    def begin_gather(self, mine: torch.Tensor, out: torch.Tensor, **how: Any) -> Pending:
        return begin_gather(self.group, mine, out, **how)

    def mean(self, values: torch.Tensor) -> None:
        if self._trusted == "lossy":
            exact = values.double()  # float64 is not among what may get lost
            self.group.allreduce([exact]).wait()
            values.copy_(exact / self.world)
            return
        if self._reliable is None:
            self._reliable = self._connect()
        self._reliable.allreduce([values]).wait()
        values.div_(self.world)

    def _connect(self) -> Any:
        """When first used: most strategies never need it."""
        if self._rto_min_ms:
            try:
                tuning.set_rto_min(self._rto_min_ms)
            except tuning.NotHereError as reason:
                self.notes.append(f"TCP waits 200 ms for a lost tail ({reason})")
        under = dist.PrefixStore("trusted", self._store)
        if self._trusted == "nccl":
            return dist.ProcessGroupNCCL(under, self.rank, self.world, dist.ProcessGroupNCCL.Options())
        return inner_gloo(under, self.rank, self.world, CONNECT_LIMIT)

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        out = numbers.double().cpu()
        self.group.allreduce([out]).wait()
        return out

    def accounts_of_step(self) -> list[Account]:
        """Of all reductions that somebody else (DDP) made over this group in this step."""
        return self.group.accounts_of_step()

    def counters(self) -> dict[str, Any]:
        return self.group.counters

    def close(self) -> None:
        self.group.shutdown()
