"""What becomes of contributions when some did not arrive: one way to make means of them, for channels in Python."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lossbench.workloads.collective.context import FORGET, MOST
from lossbench.workloads.transport.packet.wire import Bits

Given = tuple[int, torch.Tensor, Bits, int]  # peer, its numbers, which packets of them are there, numbers a packet


def spread(bits: Bits, width: int, like: torch.Tensor) -> torch.Tensor:
    """From packets of so many numbers to numbers: which are there."""
    packets = torch.from_numpy(bits).to(device=like.device, non_blocking=True)
    return packets.repeat_interleave(width)[: len(like)]


class Means:
    """Of a rank's own block and what came of it from others. Sums are made in float32 at least."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}  # by peer, of first halves: packets expected, there

    def of(self, own: torch.Tensor, given: Iterable[Given], *, normaliser: str, world: int) -> torch.Tensor:
        """See policy.NORMALISERS."""
        wide = own.float() if own.element_size() < torch.float32.itemsize else own
        sums, number = torch.zeros_like(wide), torch.zeros_like(wide)
        for peer, values, bits, width in given:
            there = spread(bits, width, wide)
            part = torch.where(there, values.to(wide.dtype), 0.0)
            sums += part / self._share(peer, bits) if normaliser == "expected" else part
            number += there
        mean = (sums + wide) / (number + 1 if normaliser == "count" else world)
        return mean.to(own.dtype)

    def _share(self, peer: int, bits: Bits) -> float:
        """That came of this peer's packets lately, these included: whoever is heard less must not count less."""
        expected, there = self._seen.get(peer, (0.0, 0.0))
        expected, there = FORGET * expected + len(bits), FORGET * there + int(bits.sum())
        self._seen[peer] = expected, there
        return max(there / expected, 1 - MOST) if expected else 1.0
