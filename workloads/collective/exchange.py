"""What must arrive: bytes between ranks by selective repeat, and the collectives made of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from lossbench.contract import HALVES
from lossbench.workloads.collective.context import Group
from lossbench.workloads.errors import TransportError
from lossbench.workloads.transport import plan
from lossbench.workloads.transport.half import Half, Result
from lossbench.workloads.transport.jobs import Asked
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.codec import Codec
from lossbench.workloads.transport.packet.layout import Layout, even
from lossbench.workloads.transport.packet.wire import Array, Bytes

COMBINE = {
    "sum": np.add,
    "avg": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
TICKET = np.zeros(8, dtype=np.uint8)
IN_PARTS_BYTES = 64 << 10  # from here on a broadcast is passed on


def ask(
    group: Group,
    *,
    send: Mapping[int, Bytes],
    receive: Mapping[int, Bytes],
    call: str = "exchange",
    dtype: str = "bytes",
    size: int = 0,
    **how: Any,
) -> Asked:
    """To and from any peers, any sizes that both ends know; over when all has arrived, here and there. `size`: of the
    call, where all ranks have the same. `how`: see Moving."""
    return _begun(group, Moving(group, send, receive, call=call, dtype=dtype, size=size, **how))


class Moving:
    """Bytes to and from peers, as a half: one of this shape that nobody uses now, or a new one."""

    def __init__(
        self,
        group: Group,
        send: Mapping[int, Bytes],
        receive: Mapping[int, Bytes],
        *,
        call: str,
        dtype: str,
        size: int,
        after: bool = False,
        half: str = "all_gather",
        reliable: bool = True,
        cut: plan.Parcels = plan.Parcels(),  # noqa: B008 - it can't be changed
    ) -> None:
        sizes = tuple((peer, len(data)) for side in (send, receive) for peer, data in side.items())
        self.key = ("moving", len(send), sizes, call, dtype, size, after, half, reliable, cut)

        def make() -> Half:
            endpoint = group.endpoint
            if gone := [peer for peer in {**send, **receive} if peer not in endpoint.peers]:
                raise TransportError(f"rank {endpoint.rank}: rank {gone[0]} is not here, and this call needs it")
            sends, receives = plan.exchange(
                send, receive, rank=endpoint.rank, world=endpoint.world, datagram_bytes=endpoint.datagram_bytes, cut=cut
            )
            return Half(
                half=HALVES[half],
                signature=wire.signature(dtype, call),
                size=size,
                sends=sends,
                receives=receives,
                reliable=reliable,
                after=after,
            )

        self.half = group.spare(self.key, make)
        for flows, side in zip(self.half.plan, (send, receive), strict=True):
            flows.aim(side)
        self.half.aim(source=0, target=0, holds=(send, receive))


def _begun(group: Group, *moving: Moving) -> Asked:
    halves = [one.half for one in moving]
    group.endpoint.start(*halves)

    def then(_: object) -> None:
        for one in moving:
            group.put_back(one.key, one.half)

    return Asked(halves=halves, then=then)


def finish(group: Group, asked: Asked) -> list[Result]:
    """Until it is over."""
    results = group.endpoint.finish(asked.halves)
    if asked.then is not None:
        asked.then(results)
    return results


def exchange(group: Group, **how: Any) -> None:
    """`ask`, and until it is over."""
    finish(group, ask(group, **how))


def ask_barrier(group: Group) -> Asked:
    """Everybody has come when a ticket of everybody has."""
    peers = group.endpoint.peers
    rooms = {peer: np.zeros(8, np.uint8) for peer in peers}
    return ask(group, send=dict.fromkeys(peers, TICKET), receive=rooms, call="barrier")


def barrier(group: Group) -> None:
    finish(group, ask_barrier(group))


def ask_broadcast(group: Group, data: Bytes, *, root: int, dtype: str, size: int) -> Asked:
    """In place. What is long goes in parts, one to each rank, who passes it on to the others: the root's link carries
    it once instead of N-1 times."""
    endpoint = group.endpoint
    moving = partial(Moving, group, call="broadcast", dtype=dtype, size=size)
    others = [rank for rank in endpoint.present if rank != root]
    mine = endpoint.rank == root
    if len(data) < IN_PARTS_BYTES or len(others) < 2:
        return _begun(group, moving(dict.fromkeys(others, data), {}) if mine else moving({}, {root: data}))
    cuts = np.cumsum(even(len(data) // 8, len(others)))[:-1] * 8
    part = dict(zip(others, np.split(data, cuts), strict=True))
    if mine:
        return _begun(group, moving(part, {}), moving({}, {}, after=True))
    own, rest = part[endpoint.rank], {rank: part[rank] for rank in others if rank != endpoint.rank}
    return _begun(group, moving({}, {root: own}), moving(dict.fromkeys(rest, own), rest, after=True))


def broadcast(group: Group, data: Bytes, *, root: int, dtype: str = "bytes") -> None:
    """Until it is over."""
    finish(group, ask_broadcast(group, data, root=root, dtype=dtype, size=len(data)))


def gather(group: Group, mine: Bytes, rooms: list[Bytes] | None, *, root: int, dtype: str = "bytes") -> None:
    """Equal sizes; `rooms` at the root only, by rank."""
    endpoint = group.endpoint
    if endpoint.rank != root:
        exchange(group, send={root: mine}, receive={}, call="gather", dtype=dtype, size=len(mine))
        return
    assert rooms is not None
    taken = {peer: rooms[peer] for peer in endpoint.peers}
    exchange(group, send={}, receive=taken, call="gather", dtype=dtype, size=len(mine))
    rooms[root][:] = mine


def scatter(group: Group, parts: list[Bytes] | None, room: Bytes, *, root: int, dtype: str = "bytes") -> None:
    endpoint = group.endpoint
    if endpoint.rank != root:
        exchange(group, send={}, receive={root: room}, call="scatter", dtype=dtype, size=len(room))
        return
    assert parts is not None
    given = {peer: parts[peer] for peer in endpoint.peers}
    exchange(group, send=given, receive={}, call="scatter", dtype=dtype, size=len(room))
    room[:] = parts[root]


def all_to_all(
    group: Group, parts: list[Bytes], rooms: list[Bytes], *, call: str = "all_to_all", dtype: str = "bytes"
) -> None:
    endpoint = group.endpoint
    rooms[endpoint.rank][:] = parts[endpoint.rank]
    given, taken = ({peer: side[peer] for peer in endpoint.peers} for side in (parts, rooms))
    exchange(group, send=given, receive=taken, call=call, dtype=dtype)


def all_gather(group: Group, mine: Bytes, rooms: list[Bytes], *, dtype: str = "bytes") -> None:
    """Sizes may differ between ranks, as long as all know them."""
    all_to_all(group, [mine] * group.endpoint.world, rooms, call="all_gather", dtype=dtype)


def all_reduce(group: Group, flat: Array, *, codec: Codec, op: str) -> None:
    """In place, of anything: every rank collects its block from all, combines it, and gives it to all."""
    endpoint, size = group.endpoint, codec.memory.itemsize
    layout = Layout.plan(endpoint.even(len(flat)), codec=codec, datagram_bytes=endpoint.datagram_bytes)
    blocks = [layout.block(flat, rank) for rank in range(endpoint.world)]
    mine = reduce_scatter(group, blocks, codec=codec, op=op)
    blocks[endpoint.rank][:] = mine
    rooms = {peer: blocks[peer].view(np.uint8) for peer in endpoint.peers}
    given = blocks[endpoint.rank].view(np.uint8)
    exchange(
        group,
        send=dict.fromkeys(endpoint.peers, given),
        receive=rooms,
        call=op,
        dtype=codec.name,
        size=len(flat) * size,
    )


def reduce_scatter(group: Group, blocks: list[Array], *, codec: Codec, op: str) -> Array:
    """This rank's block of everybody, combined in wide elements."""
    endpoint = group.endpoint
    own = blocks[endpoint.rank]
    rooms = {peer: np.empty_like(own) for peer in endpoint.peers}
    exchange(
        group,
        send={peer: np.ascontiguousarray(blocks[peer]).view(np.uint8) for peer in endpoint.peers},
        receive={peer: room.view(np.uint8) for peer, room in rooms.items()},
        call=op,
        dtype=codec.name,
        size=sum(len(block) for block in blocks),
    )
    out = codec.widen(own).copy()
    for rank in range(endpoint.world):  # in the order of ranks: the same bits wherever it is done
        if rank in rooms:
            COMBINE[op](out, codec.widen(rooms[rank]), out=out)
    if op == "avg":
        out[:] = out / len(endpoint.present)
    return codec.narrow(out)
