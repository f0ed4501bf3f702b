"""Collectives made of the two halves: all-reduce, reduce-scatter, all-gather, lossy or reliable, on flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.context import Group
from lossbench.workloads.collective.halves import GatherHalf, Reducing, ScatterHalf
from lossbench.workloads.transport.half import Account, Result
from lossbench.workloads.transport.jobs import Asked
from lossbench.workloads.transport.packet.codec import LOSSY, Codec
from lossbench.workloads.transport.packet.wire import Array
from lossbench.workloads.transport.plan import Plan, address
from lossbench.workloads.transport.policy import Policy


def is_lossy(codec: Codec, op: str) -> bool:
    """What may lose packets: means of floating-point numbers. Everything else must arrive."""
    return codec.name in LOSSY and op in ("sum", "avg")


def ask_all_reduce(
    group: Group, at: int, *, plan: Plan, op: str = "sum", lossy: bool = True, held: bool = False, holds: Any
) -> Asked:
    """Of what lies at this address, in place: sums or means of floats. Under loss SUM is N times the mean of what
    arrived; a lost second half keeps N times its own values (AVG: the mean, its own values), or zero, by the policy's
    `missing`. `held`: the flows of the first half wait to be released, one by one."""
    endpoint, policy = group.endpoint, group.endpoint.policy
    key = (plan, op, lossy)
    first, second = group.spare(key, lambda: pair_of(plan, op=op, lossy=lossy, policy=policy))
    mine = at + plan.mine_at
    first.reduce(at, mine, holds=holds, weights=group.weights() if lossy and group.measures else None)
    second.gather(mine, at, holds=holds)
    first.record.hold = held
    endpoint.start(first, second)

    def then(results: list[Result]) -> None:
        group.put_back(key, (first, second))
        if lossy:
            group.noted(results)

    return Asked(halves=(first, second), then=then)


def pair_of(plan: Plan, *, op: str, lossy: bool, policy: Policy) -> tuple[ScatterHalf, GatherHalf]:
    how = Reducing(op=op, normaliser=policy.normaliser if lossy else "count", lossy=lossy)
    own = float(len(plan.present)) if op == "sum" else 1.0
    missing = 1.0 if not lossy else 0.0 if policy.missing == "zero" else own
    return ScatterHalf(plan, how), GatherHalf(plan, call=op, reliable=not lossy, missing=missing, after=True)


def all_reduce(
    group: Group,
    flat: Array,
    *,
    codec: Codec,
    op: str = "sum",
    lossy: bool = True,
    block_of: tuple[int, ...] | None = None,
    counts: Sequence[int] | None = None,
) -> None:
    """Of anything, in place, until it ends. See `ask_all_reduce`."""
    if is_lossy(codec, op):
        plan = group.plan(counts or group.endpoint.even(len(flat)), codec, block_of)
        asked = ask_all_reduce(group, address(flat), plan=plan, op=op, lossy=lossy, holds=flat)
        assert asked.then is not None
        asked.then(group.endpoint.finish(asked.halves))
    else:
        exchange.all_reduce(group, flat, codec=codec, op=op)


def ask_reduce_scatter(
    group: Group,
    values: Array,
    out: Array,
    *,
    codec: Codec,
    op: str = "sum",
    lossy: bool = True,
    counts: Sequence[int],
    own: bool = True,
    block_of: tuple[int, ...] | None = None,
    normaliser: str | None = None,
) -> Asked:
    """Sums or means of floats: its own block, reduced, into `out`. Packets to which nothing contributed keep its own
    contribution (times N for SUM)."""
    endpoint = group.endpoint
    normaliser = (normaliser or endpoint.policy.normaliser) if lossy else "count"
    plan = group.plan(counts, codec, block_of)
    weights = group.weights() if normaliser == "expected" else None
    half = ScatterHalf(plan, Reducing(op=op, normaliser=normaliser, own=own, lossy=lossy))
    half.reduce(address(values), address(out), holds=(values, out), weights=weights)
    endpoint.start(half)

    def then(results: list[Result]) -> None:
        group.noted(results if lossy else [], measure=normaliser == "expected")
        if not own and lossy:
            times = len(plan.present) if op == "sum" else 1
            _keep_own_where_empty(group, plan, results[0].account, values, out, times=times)

    return Asked(halves=(half,), then=then)


def _keep_own_where_empty(
    group: Group, plan: Plan, account: Account, values: Array, out: Array, *, times: float
) -> None:
    layout, codec = plan.layout, plan.layout.codec
    none = np.zeros(layout.packets[plan.mine], int)
    empty = sum((bits.astype(np.int32) for bits in account.arrived.values()), none) == 0
    group.empty_packets += int(empty.sum())
    where = np.repeat(empty, layout.width)[: len(out)]
    out[where] = codec.narrow(codec.widen(layout.block(values, plan.mine)[where]) * codec.wide.type(times))


def reduce_scatter(
    group: Group,
    values: Array,
    *,
    codec: Codec,
    op: str = "sum",
    counts: Sequence[int] | None = None,
    block_of: tuple[int, ...] | None = None,
    **how: Any,
) -> Array:
    """Of anything, until it ends. See `ask_reduce_scatter`."""
    endpoint = group.endpoint
    counts = counts or endpoint.even(len(values))
    if not is_lossy(codec, op):
        return exchange.reduce_scatter(group, np.split(values, np.cumsum(counts)[:-1]), codec=codec, op=op)
    out = np.empty(counts[(block_of or tuple(range(endpoint.world)))[endpoint.rank]], codec.memory)
    asked = ask_reduce_scatter(group, values, out, codec=codec, op=op, counts=counts, block_of=block_of, **how)
    exchange.finish(group, asked)
    return out


def ask_all_gather(
    group: Group,
    mine: Array,
    out: Array,
    *,
    codec: Codec,
    lossy: bool,
    counts: Sequence[int],
    block_of: tuple[int, ...] | None = None,
    zero_missing: bool = False,
) -> Asked:
    """Everybody's block into `out`; what is missing keeps what `out` held, or becomes zero if asked."""
    plan = group.plan(counts, codec, block_of)
    missing = 0.0 if zero_missing and lossy else 1.0
    half = GatherHalf(plan, call="all_gather", reliable=not lossy, missing=missing)
    half.gather(address(mine), address(out), holds=(mine, out))
    plan.layout.block(out, plan.mine)[:] = mine
    group.endpoint.start(half)
    return Asked(halves=(half,), then=lambda results: group.noted(results if lossy else []))


def all_gather(group: Group, mine: Array, out: Array, **how: Any) -> Account:
    """Until it ends. See `ask_all_gather`."""
    return exchange.finish(group, ask_all_gather(group, mine, out, **how))[0].account
