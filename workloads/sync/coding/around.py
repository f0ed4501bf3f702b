"""The channel around a channel that changes nothing: codings override what they are about."""

from __future__ import annotations

from typing import Any

import torch

from lossbench.workloads.sync.channels.base import Channel, Half


class Around:
    """See base.Channel."""

    def __init__(self, inner: Channel) -> None:
        self.inner = inner
        self.rank, self.world, self.simulated, self.notes = inner.rank, inner.world, inner.simulated, inner.notes
        self.members = inner.members

    def set_step(self, step: int) -> None:
        self.inner.set_step(step)

    def begin_scatter(self, values: torch.Tensor, **how: Any) -> Half:
        return self.inner.begin_scatter(values, **how)

    def begin_gather(self, mine: torch.Tensor, out: torch.Tensor, **how: Any) -> Half:
        return self.inner.begin_gather(mine, out, **how)

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
