"""How a flat array is cut into blocks (one per owner) and blocks into packets. Pure; equal on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lossbench.contract import HEADER_BYTES
from lossbench.workloads.transport.packet.codec import Codec
from lossbench.workloads.transport.packet.wire import Array, Bytes

ALIGN = 8  # rows begin at multiples of this: headers and elements can be seen as machine words


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Blocks of `counts` elements, packets of `segment` bytes (header included)."""

    counts: tuple[int, ...]
    codec: Codec
    segment: int

    @classmethod
    def plan(cls, counts: tuple[int, ...], *, codec: Codec, datagram_bytes: int) -> Layout:
        """The widest packets that fit; narrower ones if every block fits into a single packet."""
        widest = (datagram_bytes - HEADER_BYTES) // ALIGN * ALIGN
        needed = -(-max(counts) * codec.memory.itemsize // ALIGN) * ALIGN
        return cls(counts=counts, codec=codec, segment=HEADER_BYTES + max(ALIGN, min(widest, needed)))

    @cached_property
    def width(self) -> int:
        """Elements per packet."""
        return (self.segment - HEADER_BYTES) // self.codec.memory.itemsize

    @cached_property
    def packets(self) -> tuple[int, ...]:
        """Packets per block; an empty block has none."""
        return tuple(-(-count // self.width) for count in self.counts)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each block begins in the flat array."""
        return tuple(int(n) for n in np.cumsum((0, *self.counts))[:-1])

    def block(self, flat: Array, number: int) -> Array:
        start = self.offsets[number]
        return flat[start : start + self.counts[number]]

    def scale(self, elements: Array, factors: Array, *, codec: Codec | None = None) -> None:
        """Multiply every packet of a block by its factor, in place; packets whose factor is 1 are not touched."""
        codec = codec or self.codec
        kind = codec.wide.type
        whole = len(elements) // self.width
        rows = elements[: whole * self.width].reshape(whole, self.width)
        if len(factors) and (factors == factors[0]).all():
            if factors[0] == 0:
                elements[:] = 0
            elif factors[0] != 1:
                elements[:] = codec.narrow(codec.widen(elements) * kind(factors[0]))
            return
        if len(factors) > whole and factors[-1] != 1:
            rest = elements[whole * self.width :]
            rest[:] = codec.narrow(codec.widen(rest) * kind(factors[-1])) if factors[-1] else 0
        numbers = np.flatnonzero(factors[:whole] != 1)
        some = codec.widen(rows[numbers]) * factors[numbers].astype(codec.wide)[:, None]
        some[factors[numbers] == 0] = 0  # whatever was there, infinities too
        rows[numbers] = codec.narrow(some)


def even(total: int, world: int) -> tuple[int, ...]:
    """Blocks as equal as can be: the first ones are one longer."""
    base, rest = divmod(total, world)
    return tuple(base + (rank < rest) for rank in range(world))


class Buffers:
    """Memory that is used again: fresh pages cost milliseconds in the middle of a half. Grows to the largest need."""

    def __init__(self) -> None:
        self._held: dict[str, Bytes] = {}

    def bytes(self, name: str, size: int) -> Bytes:
        held = self._held.get(name)
        if held is None or len(held) < size:
            held = self._held[name] = np.zeros(size, dtype=np.uint8)
        return held[:size]

    def held_bytes(self) -> int:
        return sum(len(held) for held in self._held.values())


def among(shares: tuple[int, ...], present: tuple[int, ...], world: int) -> tuple[int, ...]:
    """Shares of those who are here by their numbers, nothing for the others."""
    of = dict(zip(present, shares, strict=True))
    return tuple(of.get(rank, 0) for rank in range(world))
