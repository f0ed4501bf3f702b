"""The two halves as primitives, on flat numpy arrays: run inside an endpoint's thread (`Endpoint.submit`).

out, account = reduce_scatter(endpoint, values, cut, policy...)      mean over the contributions that arrived
account      = all_gather(endpoint, mine, out, cut)                  what is missing keeps what `out` held
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lossbench.contract import HALVES, HEADER_BYTES
from lossbench.workloads.transport.endpoint import Endpoint
from lossbench.workloads.transport.flow import Incoming
from lossbench.workloads.transport.half import Account, Half
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.layout import Layout
from lossbench.workloads.transport.packet.wire import Array, Bits
from lossbench.workloads.transport.sink import Add, Put

SCATTER, GATHER = HALVES["reduce_scatter"], HALVES["all_gather"]
Combine = Callable[..., Array]  # a numpy ufunc with `out`


@dataclass(kw_only=True)
class Reduction:
    """The first half, under way or done. `mine` is the block this rank owns."""

    half: Half
    layout: Layout
    mine: int
    sums: Array  # wide elements of its own block: own part (if wanted) and what arrived
    own: Array | None  # this rank's own contribution, where it is still needed afterwards
    counts_own: bool
    account: Account | None = None

    def counts(self) -> Array:
        """Contributions per packet of its own block."""
        assert self.account is not None
        out = np.full(self.layout.packets[self.mine], int(self.counts_own), dtype=np.int32)
        for arrived in self.account.arrived.values():
            out += arrived
        return out


def start_reduce_scatter(
    endpoint: Endpoint,
    values: Array,
    *,
    layout: Layout,
    block_of: tuple[int, ...],
    own: bool = True,
    in_place: bool = False,
    keep_own: bool = False,
    combine: Combine = np.add,
    reliable: bool = False,
    ready: Callable[[int], bool] | None = None,
) -> Reduction:
    """Ears open; `Endpoint.drive` does the rest. `block_of[rank]` is the block that rank owns. `in_place`: sums may be
    made in `values` itself, where its type allows it. `ready(block)`: are these values there (copied from a GPU)?"""
    half = endpoint.open(half=SCATTER, reliable=reliable)
    codec, mine = layout.codec, block_of[endpoint.rank]
    for peer in endpoint.peers:
        block = block_of[peer]
        part = wire.as_bytes(layout.block(values, block))
        is_there = None if ready is None else partial(ready, block)
        endpoint.send_to(half, peer, part, segment=layout.segment, block=block, code=codec.code, ready=is_there)
    if ready is not None:
        endpoint.answer_until(partial(ready, mine))
    own_part = layout.block(values, mine)
    kept = codec.widen(own_part).copy() if keep_own else None
    if in_place and own and codec.memory == codec.wide:
        sums = own_part
    else:
        sums = endpoint.buffers.bytes("sums", len(own_part) * codec.wide.itemsize).view(codec.wide)
        sums[:] = codec.widen(own_part) if own else 0
    for peer in endpoint.peers:
        sink = Add(sums, layout.width, codec, combine)
        half.incoming[peer] = Incoming(peer=peer, total=layout.packets[mine], segment=layout.segment, sink=sink)
    endpoint.listen(half, code=codec.code)
    return Reduction(half=half, layout=layout, mine=mine, sums=sums, own=kept, counts_own=own)


def normalise(reduction: Reduction, *, op: str, normaliser: str, world: int, loss: float) -> Bits:
    """Sums to means (`avg`) or N times means (`sum`), in place. `count`: of what arrived; `world`: divided by N;
    `expected`: own part by N, others by N(1-p). Returns the packets to which nothing contributed: they hold zero."""
    counts, sums = reduction.counts(), reduction.sums
    times = world if op == "sum" else 1
    wide = replace(reduction.layout.codec, name="sums", memory=sums.dtype)
    if normaliser == "count":
        factors = times / np.maximum(counts, 1)
    elif normaliser == "world":
        factors = np.full(len(counts), times / world)
    else:
        factors = np.full(len(counts), times / (world * max(1 - loss, 1e-6)))
        if reduction.own is not None and reduction.counts_own:
            sums -= reduction.own
    reduction.layout.scale(sums, factors, codec=wide)
    if normaliser == "expected" and reduction.own is not None and reduction.counts_own:
        sums += reduction.own * sums.dtype.type(times / world)
    empty: Bits = counts == 0
    return empty


def start_all_gather(
    endpoint: Endpoint, out: Array, *, layout: Layout, block_of: tuple[int, ...], reliable: bool = False
) -> Half:
    """Ears open for every other block; arriving packets go straight to where they belong in `out`. Missing ones leave
    what is there."""
    half = endpoint.open(half=GATHER, reliable=reliable)
    for peer in endpoint.peers:
        block = block_of[peer]
        sink = Put(layout.block(out, block), layout.width)
        half.incoming[peer] = Incoming(peer=peer, total=layout.packets[block], segment=layout.segment, sink=sink)
    endpoint.listen(half, code=layout.codec.code)
    return half


def finish_all_gather(endpoint: Endpoint, half: Half, mine: Array, *, layout: Layout, block: int) -> Account:
    """Send its own block, in its memory format, to everybody; until the half ends."""
    for peer in endpoint.peers:
        endpoint.send_to(half, peer, wire.as_bytes(mine), segment=layout.segment, block=block, code=layout.codec.code)
    return endpoint.drive(half)


def payload_bytes(account: Account, segment: int) -> int:
    return sum(int(bits.sum()) for bits in account.arrived.values()) * (segment - HEADER_BYTES)
