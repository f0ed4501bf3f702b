"""What arrives is right: every collective on loopback, where nothing is lost, against plain numpy."""

from __future__ import annotations

import time

import numpy as np
import pytest

from lossbench.workloads.allreduce.loop import resident_mb
from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.context import Group
from lossbench.workloads.collective.reduce import all_gather, all_reduce, reduce_scatter
from lossbench.workloads.transport.jobs import Asked, Call
from lossbench.workloads.transport.native import build
from lossbench.workloads.transport.packet.codec import CODECS, Codec
from lossbench.workloads.transport.policy import Policy

from .conftest import Make, make_ranks

F32 = CODECS["float32"]


def values(rank: int, count: int, codec: Codec = F32) -> np.ndarray:
    return codec.narrow(np.random.default_rng(rank).standard_normal(count).astype(np.float32)).copy()


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 7, 1000, 123_457])
def test_a_sum_is_the_sum(ranks: Make, world: int, count: int) -> None:
    def job(group: Group) -> np.ndarray:
        mine = values(group.endpoint.rank, count)
        all_reduce(group, mine, codec=F32)
        return mine

    wanted = np.sum([values(rank, count) for rank in range(world)], axis=0)
    for got in ranks(world).all(job):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_short_floats_are_summed_in_float32_and_rounded_once(ranks: Make, name: str) -> None:
    codec, world, count = CODECS[name], 4, 5000

    def job(group: Group) -> np.ndarray:
        mine = values(group.endpoint.rank, count, codec)
        all_reduce(group, mine, codec=codec, op="avg")
        return mine

    exact = np.mean([codec.widen(values(rank, count, codec)) for rank in range(world)], axis=0)
    results = ranks(world).all(job)
    assert all(np.array_equal(results[0], other) for other in results), "all ranks hold the same bits"
    wide = codec.widen(results[0])
    step = 2.0**-8 if name == "bfloat16" else 2.0**-11
    assert np.all(np.abs(wide - exact) <= step * np.maximum(np.abs(exact), 1e-2))


@pytest.mark.parametrize(
    ("op", "reduce"), [("max", np.max), ("min", np.min), ("product", np.prod), ("sum", np.sum), ("avg", np.mean)]
)
def test_what_must_arrive_does(ranks: Make, op: str, reduce: object) -> None:
    """Integers and doubles, reliably."""
    name = "float64" if op == "avg" else "int64"

    def mine(rank: int) -> np.ndarray:
        return np.random.default_rng(rank).integers(-9, 9, 3001).astype(name)

    def job(group: Group) -> np.ndarray:
        array = mine(group.endpoint.rank)
        all_reduce(group, array, codec=CODECS[name], op=op, lossy=False)
        return array

    wanted = reduce([mine(rank) for rank in range(3)], axis=0)  # type: ignore[operator]
    for got in ranks(3).all(job):
        np.testing.assert_allclose(got, wanted)


def test_blocks_of_any_size_and_any_owner(ranks: Make) -> None:
    """Shards cut at tensor boundaries, owners permuted, one block empty."""
    counts, owners = (5000, 0, 17, 900), (2, 0, 3, 1)

    def job(group: Group) -> np.ndarray:
        mine = values(group.endpoint.rank, sum(counts))
        all_reduce(group, mine, codec=F32, counts=counts, block_of=owners)
        return mine

    wanted = np.sum([values(rank, sum(counts)) for rank in range(4)], axis=0)
    for got in ranks(4).all(job):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_the_halves_alone(ranks: Make) -> None:
    counts = (10, 2000, 33)
    starts = np.cumsum((0, *counts))

    def job(group: Group) -> tuple[np.ndarray, np.ndarray]:
        rank = group.endpoint.rank
        given = values(rank, sum(counts))
        block = reduce_scatter(group, given, codec=F32, op="avg", counts=counts)
        assert np.array_equal(given, values(rank, sum(counts))), "the input stays as it was"
        out = np.zeros(sum(counts), np.float32)
        all_gather(group, block, out, codec=F32, lossy=True, counts=counts)
        return block, out

    wanted = np.mean([values(rank, sum(counts)) for rank in range(3)], axis=0)
    for rank, (block, out) in enumerate(ranks(3).all(job)):
        np.testing.assert_allclose(block, wanted[starts[rank] : starts[rank + 1]], atol=1e-6)
        np.testing.assert_allclose(out, wanted, atol=1e-6)


