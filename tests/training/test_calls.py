"""Calls of one group under way together: in order where they touch one tensor, each with the deadline of its own."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lossbench.contract import Door
from lossbench.workloads.collective import staging
from lossbench.workloads.collective.short import Shape
from lossbench.workloads.collective.work import Results, Work, spans_of
from lossbench.workloads.errors import TransportError
from lossbench.workloads.sync.channels.genuine import Genuine
from lossbench.workloads.transport.half import Kept
from lossbench.workloads.transport.native import build
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.policy import Policy
from tests.training.workers import over_loopback, together
from tests.transport.conftest import make_ranks

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


class AtOnce:
    """An event or a stream of a device that has always done what it was asked."""

    def __init__(self, *_: object) -> None: ...
    def record(self, *_: object) -> None: ...
    def synchronize(self) -> None: ...
    def wait_event(self, _: object) -> None: ...


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a GPU: tensors of this host go through rooms as if they were elsewhere, unless they go the short way."""
    for name, value in {"Event": AtOnce, "Stream": AtOnce, "current_stream": AtOnce}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(staging, "on_host", lambda _: False)
    monkeypatch.setattr(staging, "pinned", lambda count, dtype: torch.empty(count, dtype=dtype))


def refused(channel: Genuine) -> None:
    """A call that is refused when its turn has come; nothing is sent."""
    with pytest.raises(ValueError, match="expanded"):
        channel.group.broadcast([torch.ones(1).expand(1000)], dist.BroadcastOptions()).wait()


def test_calls_under_way_have_rooms_of_their_own_whatever_was_refused_between(stand_in: None) -> None:
    """Pinned memory is used again. As it was: a call that was refused took a turn, and after two of them the next one
    was given the room of the one under way."""
    begun = threading.Event()

    def work(channel: Genuine) -> list[torch.Tensor]:
        if channel.rank:  # it comes when the other has begun both
            assert begun.wait(60)
        tensors = [torch.full((800_000,), number + channel.rank)[::2] for number in (1.0, 10.0)]
        works = [channel.group.allreduce([tensors[0]], asked())]
        refused(channel)
        refused(channel)
        works.append(channel.group.allreduce([tensors[1]], asked()))
        while channel.group._endpoint.asked < 4:  # halves
            threading.Event().wait(0.01)
        begun.set()
        for one in works:
            one.wait()
        return tensors

    for first, second in together(over_loopback(2), work):
        assert torch.all(first == 3.0) and torch.all(second == 21.0)


def test_a_room_is_used_again_when_its_call_has_ended_however_it_ended(stand_in: None) -> None:
    def work(channel: Genuine) -> int:
        for _ in range(5):
            refused(channel)
            channel.group.allreduce([torch.ones(2000)[::2]], asked()).wait()
        return channel.group._rooms.take()

    assert together(over_loopback(2), work) == [0, 0]


class ToldError(Exception):
    """Raised by a signal's handler."""


@pytest.mark.parametrize("native", ["", "switched off by a test"], ids=["compiled", "python"])
def test_an_interruption_between_a_short_call_and_its_work_leaves_no_memory_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    """A handler that raises as soon as the engine has been asked. As it was: the halves went, and packets came."""
    if native:
        monkeypatch.setattr(build, "load", lambda: native)

    def work(channel: Genuine) -> None:
        group, halves = channel.group, []
        engine = group._endpoint.engine
        submit = engine.submit_pair

        def told(pair: object, *given: object, **keys: object) -> None:
            submit(pair, *given, **keys)  # type: ignore[arg-type]
            halves.extend(pair)  # type: ignore[call-overload]
            raise ToldError

        monkeypatch.setattr(engine, "submit_pair", told)
        with pytest.raises(ToldError):
            group.allreduce([torch.ones(1000)], asked())
        assert len(halves) == 2 and all(map(engine.over, halves))

    together(over_loopback(2), work)


def test_an_abort_does_not_wait_for_the_store_and_a_fork_ends_nothing() -> None:
    """As it was: the store was told first, whoever had gone with it."""
    answers = threading.Event()

    def work(channel: Genuine) -> None:
        group = channel.group
        group._closed = lambda: None if answers.wait(60) else None
        child = os.fork() if channel.rank == 0 else 0
        if channel.rank == 0 and not child:
            group._closed = group._results.close = lambda: os._exit(1)
            with suppress(BaseException):
                group.abort()
                group.shutdown()
                os._exit(0)
            os._exit(2)
        assert not child or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        closing = threading.Thread(target=group.abort)
        closing.start()
        assert group._endpoint._closed.wait(30)
        answers.set()
        closing.join()

    together(over_loopback(2), work)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_an_abort_ends_calls_that_wait_for_each_other(device: str) -> None:
    """On one tensor, whose peer has not called; those that wait for their turn, too."""
    over = threading.Event()

    def work(channel: Genuine) -> None:
        group, tensor = channel.group, torch.ones(10_000, device=device)
        if channel.rank:
            assert over.wait(60)
            return
        works = [group.allreduce([tensor], asked()) for _ in range(3)]
        closing = threading.Thread(target=group.abort)
        closing.start()
        for one in works:
            with pytest.raises(TransportError):
                one.wait()
        closing.join(60)
        over.set()
        assert not closing.is_alive()

    together(over_loopback(2), work)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_small_calls_one_after_the_other_are_each_right(device: str) -> None:
    def work(channel: Genuine) -> list[float]:
        found = []
        for number in range(50):
            tensor = torch.full((250,), float(number + channel.rank), device=device)
            channel.group.allreduce([tensor], asked()).wait()
            found += set(tensor.tolist())
        return found

    for found in together(over_loopback(2), work):
        assert found == [2.0 * number + 1 for number in range(50)]


