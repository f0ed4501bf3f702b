"""The channel around a channel that changes nothing: codings override what they are about."""

from __future__ import annotations

from typing import Any

import torch

from lossbench.workloads.sync.channels.base import Channel, Half


class Around:
    """See base.Channel."""

    seed = 0  # of the run, for codings that draw: the same on all ranks

    def __init__(self, inner: Channel) -> None:
        self.inner = inner
        self.rank, self.world, self.simulated, self.notes = inner.rank, inner.world, inner.simulated, inner.notes
        self.members = inner.members

    def say(self, text: str) -> None:
        """For the reader of the results, once: called where it is used, as not every strategy uses the halves."""
        if text not in self.notes:
            self.notes.append(text)

    def set_step(self, step: int) -> None:
        self.inner.set_step(step)

    def set_deadline(self, seconds: float | None) -> None:
        self.inner.set_deadline(seconds)

    def begin_scatter(self, values: torch.Tensor, **how: Any) -> Half:
        return self.inner.begin_scatter(values, **how)

    def begin_gather(self, mine: torch.Tensor, out: torch.Tensor, **how: Any) -> Half:
        return self.inner.begin_gather(mine, out, **how)

    @property
    def present(self) -> tuple[int, ...]:
        return self.inner.present

    def mean(self, values: torch.Tensor, *, direct: bool = False) -> None:
        self.inner.mean(values, direct=direct)

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.inner.total(numbers)

    def counters(self) -> dict[str, Any]:
        return self.inner.counters()

    def close(self) -> None:
        self.inner.close()

    def __getattr__(self, name: str) -> Any:
        """What only the channel inside has (DDP asks a genuine one for its group)."""
        return getattr(self.inner, name)


def is_its_own_truth(mine: torch.Tensor, place: torch.Tensor) -> bool:
    """An owner that sends its values from where they are keeps them as they are: what others get may be rounded, but
    not what it steps on."""
    return mine.data_ptr() == place.data_ptr()
