"""Collectives made of the two halves: all-reduce, reduce-scatter, all-gather, lossy or reliable, on flat arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from lossbench.workloads.collective import halves
from lossbench.workloads.transport.endpoint import Endpoint
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.packet.codec import LOSSY, Codec
from lossbench.workloads.transport.packet.layout import Layout, even
from lossbench.workloads.transport.packet.wire import Array, Bits

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
FORGET = 0.98  # of the measured loss, per half
PRIOR_PACKETS, MOST = 20.0, 0.9


@dataclass
class Group:
    """An endpoint, and the loss it has measured so far (for the normaliser `expected`)."""

    endpoint: Endpoint
    loss: float = 0.0
    _expected: float = PRIOR_PACKETS  # nothing lost so far, as a weak belief
    _lost: float = 0.0
    accounts: list[Account] = field(default_factory=list)  # of the latest call
    since_step: deque[Account] = field(default_factory=partial(deque, maxlen=256))  # of all calls of a training step
    empty_packets: int = 0  # to which nothing contributed

    def layout(self, counts: Sequence[int], codec: Codec) -> Layout:
        return Layout.plan(tuple(counts), codec=codec, datagram_bytes=self.endpoint.datagram_bytes)

    def everyone(self) -> tuple[int, ...]:
        """Block j belongs to rank j."""
        return tuple(range(self.endpoint.world))

    def heard(self, account: Account) -> None:
        """Measured over the latest first halves, by packets: one short half says little."""
        self.accounts.append(account)
        self.since_step.append(account)
        if account.half != halves.SCATTER:
            return
        expected = sum(len(bits) for bits in account.arrived.values())
        arrived = sum(int(bits.sum()) for bits in account.arrived.values())
        self._expected = FORGET * self._expected + expected
        self._lost = FORGET * self._lost + expected - arrived
        self.loss = min(self._lost / self._expected, MOST) if self._expected else 0.0


def is_lossy(codec: Codec, op: str) -> bool:
    """What may lose packets: means of floating-point numbers. Everything else must arrive."""
    return codec.name in LOSSY and op in ("sum", "avg")


def scatter_half(
    group: Group, reduction: halves.Reduction, *, op: str, normaliser: str, lossy: bool
) -> tuple[Array, Bits]:
    """Drive the first half to its end; its own block reduced, wide and flat, and the packets nothing contributed to."""
    endpoint, world = group.endpoint, group.endpoint.world
    reduction.account = endpoint.drive(reduction.half)
    empty: Bits = np.zeros(0, dtype=np.bool_)
    if lossy:
        group.heard(reduction.account)
        empty = halves.normalise(reduction, op=op, normaliser=normaliser, world=world, loss=group.loss)
        group.empty_packets += int(empty.sum())
        endpoint.counters.payload_bytes += halves.payload_bytes(reduction.account, reduction.layout.segment)
    elif op == "avg":
        reduction.sums[:] = reduction.sums / world
    return reduction.sums, empty


def all_reduce(
    group: Group,
    flat: Array,
    *,
    codec: Codec,
    op: str = "sum",
    lossy: bool = True,
    block_of: tuple[int, ...] | None = None,
    counts: Sequence[int] | None = None,
    ready: Callable[[int], bool] | None = None,
) -> None:
    """In place. Under loss: SUM is N times the mean of what arrived; a lost second half keeps N times its own values
    (AVG: the mean, its own values), or zero, by the policy's `missing`."""
    endpoint, policy = group.endpoint, group.endpoint.policy
    world = endpoint.world
    block_of = block_of or group.everyone()
    layout = group.layout(counts or even(len(flat), world), codec)
    group.accounts = []
    reduction = halves.start_reduce_scatter(
        endpoint,
        flat,
        layout=layout,
        block_of=block_of,
        in_place=True,
        combine=COMBINE[op],
        reliable=not lossy,
        keep_own=lossy and policy.normaliser == "expected",
        ready=ready,
    )
    gather = partial(halves.start_all_gather, endpoint, flat, layout=layout, block_of=block_of, reliable=not lossy)
    # Faster peers may send their block already: it goes where it belongs, unless a copy into `flat` still runs.
    early = gather() if ready is None else None
    reduced, _ = scatter_half(group, reduction, op=op, normaliser=policy.normaliser, lossy=lossy)
    second = early or gather()
    mine = codec.narrow(reduced)
    account = halves.finish_all_gather(endpoint, second, mine, layout=layout, block=reduction.mine)
    if not np.may_share_memory(mine, flat):
        layout.block(flat, reduction.mine)[:] = mine
    if lossy:
        group.heard(account)
        endpoint.counters.payload_bytes += halves.payload_bytes(account, layout.segment)
        factor = 0 if policy.missing == "zero" else world if op == "sum" else 1
        fall_back(layout, flat, account, block_of, factor=factor)


def fall_back(layout: Layout, flat: Array, account: Account, block_of: tuple[int, ...], *, factor: int) -> None:
    """Packets that did not come: the values that are there, times `factor`."""
    if factor == 1:
        return
    for peer, arrived in account.arrived.items():
        layout.scale(layout.block(flat, block_of[peer]), np.where(arrived, 1.0, factor))


def reduce_scatter(
    group: Group,
    values: Array,
    *,
    codec: Codec,
    op: str = "sum",
    lossy: bool = True,
    counts: Sequence[int] | None = None,
    own: bool = True,
    block_of: tuple[int, ...] | None = None,
    normaliser: str | None = None,
) -> Array:
    """Its own block, reduced. Packets to which nothing contributed keep its own contribution (times N for SUM)."""
    endpoint = group.endpoint
    normaliser = normaliser or endpoint.policy.normaliser
    layout = group.layout(counts or even(len(values), endpoint.world), codec)
    group.accounts = []
    reduction = halves.start_reduce_scatter(
        endpoint,
        values,
        layout=layout,
        block_of=block_of or group.everyone(),
        own=own,
        combine=COMBINE[op],
        reliable=not lossy,
        keep_own=not own or normaliser == "expected",
    )
    reduced, empty = scatter_half(group, reduction, op=op, normaliser=normaliser, lossy=lossy)
    if empty.any() and reduction.own is not None:
        where = np.repeat(empty, layout.width)[: len(reduced)]
        reduced[where] = reduction.own[where] * (endpoint.world if op == "sum" else 1)
    return codec.narrow(reduced).copy()


def all_gather(
    group: Group,
    mine: Array,
    out: Array,
    *,
    codec: Codec,
    lossy: bool,
    counts: Sequence[int],
    block_of: tuple[int, ...] | None = None,
    zero_missing: bool = False,
) -> Account:
    """Everybody's block into `out`; what is missing keeps what `out` held, or becomes zero if asked."""
    endpoint = group.endpoint
    block_of = block_of or group.everyone()
    layout = group.layout(counts, codec)
    group.accounts = []
    half = halves.start_all_gather(endpoint, out, layout=layout, block_of=block_of, reliable=not lossy)
    account = halves.finish_all_gather(endpoint, half, mine, layout=layout, block=block_of[endpoint.rank])
    layout.block(out, block_of[endpoint.rank])[:] = mine
    if lossy:
        group.heard(account)
        endpoint.counters.payload_bytes += halves.payload_bytes(account, layout.segment)
        if zero_missing:
            fall_back(layout, out, account, block_of, factor=0)
    return account
