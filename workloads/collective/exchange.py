"""What must arrive: bytes between ranks by selective repeat, and the collectives made of it."""

from __future__ import annotations

import numpy as np

from lossbench.contract import HALVES
from lossbench.workloads.collective.reduce import Group
from lossbench.workloads.transport.flow import Incoming
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.packet.layout import Layout
from lossbench.workloads.transport.packet.wire import Bytes
from lossbench.workloads.transport.sink import Put

BYTES = CODECS["uint8"]
TICKET = np.zeros(8, dtype=np.uint8)


def exchange(group: Group, *, send: dict[int, Bytes], receive: dict[int, Bytes]) -> None:
    """To and from any peers, any sizes that both ends know; returns when all has arrived, here and there."""
    endpoint = group.endpoint
    half = endpoint.open(half=HALVES["all_gather"], reliable=True)
    for peer, data in send.items():
        layout = group.layout((len(data),), BYTES)
        endpoint.send_to(half, peer, data, segment=layout.segment, block=0, code=BYTES.code)
    for peer, room in receive.items():
        if len(room):
            half.incoming[peer] = _incoming(group.layout((len(room),), BYTES), peer, room)
    endpoint.listen(half, code=BYTES.code)
    endpoint.drive(half)


def _incoming(layout: Layout, peer: int, room: Bytes) -> Incoming:
    return Incoming(peer=peer, total=layout.packets[0], segment=layout.segment, sink=Put(room, layout.width))


def barrier(group: Group) -> None:
    """Everybody has come when a ticket of everybody has."""
    peers = group.endpoint.peers
    exchange(group, send=dict.fromkeys(peers, TICKET), receive={peer: np.zeros(8, np.uint8) for peer in peers})


def broadcast(group: Group, data: Bytes, *, root: int) -> None:
    """In place."""
    endpoint = group.endpoint
    if endpoint.rank == root:
        exchange(group, send=dict.fromkeys(endpoint.peers, data), receive={})
    else:
        exchange(group, send={}, receive={root: data})


def gather(group: Group, mine: Bytes, rooms: list[Bytes] | None, *, root: int) -> None:
    """Equal sizes; `rooms` at the root only, by rank."""
    endpoint = group.endpoint
    if endpoint.rank != root:
        exchange(group, send={root: mine}, receive={})
        return
    assert rooms is not None
    exchange(group, send={}, receive={peer: rooms[peer] for peer in endpoint.peers})
    rooms[root][:] = mine


def scatter(group: Group, parts: list[Bytes] | None, room: Bytes, *, root: int) -> None:
    endpoint = group.endpoint
    if endpoint.rank != root:
        exchange(group, send={}, receive={root: room})
        return
    assert parts is not None
    exchange(group, send={peer: parts[peer] for peer in endpoint.peers}, receive={})
    room[:] = parts[root]


def all_to_all(group: Group, parts: list[Bytes], rooms: list[Bytes]) -> None:
    endpoint = group.endpoint
    rooms[endpoint.rank][:] = parts[endpoint.rank]
    exchange(
        group,
        send={peer: parts[peer] for peer in endpoint.peers},
        receive={peer: rooms[peer] for peer in endpoint.peers},
    )


def all_gather(group: Group, mine: Bytes, rooms: list[Bytes]) -> None:
    """Sizes may differ between ranks, as long as all know them."""
    all_to_all(group, [mine] * group.endpoint.world, rooms)
