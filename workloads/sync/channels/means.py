"""What becomes of contributions when some did not arrive: one way to make means of them, for channels in Python."""

from __future__ import annotations

import torch

from lossbench.workloads.transport.packet.wire import Bits


def spread(bits: Bits, width: int, like: torch.Tensor) -> torch.Tensor:
    """From packets of so many numbers to numbers: which are there."""
    packets = torch.from_numpy(bits).to(device=like.device, non_blocking=True)
    return packets.repeat_interleave(width)[: len(like)]


class Means:
    """Of a rank's own block and what came of it from others."""

    def __init__(self) -> None:
        self._first = [0, 0]  # packets of first halves: expected, there

    def of(
        self,
        own: torch.Tensor,
        sums: torch.Tensor,
        number: torch.Tensor,
        *,
        arrived: dict[int, Bits],
        normaliser: str,
        world: int,
    ) -> torch.Tensor:
        """`sums`, `number`: what others gave, and how many did. See policy.NORMALISERS."""
        if normaliser == "count":
            return (sums + own) / (number + 1)
        if normaliser == "world":
            return (sums + own) / world
        return own / world + sums / (world * self._share(arrived))

    def _share(self, arrived: dict[int, Bits]) -> float:
        """That arrived of all first halves so far, this one included."""
        self._first[0] += sum(len(bits) for bits in arrived.values())
        self._first[1] += sum(int(bits.sum()) for bits in arrived.values())
        return max(self._first[1] / self._first[0], 1e-6) if self._first[0] else 1.0
