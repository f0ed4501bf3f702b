"""What a channel between workers is."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from lossbench.workloads.sync.channels.members import Members
from lossbench.workloads.transport.half import Account


class Half(Protocol):
    """Under way."""

    def wait(self) -> tuple[torch.Tensor, Account]:
        """What it was made into, and what arrived."""


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

    def mean(self, values: torch.Tensor) -> None:
        """Reliably, in place: by the transport that the user trusts (Gloo, NCCL)."""

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """A reliable sum of a few float64 numbers."""

    def counters(self) -> dict[str, Any]: ...

    def close(self) -> None: ...
