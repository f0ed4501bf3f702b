"""Tensors that are not simply what lies in their memory, and those of ranks that are absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lossbench.workloads.collective import staging
from lossbench.workloads.collective.roll import Roll
from lossbench.workloads.collective.work import Results, UnderWay, Work
from lossbench.workloads.sync.channels.genuine import Genuine
from tests.training.test_calls import GPU, asked, stand_in
from tests.training.workers import over_loopback, together

pytestmark = pytest.mark.training
__all__ = ["stand_in"]  # a fixture


class Counted(Work):
    """Has it ended? That is counted."""

    def __init__(self, counts: list[int], *, ended: bool = False) -> None:
        super().__init__([], Results())
        self._counts, self.ended = counts, ended

    def is_completed(self) -> bool:
        self._counts[-1] += 1
        return self.ended


@pytest.mark.parametrize("where", ["apart", "on one tensor"])
def test_a_call_asks_few_of_those_under_way_however_many_they_are(where: str) -> None:
    """As it was: each call asked all of them, and 2000 of them took ten seconds."""
    under_way, counts, works = UnderWay(), list[int](), list[Work]()
    for number in range(1000):
        counts.append(0)
        at = 64 * number if where == "apart" else 0
        before = under_way.before([(at, at + 64)])
        assert before == (works[-1:] if where == "on one tensor" else [])
        works.append(Counted(counts))
        under_way.add(works[-1], [(at, at + 64)])
    assert max(counts) <= 2, max(counts)


def test_those_that_have_ended_are_forgotten_and_those_behind_a_wider_one_too() -> None:
    under_way, counts = UnderWay(), [0]
    spans = {"old": (0, 10), "low": (0, 10), "high": (10, 20), "wide": (0, 20), "apart": (30, 40), "part": (5, 15)}
    works = {name: Counted(counts, ended=name == "old") for name in spans}
    for name, span in spans.items():
        under_way.add(works[name], [span])
    assert under_way.before([(0, 10), (12, 14)]) == [works["part"], works["wide"]]
    assert under_way.before([(0, 50)]) == [works[name] for name in ("part", "apart", "wide", "high", "low")]
    for name in ("low", "high", "wide"):
        works[name].ended = True
    assert under_way.before([(0, 20)]) == [works["part"]]


# --- ranks that are absent -----------------------------------------------------------------------------------------


@pytest.fixture
def two_of_three(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Genuine]]:
    monkeypatch.setattr(Roll, "members", property(lambda _: (0, 1)))
    return over_loopback(3)[:2]


def gathered(group: Any, device: str) -> dict[str, list[float]]:
    """What lies where the parts of three ranks belong."""
    mine, splits = torch.full((4,), group.rank() + 1.0, device=device), [4, 4, 4]
    outs = {name: torch.full((12,), -1.0, device=device) for name in ("base", "list", "single", "many", "gather")}
    parts = {name: list(out.view(3, 4)) for name, out in outs.items()}
    group._allgather_base(outs["base"], mine).wait()
    group.allgather([parts["list"]], [mine]).wait()
    group.alltoall_base(outs["single"], mine.repeat(3), splits, splits).wait()
    group.alltoall(parts["many"], [mine] * 3).wait()
    opts = dist.GatherOptions()
    opts.rootRank = 0
    group.gather([parts["gather"]] if group.rank() == 0 else [], [mine], opts).wait()
    if group.rank():
        del outs["gather"]
    return {name: out.cpu().view(3, 4)[:, 0].tolist() for name, out in outs.items()}


def test_the_places_of_the_absent_are_left_alone_where_tensors_lie_elsewhere(
    two_of_three: list[Callable[[], Genuine]], stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: what lay in pinned memory came there."""
    monkeypatch.setattr(staging, "pinned", lambda count, dtype: torch.full((count,), 7, dtype=dtype))
    for found in together(two_of_three, lambda channel: gathered(channel.group, "cpu")):
        assert all(places == [1.0, 2.0, -1.0] for places in found.values()), found


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_the_places_of_the_absent_are_left_alone(two_of_three: list[Callable[[], Genuine]], device: str) -> None:
    for found in together(two_of_three, lambda channel: gathered(channel.group, device)):
        assert all(places == [1.0, 2.0, -1.0] for places in found.values()), found


# --- parts that do not fit, numbers that are seen otherwise ---------------------------------------------------------


def test_an_own_part_that_does_not_fit_is_refused_before_anything_is_sent() -> None:
    """As it was: the peer waited, and the group was broken."""

    def work(channel: Genuine) -> list[float]:
        group, rank = channel.group, channel.rank
        splits = [[2, 1], [1, 2]][rank]
        with pytest.raises(ValueError, match="all_to_all_single: a part of . elements where . are needed"):
            group.alltoall_base(torch.zeros(3), torch.ones(3), splits, splits[::-1])
        with pytest.raises(ValueError, match="a part of 6 elements where 4 are needed"):
            group.alltoall_base(torch.zeros(4, 2), torch.ones(4, 3), [], [])
        out = torch.zeros(3)
        group.alltoall_base(out, torch.full((3,), rank + 1.0), splits, splits).wait()
        return out.tolist()

    assert together(over_loopback(2), work) == [[1.0, 1.0, 2.0], [1.0, 2.0, 2.0]]


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_numbers_that_are_seen_as_conjugates_or_negatives_are_added_as_they_are_seen(device: str) -> None:
    """As it was: an error in the middle of the call, or the sum of what lies in memory."""

    def work(channel: Genuine) -> None:
        group, rank = channel.group, channel.rank
        number, total = complex(1 + rank, 2), torch.full((4,), 3 - 4j)
        seen = torch.full((4,), number, device=device).conj()
        assert seen.is_conj()
        group.allreduce([seen], asked()).wait()
        assert torch.equal(seen.cpu(), total) and torch.equal(seen.conj().cpu(), total.conj())
        opts, source = dist.ReduceOptions(), torch.full((8,), number, device=device).conj()
        group.reduce([source], opts).wait()
        assert torch.equal(source[:4].cpu(), total if rank == 0 else torch.full((4,), number.conjugate()))
        source = torch.full((8,), number, device=device).conj()
        for out in (torch.zeros(4, dtype=torch.complex64, device=device), torch.zeros_like(source[:4]).conj()):
            group._reduce_scatter_base(out, source).wait()
            assert torch.equal(out.cpu(), total)
            group.reduce_scatter([out.zero_()], [[source[:4], source[4:]]]).wait()
            assert torch.equal(out.cpu(), total)
        for dtype in (torch.float32, torch.int64):
            negative = torch._neg_view(torch.full((4,), rank + 1, dtype=dtype, device=device))
            group.allreduce([negative], asked()).wait()
            assert negative.is_neg() and negative.tolist() == [-3] * 4
            room = torch._neg_view(torch.zeros(8, dtype=dtype, device=device))
            group._allgather_base(room, negative).wait()
            assert room.tolist() == [-3] * 8
            group.broadcast([negative.fill_(rank + 5)], dist.BroadcastOptions()).wait()
            assert negative.tolist() == [5] * 4

    together(over_loopback(2), work)
