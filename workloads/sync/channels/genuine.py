"""The channel that packets really cross: the lossy backend for the halves, Gloo or NCCL for what is reliable."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lossbench.contract import Door
from lossbench.workloads.collective.group import LossyGroup
from lossbench.workloads.collective.primitives import Carried, Pending, begin_exchange, begin_gather, begin_scatter
from lossbench.workloads.collective.where import inner_gloo
from lossbench.workloads.errors import OptionError
from lossbench.workloads.sync.channels.members import Members
from lossbench.workloads.transport import tuning
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.packet.wire import Bytes
from lossbench.workloads.transport.policy import Policy

CALL_LIMIT = timedelta(hours=24)  # others may evaluate, or write a checkpoint
TRUSTED = ("gloo", "nccl", "lossy")  # who carries what must arrive; lossy: our own datagrams, repeated until they do


class Genuine:
    simulated = False

    def __init__(
        self,
        group: LossyGroup,
        store: Any = None,
        *,
        trusted: str = "gloo",
        rto_min_ms: float = 0.0,
        rto_max_ms: float = 0.0,
        tcp: str = "",
    ) -> None:
        """`rto_min_ms`, `rto_max_ms`: of TCP's retransmission timer for Gloo; 0 leaves the kernel's (200 ms, 120 s).
        `tcp`: its congestion control; "" leaves the machine's."""
        if trusted not in TRUSTED:
            raise ValueError(f"trusted transport '{trusted}': one of {', '.join(TRUSTED)}")
        self.group = group
        self.rank, self.world = group.rank(), group.size()
        self.members = Members(group) if group.policy.absent == "continue" else None
        self._store, self._trusted, self._rto_ms = store, trusted, (rto_min_ms, rto_max_ms)
        self._tcp, self._met = tcp, False
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

    def set_deadline(self, seconds: float | None) -> None:
        self.group._endpoint.set_deadline(seconds)

    def begin_scatter(self, values: torch.Tensor, **how: Any) -> Pending:
        return begin_scatter(self.group, values, **{"normaliser": "count", **how})

    def begin_gather(self, mine: torch.Tensor, out: torch.Tensor, **how: Any) -> Pending:
        return begin_gather(self.group, mine, out, **how)

    def begin_exchange(self, send: Mapping[int, Bytes], sizes: Mapping[int, int], **how: Any) -> Carried:
        return begin_exchange(self.group, send, sizes, **how)

    @property
    def datagram_bytes(self) -> int:
        return self.group.datagram_bytes

    def mean(self, values: torch.Tensor, *, direct: bool = False) -> None:
        if self._trusted == "lossy":  # direct, always
            exact = values.double()  # float64 is not among what may get lost
            self.group.allreduce([exact]).wait()
            values.copy_(exact / self.world)
            return
        if self._reliable is None:
            self._reliable = self._connect()
        if direct:
            self._mean_directly(values)
        else:
            self._reliable.allreduce([values]).wait()
            values.div_(self.world)
        if not self._met:
            self._met = True
            self._settle_tcp()

    def _mean_directly(self, values: torch.Tensor) -> None:
        """Two exchanges of all with all: parts to their owners, means to everybody."""
        each = -(-values.numel() // self.world)
        parts = values.new_zeros(self.world, each)
        parts.view(-1)[: values.numel()] = values
        came = torch.empty_like(parts)
        self._reliable.alltoall_base(came, parts, [], []).wait()
        parts[:] = came.mean(0)
        self._reliable.alltoall_base(came, parts, [], []).wait()
        values.copy_(came.view(-1)[: values.numel()])

    def _connect(self) -> Any:
        """When first used: most strategies never need it."""
        least, most = self._rto_ms
        try:
            if least:
                tuning.set_rto_min(least)
        except tuning.NotHereError as reason:
            self.notes.append(f"TCP waits 200 ms for a lost tail ({reason})")
        try:
            if most:
                tuning.set_rto_max(most)
        except tuning.NotHereError as reason:
            self.notes.append(f"TCP backs off up to 120 s ({reason})")
        under = dist.PrefixStore("trusted", self._store)
        if self._trusted == "nccl":
            return dist.ProcessGroupNCCL(under, self.rank, self.world, dist.ProcessGroupNCCL.Options())
        gloo = inner_gloo(under, self.rank, self.world, CALL_LIMIT)
        if self._tcp:  # every pair connects, so that nothing is sent before it was told
            one = torch.zeros(self.world)
            gloo.alltoall_base(torch.empty_like(one), one, [], []).wait()
            self._tell_tcp()
        return gloo

    def _tell_tcp(self) -> dict[int, str]:
        """Connection by connection: a sysctl would be for other programs of this host, too."""
        address = self.group.address
        try:
            for number, control in tuning.own(address).items() if self._tcp else ():
                if control != self._tcp:
                    tuning.tell(number, self._tcp)
        except tuning.NotHereError as reason:
            raise OptionError(f"workload.options.tcp: {reason}") from None
        return tuning.own(address)

    def _settle_tcp(self) -> None:
        """Said as connections themselves say it, of all that were made in the first exchange."""
        found = sorted(set(self._tell_tcp().values()))
        if found:
            self.notes.append(f"TCP: {' and '.join(found)}")

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