def test_callbacks_may_wait_for_each_other_however_deep() -> None:
    """As it was: eight at once, and the ninth waited for ever (PowerSGD's hook does so with a ninth bucket)."""
    results, over = Results(), [threading.Event() for _ in range(12)]

    def work(number: int) -> None:
        if number + 1 < len(over):
            results.put(partial(work, number + 1))
            over[number + 1].wait(20)
        over[number].set()

    results.put(partial(work, 0))
    assert over[-1].wait(10) and over[0].wait(10)
    before = threading.active_count()
    results.put(over[0].clear)  # by one of those that are there
    results.close()
    results.put(over[0].set)  # after the end, too
    assert over[0].wait(10)
    until = time.monotonic() + 30
    while any(thread.name == "lossy-results" for thread in threading.enumerate()):
        assert time.monotonic() < until, before
        time.sleep(0.01)


def test_what_ran_is_in_every_ranks_records(tmp_path: Path) -> None:
    """Which engine, of which build, under which policy. As it was: the engine's name alone."""
    store, policy = dist.HashStore(), Policy(send_thread="off", tag="packet", pace="900")

    def channel(rank: int) -> Genuine:
        door = Door(rank=rank, world_size=2, addresses=("127.0.0.1",) * 2, records_path=str(tmp_path / f"{rank}"))
        return Genuine.at(door, store, policy=policy)

    names = together([partial(channel, rank) for rank in range(2)], lambda one: one.group.engine)
    for rank, name in enumerate(names):
        (said,) = [json.loads(line) for line in (tmp_path / f"{rank}").read_text().splitlines()]
        assert said["kind"] == "transport" and said["engine"] == name and said["epoch"] == 0
        assert said["build"].startswith("engine-" if name == "native" else "numpy ")
        assert said["policy"] == asdict(policy)


class Dropped:
    """A half's record; whoever looks at it is interrupted by the collector, which finds another result."""

    def __init__(self, found: Callable[[], None] | None = None) -> None:
        self._found = found

    @property
    def over(self) -> bool:
        found, self._found = self._found, None
        if found is not None:
            found()
        return False


def test_memory_of_dropped_results_is_kept_though_the_collector_finds_more_of_them() -> None:
    """As it was: the inner one was forgotten, and the engine wrote into what somebody else had got."""
    kept = Kept()
    memory = [bytearray(8) for _ in range(3)]
    held = [sys.getrefcount(one) for one in memory]
    last = Dropped()
    kept.keep(Dropped(partial(kept.keep, last, memory[2])), memory[0])
    kept.keep(Dropped(), memory[1])
    assert [sys.getrefcount(one) for one in memory] == [count + 1 for count in held]


def test_memory_of_a_dropped_result_stays_as_long_as_the_engine_may_write_to_it() -> None:
    """As it was: it went with the group, and threads of an endpoint that somebody still held wrote on."""
    made = make_ranks(2, policy=Policy(timeout_s=60))
    first, endpoint = made.groups[0], made.groups[0].endpoint
    tensor = torch.ones(1000)
    shape = Shape(first, first.plan(endpoint.even(1000), CODECS["float32"]), op="sum", lossy=False)
    work = shape.begin(tensor, tensor.data_ptr(), 1, Results())
    gone = weakref.ref(work._arrived)
    made.groups.pop(0)
    del work, shape, first
    assert gone() is not None
    made.groups[0].endpoint.close(0.0)
    endpoint.close(0.0)
    del endpoint
    gc.collect()
    assert gone() is None


def test_one_future_a_work_whoever_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: who asked while another one did got a future of his own, which was never set or set twice."""
    settled: list[Callable[[], None]] = []
    made, real = [], torch.futures.Future

    class Gathered(Results):
        def watch(self, work: Work, settle: Callable[[], None]) -> None:
            settled.append(settle)

    class Done(Work):
        def wait(self, timeout: timedelta | None = None) -> bool:
            return True

    work = Done([], Gathered())

    def another_asks_meanwhile() -> torch.futures.Future[object]:
        if not made:
            made.append(None)
            made[0] = work.get_future()
        return real()

    monkeypatch.setattr(torch.futures, "Future", another_asks_meanwhile)
    future = work.get_future()
    for settle in settled:
        settle()
    assert made[0] is future and len(settled) == 1
    assert future.done()


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_thousand_futures_need_a_handful_of_threads(device: str) -> None:
    """As it was: a thread for each."""
    go, most, real = threading.Event(), list[int](), threading.Thread.start

    def started(thread: threading.Thread) -> None:
        real(thread)
        most.append(sum(one.name == "lossy-results" for one in threading.enumerate()))

    def work(channel: Genuine) -> None:
        group = channel.group
        tensors = [torch.ones(100, device=device) for _ in range(1000)]
        if channel.rank:
            assert go.wait(60)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(threading.Thread, "start", started)
            futures = [group.allreduce([tensor]).get_future() for tensor in tensors]
            done = [one.then(lambda now: float(now.value()[0][0])) for one in futures]
            go.set()
            assert [one.wait() for one in done] == [2.0] * 1000

    together(over_loopback(2), work)
    # Of both ranks: a few, who leads, and one more whenever a busy machine looks stuck.
    assert most and max(most) <= 100, max(most)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_future_that_waits_for_nobodys_call_ends_with_the_groups_time(device: str) -> None:
    over = threading.Event()

    def work(channel: Genuine) -> None:
        group = channel.group
        if channel.rank:
            assert over.wait(60)
            return
        group._endpoint.limit_s = 0.2
        future = group.allreduce([torch.ones(100, device=device)]).get_future()
        with pytest.raises(RuntimeError, match="the group's timeout of 0.2 s is over"):
            future.wait()
        over.set()

    together(over_loopback(2), work)
