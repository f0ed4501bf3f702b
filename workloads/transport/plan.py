"""Which flows a collective has: rows for an engine, made once for each shape of call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lossbench.contract import HEADER_BYTES
from lossbench.workloads.transport.packet.layout import ALIGN, Layout
from lossbench.workloads.transport.packet.wire import Array, Bytes
from lossbench.workloads.transport.structures import FLOW


def address(array: Array) -> int:
    return int(array.ctypes.data)


def row(peer: int, *, block: int, at: int, size: int, segment: int) -> Array:
    out = np.zeros(1, FLOW)
    for name, value in (("peer", peer), ("block", block), ("data", at), ("bytes", size), ("segment", segment)):
        out[name] = value
    out["packets"], out["weight"] = -(-size // (segment - HEADER_BYTES)), 1.0
    return out


class Flows:
    """Rows as planned: `data` counts from where a call's memory begins, `arrived` from its bits. None is empty."""

    def __init__(self, parts: Iterable[Array]) -> None:
        found = [part for part in parts if part["bytes"][0]]
        self.template = np.concatenate(found) if found else np.zeros(0, FLOW)
        packets = self.template["packets"].astype(np.int64)
        self.packets = int(packets.sum())
        self.template["arrived"] = np.cumsum(packets) - packets
        self._peers = self.template["peer"].tolist()

    def aim(self, data: Mapping[int, Bytes]) -> None:
        """To and from other memory of the same sizes."""
        if self._peers:
            self.template["data"] = [address(data[peer]) for peer in self._peers]


class Plan:
    """A reduce-scatter and an all-gather of one layout: block j belongs to the rank whose entry in `block_of` is j."""

    def __init__(
        self, layout: Layout, *, block_of: tuple[int, ...], rank: int, present: tuple[int, ...] | None = None
    ) -> None:
        """`present`: who takes part; none: everybody who has a block."""
        self.layout, self.block_of, self.mine = layout, block_of, block_of[rank]
        world, size = len(block_of), layout.codec.memory.itemsize
        self.present = present or tuple(range(world))
        order = [(rank + n) % world for n in range(1, world)]  # the next rank first: incast is spread
        peers = [peer for peer in order if peer in self.present]

        def part(peer: int, block: int, at: int) -> Array:
            return row(peer, block=block, at=at, size=layout.counts[block] * size, segment=layout.segment)

        starts = [offset * size for offset in layout.offsets]
        self.mine_at = starts[self.mine]  # bytes
        self.scatter_sends = Flows(part(p, block_of[p], starts[block_of[p]]) for p in peers)
        # Added in this order, which is mostly that in which they come: less has to wait for its turn.
        self.scatter_receives = Flows(part(p, self.mine, 0) for p in reversed(peers))
        self.gather_sends = Flows(part(p, self.mine, 0) for p in peers)
        self.gather_receives = Flows(part(p, block_of[p], starts[block_of[p]]) for p in peers)
        self.elements = sum(layout.counts)


@dataclass(frozen=True, kw_only=True)
class Parcels:
    """How bytes are cut whose sender knows what is in them. `width`: bytes a packet, 0 for the widest; `sent`, `taken`:
    by peer, the block that goes there or comes from there."""

    width: int = 0
    sent: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()


def exchange(
    send: Mapping[int, Bytes],
    receive: Mapping[int, Bytes],
    *,
    rank: int,
    world: int,
    datagram_bytes: int,
    cut: Parcels = Parcels(),  # noqa: B008 - it can't be changed
) -> tuple[Flows, Flows]:
    """(sends, receives) of bytes to and from any peers; their memory is where it is."""
    order = [(rank + n) % world for n in range(1, world)]

    def parts(side: Mapping[int, Bytes], blocks: tuple[int, ...]) -> Flows:
        return Flows(part(peer, side[peer], blocks[peer] if blocks else 0) for peer in order if peer in side)

    def part(peer: int, data: Bytes, block: int) -> Array:
        segment = HEADER_BYTES + (cut.width or payload(len(data), datagram_bytes))
        return row(peer, block=block, at=address(data), size=len(data), segment=segment)

    return parts(send, cut.sent), parts(receive, cut.taken)


def payload(size: int, datagram_bytes: int) -> int:
    """Bytes a packet, of so many: the widest, or all of them in one."""
    widest = (datagram_bytes - HEADER_BYTES) // ALIGN * ALIGN
    return max(ALIGN, min(widest, -(-size // ALIGN) * ALIGN))


def evenly(size: int, datagram_bytes: int, *, beside: int = 0) -> int:
    """Bytes a packet, of so many and a few `beside` them in each: as few packets as can be, all about as long."""
    widest = (datagram_bytes - HEADER_BYTES) // ALIGN * ALIGN
    packets = max(1, -(-size // (widest - beside)))
    return payload(-(-size // packets) + beside, datagram_bytes)