def test_the_own_part_is_optional(ranks: Make) -> None:
    def job(group: Group) -> np.ndarray:
        given = np.full(30, float(group.endpoint.rank), np.float32)
        return reduce_scatter(group, given, codec=F32, op="avg", own=False)

    for rank, got in enumerate(ranks(3).all(job)):
        others = [other for other in range(3) if other != rank]
        np.testing.assert_allclose(got, np.mean(others))


def test_bytes_of_any_size_between_any_ranks(ranks: Make) -> None:
    sizes = {(a, b): (a * 977 + b * 31) % 5000 for a in range(4) for b in range(4)}

    def data(a: int, b: int) -> np.ndarray:
        return np.random.default_rng(a * 10 + b).integers(0, 256, sizes[a, b]).astype(np.uint8)

    def job(group: Group) -> list[np.ndarray]:
        rank = group.endpoint.rank
        rooms = [np.zeros(sizes[peer, rank], np.uint8) for peer in range(4)]
        exchange.all_to_all(group, [data(rank, peer) for peer in range(4)], rooms)
        exchange.barrier(group)
        return rooms

    for rank, rooms in enumerate(ranks(4).all(job)):
        for peer, room in enumerate(rooms):
            assert np.array_equal(room, data(peer, rank))


def test_a_window_of_a_few_packets_is_slow_but_right(ranks: Make) -> None:
    """A receiver without room gives no credit: nothing overflows, everything arrives."""

    def job(group: Group) -> np.ndarray:
        mine = values(group.endpoint.rank, 300_000)
        all_reduce(group, mine, codec=F32)
        return mine

    made = ranks(3, policy=Policy(window_kb=16))
    wanted = np.sum([values(rank, 300_000) for rank in range(3)], axis=0)
    for got in made.all(job):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    for group in made.groups:
        counters = group.endpoint.read()
        assert counters["overflow"] == 0 and counters["data_arrived"] == counters["data_expected"] > 0


def test_the_account_says_what_arrived(ranks: Make) -> None:
    def job(group: Group) -> Group:
        all_reduce(group, values(group.endpoint.rank, 10_000), codec=F32)
        return group

    for group in ranks(3).all(job):
        assert [account.ended for account in group.accounts] == ["all", "all"]
        assert [account.fraction for account in group.accounts] == [1.0, 1.0]
        assert all(set(account.per_peer()) == set(group.endpoint.peers) for account in group.accounts)
        assert group.endpoint.read()["payload_bytes"] > 0


def test_a_thousand_calls_hold_no_more_memory_than_a_hundred(ranks: Make) -> None:
    def job(group: Group) -> None:
        for _ in range(100):
            all_reduce(group, values(group.endpoint.rank, 3000), codec=F32)

    made = ranks(2)
    made.all(job)
    before = resident_mb()
    for _ in range(9):
        made.all(job)
    assert resident_mb() - before < 5, "nine times as many would have left nine times as much"


