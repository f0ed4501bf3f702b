"""The channel around a channel that changes nothing: codings override what they are about."""

from __future__ import annotations

from typing import Any

import torch

from lossbench.workloads.sync.channels.base import Channel
from lossbench.workloads.transport.half import Account


class Around:
    """See base.Channel."""

    def __init__(self, inner: Channel) -> None:
        self.inner = inner
        self.rank, self.world, self.simulated, self.notes = inner.rank, inner.world, inner.simulated, inner.notes
        self.members = inner.members

    def set_step(self, step: int) -> None:
        self.inner.set_step(step)

    def reduce_scatter(
        self, values: torch.Tensor, *, counts: tuple[int, ...], owners: tuple[int, ...], normaliser: str = "count"
    ) -> tuple[torch.Tensor, Account]:
        return self.inner.reduce_scatter(values, counts=counts, owners=owners, normaliser=normaliser)

    def all_gather(
        self,
        mine: torch.Tensor,
        out: torch.Tensor,
        *,
        counts: tuple[int, ...],
        owners: tuple[int, ...],
        zero_missing: bool = False,
    ) -> Account:
        return self.inner.all_gather(mine, out, counts=counts, owners=owners, zero_missing=zero_missing)

    @property
    def present(self) -> tuple[int, ...]:
        return self.inner.present

    def mean(self, values: torch.Tensor) -> None:
        self.inner.mean(values)

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.inner.total(numbers)

    def counters(self) -> dict[str, Any]:
        return self.inner.counters()

    def close(self) -> None:
        self.inner.close()

    def __getattr__(self, name: str) -> Any:
        """What only the channel inside has (DDP asks a genuine one for its group)."""
        return getattr(self.inner, name)
