"""What a channel between workers is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from lossbench.workloads.sync.channels.members import Members
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.packet.wire import Bytes
from lossbench.workloads.transport.plan import Parcels


class Half(Protocol):
    """Under way."""

    def wait(self) -> tuple[torch.Tensor, Account]:
        """What it was made into, and what arrived."""


class Carried(Protocol):
    """Bytes under way."""

    def wait(self) -> tuple[dict[int, Bytes], Account]:
        """By peer, zero where nothing came; which packets came."""


class Channel(Protocol):
    """Between the workers. Genuine (UDP through the network) or simulated (in this process): strategies can't tell."""

    rank: int
    world: int  # numbers of ranks; `present`: who is here
    members: Members | None  # where the group goes on without those who are gone
    simulated: bool
    notes: list[str]  # what a reader of the results should know

    @property
    def present(self) -> tuple[int, ...]: ...

    def set_step(self, step: int) -> None:
        """The training step that stands in the packets."""

    def set_deadline(self, seconds: float | None) -> None:
        """From now on a half ends here after so long without progress, and what is missing is cut; None: as the policy
        says."""

    def begin_scatter(
        self,
        values: torch.Tensor,
        *,
        counts: tuple[int, ...],
        owners: tuple[int, ...],
        normaliser: str = "count",
        slot: int = 0,
    ) -> Half:
        """The mean of what arrived of its own block. `owners[rank]` is the block that rank reduces. `slot`: which of
        several that are under way at once."""

    def begin_gather(
        self,
        mine: torch.Tensor,
        out: torch.Tensor,
        *,
        counts: tuple[int, ...],
        owners: tuple[int, ...],
        zero_missing: bool = False,
        slot: int = 0,
    ) -> Half:
        """Everybody's block into `out`, what is missing keeps what is there (or becomes zero)."""

    @property
    def datagram_bytes(self) -> int:
        """Header and payload of the widest packet."""

    def begin_exchange(
        self,
        send: Mapping[int, Bytes],
        sizes: Mapping[int, int],
        *,
        half: str,
        size: int,
        cut: Parcels,
        reliable: bool = False,
    ) -> Carried:
        """Bytes to and from each peer, packet by packet as `cut` says. `sizes`: of what comes, by peer; `half`, `size`:
        what it is a part of, and how many elements that has, the same on all ranks."""

    def mean(self, values: torch.Tensor, *, direct: bool = False) -> None:
        """Reliably, in place: by the transport that the user trusts (Gloo, NCCL). `direct`: each rank sends each other
        one its part, as the lossy halves do, instead of what the transport does (a ring)."""

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """A reliable sum of a few float64 numbers."""

    def counters(self) -> dict[str, Any]: ...

    def close(self) -> None: ...
