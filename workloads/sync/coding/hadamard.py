"""The randomised Hadamard transform around a channel (OptiReduce, Warraich et al., NSDI 2025; DRIVE, NeurIPS 2021): a
lost packet takes a little of every number of its piece instead of all of some.

Blocks are cut into pieces of a power of two, each with signs drawn from the step's seed, which all ranks know. The
transform is orthogonal and linear: means of transforms are transforms of means, and its inverse is its transpose."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from lossbench.contract import derive_seed
from lossbench.workloads.sync.channels.base import Channel, Half
from lossbench.workloads.sync.coding.around import Around, is_its_own_truth
from lossbench.workloads.transport.half import Account

SMALLEST, LARGEST = 64, 1 << 14  # numbers that share their losses: about 45 packets


class Hadamard(Around):
    """See base.Channel."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self._step = 0

    def set_step(self, step: int) -> None:
        self._step = step
        super().set_step(step)

    def begin_scatter(self, values: torch.Tensor, *, counts: tuple[int, ...], slot: int = 0, **how: Any) -> Half:
        self.say("Hadamard")
        mine = how["owners"][self.rank]
        signs = self._signs(counts, slot, values)
        turned = turn(values * signs, counts)
        start = sum(counts[:mine])
        own = signs[start : start + counts[mine]]
        half = self.inner.begin_scatter(turned, counts=counts, slot=slot, **how)
        return _Back(half, lambda mean: turn(mean, (counts[mine],)) * own)

    def begin_gather(
        self, mine: torch.Tensor, out: torch.Tensor, *, counts: tuple[int, ...], slot: int = 0, **how: Any
    ) -> Half:
        """What is missing keeps, turned as well, what is there."""
        block = how["owners"][self.rank]
        signs = self._signs(counts, slot, out)
        start = sum(counts[:block])
        said = turn(mine * signs[start : start + counts[block]], (counts[block],))
        turned = turn(out * signs, counts)
        own = slice(start, start + counts[block])
        kept = mine.clone() if is_its_own_truth(mine, out[own]) else None
        half = self.inner.begin_gather(said, turned, counts=counts, slot=slot, **how)

        def back(_: torch.Tensor) -> torch.Tensor:
            out.copy_(turn(turned, counts) * signs)
            if kept is not None:
                out[own] = kept
            return out

        return _Back(half, back)

    def _signs(self, counts: tuple[int, ...], slot: int, like: torch.Tensor) -> torch.Tensor:
        random = np.random.default_rng(derive_seed(self.seed, "hadamard", self._step, slot))
        drawn = random.integers(0, 2, sum(counts), dtype=np.int8) * 2 - 1
        return torch.from_numpy(drawn).to(device=like.device, dtype=like.dtype)


class _Back:
    """A half under way, whose result is turned back."""

    def __init__(self, half: Half, back: Any) -> None:
        self._half, self._back = half, back

    def wait(self) -> tuple[torch.Tensor, Account]:
        out, account = self._half.wait()
        return self._back(out), account


def turn(values: torch.Tensor, counts: tuple[int, ...]) -> torch.Tensor:
    """Block by block, piece by piece; it is its own inverse."""
    out, at = torch.empty_like(values), 0
    for count in counts:
        for size, times in pieces(count):
            part = slice(at, at + size * times)
            out[part] = _transform(values[part].view(times, size)).view(-1)
            at = part.stop
    return out


def pieces(count: int) -> list[tuple[int, int]]:
    """(size, how many of it in a row): powers of two that a block is cut into, the largest first."""
    whole, rest = divmod(count, LARGEST)
    out = [(LARGEST, whole)] if whole else []
    bits = range(SMALLEST.bit_length() - 1, LARGEST.bit_length() - 1)
    out += [(1 << bit, 1) for bit in reversed(bits) if rest >> bit & 1]
    return out + ([(1, rest % SMALLEST)] if rest % SMALLEST else [])  # too few to be worth it: as they are


def _transform(some: torch.Tensor) -> torch.Tensor:
    """Of every row, orthonormal: as two products of matrices, since the large transform is that of its two halves'."""
    size = some.shape[1]
    rows = 1 << ((size.bit_length() - 1) // 2)
    table = some.view(-1, rows, size // rows)
    left, right = (matrix(n).to(some) for n in (rows, size // rows))
    return ((left @ table @ right) / float(size) ** 0.5).view(-1, size)


@lru_cache(maxsize=32)
def matrix(size: int) -> torch.Tensor:
    """Sylvester's: of ones and minus ones."""
    out = torch.ones(1, 1)
    while len(out) < size:
        out = torch.cat([torch.cat([out, out], 1), torch.cat([out, -out], 1)])
    return out
