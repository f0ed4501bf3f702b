"""Calls of one group under way together: in order where they touch one tensor, each with the deadline of its own."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

from lossbench.workloads.collective.work import spans_of
from lossbench.workloads.sync.channels.genuine import Genuine
from tests.training.workers import over_loopback, together

pytestmark = pytest.mark.training
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def asked(op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> dist.AllreduceOptions:
    out = dist.AllreduceOptions()
    out.reduceOp = op
    return out


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("what", ["float32", "bfloat16", "int64", "strided"])
def test_calls_on_one_tensor_are_made_in_their_order(what: str, device: str) -> None:
    """As it was: the second call began with what the first had not written yet, or wrote into what it still sent."""

    def work(channel: Genuine) -> list[float]:
        group, wrong = channel.group, []
        for _ in range(8):
            dtype = torch.float32 if what == "strided" else getattr(torch, what)
            whole = torch.ones(40_000, dtype=dtype, device=device)
            tensor = whole[::2] if what == "strided" else whole
            works = [group.allreduce([tensor], asked()) for _ in range(4)]
            works[-1].wait()
            wrong.append(float((tensor != 16).float().mean()))
            for one in works:
                one.wait()
        return wrong

    for wrong in together(over_loopback(2), work):
        assert max(wrong) == 0, wrong


def test_parts_that_overlap_are_taken_in_order_and_others_at_once() -> None:
    def work(channel: Genuine) -> torch.Tensor:
        group, tensor = channel.group, torch.ones(30_000)
        apart = [group.allreduce([part], asked()) for part in (tensor[:10_000], tensor[20_000:])]
        assert group._endpoint.idle(), "parts that do not overlap do not wait for each other"
        works = [*apart, group.allreduce([tensor], asked()), group.allreduce([tensor[5_000:25_000]], asked())]
        for one in reversed(works):
            one.wait()
        assert not group._under_way.before([(0, 1 << 63)]), "nothing is held of calls that have ended"
        return tensor

    for tensor in together(over_loopback(2), work):
        steps = torch.tensor([4.0, 8.0, 4.0, 8.0, 4.0]).repeat_interleave(torch.tensor([5000, 5000, 10000, 5000, 5000]))
        assert torch.equal(tensor, steps)


def test_the_memory_of_a_tensor_reaches_to_its_last_element() -> None:
    tensor = torch.zeros(4, 6)
    at = tensor.data_ptr()
    assert spans_of([[tensor], tensor[1:3, 2], tensor[:0]]) == [(at, at + 96), (at + 32, at + 60)]


def test_a_deadline_is_that_of_the_call_and_not_of_the_first_one_of_its_shape() -> None:
    """As it was: halves of a shape are used again, with the deadline that they were made with."""
    through = threading.Semaphore(0)

    def work(channel: Genuine) -> list[str]:
        group, ended = channel.group, []
        for seconds in (0.0, 0.2, 0.0):
            channel.set_deadline(seconds)
            for _ in range(2 if seconds and channel.rank == 2 else 0):  # it comes when the others are through
                assert through.acquire(timeout=60)
            group.allreduce([torch.ones(200_000)], asked()).wait()
            if seconds:
                through.release()
            ended.append(group.accounts[0].ended)
        return ended

    first, second, late = together(over_loopback(3), work)
    assert first == second == ["all", "deadline", "all"] and late[0] == late[2] == "all"