def test_engines_of_both_kinds_understand_each_other() -> None:
    """One group, every other rank in C, the others in numpy: what they say on the wire is the same."""
    if isinstance(build.load(), str):
        pytest.skip(f"no compiled engine: {build.load()}")
    made = make_ranks(4, engines=["compiled", "plain", "compiled", "plain"])
    try:
        for codec in (F32, CODECS["bfloat16"], CODECS["float16"]):

            def job(group: Group, codec: Codec = codec) -> np.ndarray:
                mine = values(group.endpoint.rank, 40_001, codec)
                all_reduce(group, mine, codec=codec)
                exchange.barrier(group)
                return mine

            results = made.all(job)
            assert all(np.array_equal(results[0], other) for other in results[1:]), "the same bits everywhere"
            exact = np.sum([codec.widen(values(rank, 40_001, codec)) for rank in range(4)], axis=0)
            np.testing.assert_allclose(codec.widen(results[0]), exact, atol=0.05)
    finally:
        made.close()


def test_packets_larger_than_the_room_do_not_stall(ranks: Make) -> None:
    """As it was: room for less than two packets (jumbo frames, loopback) was given to whoever asked, after 20 ms."""
    made = ranks(2, policy=Policy(window_kb=8, send_thread="off"))
    segment = made.groups[0].endpoint.datagram_bytes
    assert segment > 4096, "loopback has large packets"
    given = [np.full(400_000, float(rank + 1), np.float32) for rank in range(2)]
    made.all(lambda group: all_reduce(group, given[group.endpoint.rank], codec=F32))
    assert all(bool((one == 3).all()) for one in given)
    packets = given[0].nbytes // segment
    asked = [group.endpoint.read()["markers"] for group in made.groups]
    assert max(asked) < packets / 3, "room came by itself; on a busy machine some are asked for all the same"


def test_reliable_sums_have_the_same_bits_at_every_call(ranks: Make) -> None:
    """Added in one order, whoever's packets come first. As it was: 20 calls, 20 results."""
    made = ranks(4)

    def job(group: Group) -> bytes:
        mine = np.random.default_rng(group.endpoint.rank).standard_normal(100_000).astype(np.float32)
        all_reduce(group, mine, codec=F32, lossy=False)
        return mine.tobytes()

    assert len({got for _ in range(8) for got in made.all(job)}) == 1


@pytest.mark.parametrize(("sum_order", "sums"), [("fixed", 1), ("arrival", 2)])
def test_whoever_comes_last_changes_no_reliable_sum_unless_sums_are_asked_for_as_packets_come(
    ranks: Make, sum_order: str, sums: int
) -> None:
    """1e8 - 1e8 + 1 is one, 1e8 + 1 - 1e8 is none."""
    values, found = (0.0, 1e8, -1e8, 1.0), set[float]()
    for last in (3, 2) * 5:  # who comes before the owner itself has begun waits for it, and is added in another order
        if len(found) == 2:
            break
        made = ranks(4, policy=Policy(sum_order=sum_order))

        def job(group: Group) -> float:
            mine = np.full(4, values[group.endpoint.rank], np.float32)
            all_reduce(group, mine, codec=F32, lossy=False)
            return float(mine[0])

        owner, others = made.groups[0].endpoint, [rank for rank in range(4) if rank != last]
        calls = [made.start(rank, job) for rank in others]
        until = time.monotonic() + 60
        while not all(owner.read()["received"][rank] for rank in others[1:]):
            assert time.monotonic() < until
            time.sleep(0.001)
        calls.append(made.start(last, job))
        found.update(call.result(60) for call in calls)
    assert len(found) == sums, found


def test_a_call_that_is_done_has_put_its_result_where_it_belongs(ranks: Make) -> None:
    """As it was: done when all had arrived, and what was still to be copied was not there."""
    made, put = ranks(2), list[int]()

    def begun(group: Group) -> Call:
        def job() -> Asked:
            return Asked(halves=exchange.ask_barrier(group).halves, then=lambda _: put.append(group.endpoint.rank))

        return group.endpoint.begin(job)

    calls, until = [begun(group) for group in made.groups], time.monotonic() + 60
    while not all(call.done() for call in calls):
        assert time.monotonic() < until
        time.sleep(0.001)
    assert sorted(put) == [0, 1]
