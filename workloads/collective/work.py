"""A collective under way, as torch sees it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import torch
from torch._C._distributed_c10d import Work as C10dWork

from lossbench.workloads.transport.jobs import Call

SLICE_S = 0.02  # of a wait for the oldest: one that ends before it is seen then
STUCK_S, FEW = 0.01, 4  # callbacks that take longer may wait for others


Watched: TypeAlias = "tuple[Work, Callable[[], None], float]"  # what then, and since when


class Results:
    """Futures of calls are set here. One thread waits for all of the calls. What hangs on a future may wait for the
    next one, however deep, so it runs in another thread: one that has nothing to do, else a new one, of which there
    are soon a FEW, and then only as many more as are needed. None as long as nobody holds a future. Not those of
    concurrent.futures: a program ends although somebody still waits."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._watched: queue.SimpleQueue[Watched | None] = queue.SimpleQueue()
        self._idle, self._closed, self._lock = 0, False, threading.RLock()
        self._threads, self._leads = 0, False

    def watch(self, work: Work, settle: Callable[[], None]) -> None:
        """`settle` is called when `work` is over."""
        self._watched.put((work, settle, time.monotonic()))
        with self._lock:
            leads = self._leads
        if not leads:  # or by two at once: one of them ends
            threading.Thread(target=self._lead, name="lossy-results", daemon=True).start()

    def _lead(self) -> None:
        with self._lock:
            if self._leads:
                return
            self._leads = True
        under: list[Watched] = []  # in the order in which they were asked for
        while under or not self._may_leave():
            self._take(under)
            if under:
                under = self._land(under)

    def _may_leave(self) -> bool:
        """After the end: whoever comes later starts another one."""
        with self._lock:
            self._leads = not (self._closed and self._watched.empty())
            return not self._leads

    def _take(self, under: list[Watched]) -> None:
        """All that there are; if nothing is under way, until there is one."""
        with suppress(queue.Empty):
            while True:
                entry = self._watched.get(block=not under and not self._closed)
                if entry is None:
                    return
                under.append(entry)

    def _land(self, under: list[Watched]) -> list[Watched]:
        """Waits a little for the oldest, which mostly is first to end; those that are not over."""
        work, _, since = under[0]
        if not work.ended(SLICE_S) and time.monotonic() - since >= work.limit_s:
            work.expire()
        left = []
        for entry in under:
            if entry[0].is_completed():
                self._room()
                self.put(entry[1])
            else:
                left.append(entry)
        return left

    def _room(self) -> None:
        """Where many calls end at once, threads are used again; if none comes free for a while, they wait for more."""
        until = time.monotonic() + STUCK_S
        while not self._idle and self._threads >= FEW and time.monotonic() < until:
            time.sleep(STUCK_S / 10)

    def put(self, work: Callable[[], None]) -> None:
        with self._lock:  # a signal's handler may come in between, and close
            idle = self._idle > 0
            self._idle -= idle
            self._threads += not idle
        if not idle:
            threading.Thread(target=self._serve, name="lossy-results", daemon=True).start()
        self._asked.put(work)

    def _serve(self) -> None:
        while (work := self._asked.get()) is not None:
            work()
            del work  # and with it the caller's tensors
            with self._lock:
                if self._closed:
                    return
                self._idle += 1

    def close(self) -> None:
        """Whoever waits ends when its call has."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, 0, True
        self._watched.put(None)
        for _ in range(idle):
            self._asked.put(None)


Span = tuple[int, int]  # of memory: from, to


def spans_of(tensors: Any) -> list[Span]:
    """Where they lie. Addresses of GPUs and of the host do not overlap."""
    flat = [t for entry in tensors for t in (entry if isinstance(entry, list) else [entry])]
    return [(at, at + _reach(tensor)) for tensor in flat if tensor.numel() for at in (tensor.data_ptr(),)]


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from its first element to the end of its last."""
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + sum(steps)) * tensor.element_size()


class UnderWay:
    """Calls that have not ended, and where their tensors lie: a call that touches the memory of an earlier one begins
    when that has ended, as on a stream."""

    def __init__(self) -> None:
        self._spans: dict[Work, Sequence[Span]] = {}

    def add(self, work: Work, spans: Sequence[Span]) -> None:
        work.under_way = self._spans
        self._spans[work] = spans

    def before(self, spans: Sequence[Span]) -> list[Work]:
        """Those that have to end before a call with such tensors begins. Whoever covers all of them waited for those
        before it. What has ended is dropped from the oldest on: most end in their order."""
        out: list[Work] = []
        if not self._spans:
            return out
        now = self._spans.copy()  # in one step: others leave meanwhile
        for work in now:
            if not work.is_completed():
                break
            self._spans.pop(work, None)
        least, most = min((low for low, _ in spans), default=0), max((high for _, high in spans), default=0)
        for work, theirs in reversed(now.items()):
            for first, end in theirs:
                if first < most and least < end and any(low < end and first < high for low, high in spans):
                    if work.is_completed():
                        self._spans.pop(work, None)
                        break
                    out.append(work)
                    if first <= least and most <= end:
                        return out
                    break
        return out


class Work(C10dWork):
    """Its errors reach whoever waits: torch's own wrapper of a future swallows them."""

    under_way: dict[Work, Sequence[Span]] | None = None  # which it leaves when it was waited for
    limit_s = float("inf")  # the group's, for a call that somebody waits for

    def __init__(self, tensors: Any, results: Results) -> None:
        super().__init__()
        self._tensors, self._results = tensors, results

    def wait(self, timeout: timedelta | None = None) -> bool:
        """With a time that is over first: TimeoutError; the call goes on and may be waited for again."""
        raise NotImplementedError

    def ended(self, within_s: float) -> bool:
        """Whether it has, well or badly, by then."""
        try:
            self.wait(timedelta(seconds=within_s))
        except TimeoutError:
            return False
        except BaseException:  # noqa: BLE001, S110 - for whoever holds the future
            pass
        return True

    def expire(self) -> None:
        """`limit_s` are over: the group breaks, and this is its error."""

    def _leave(self) -> None:
        """Nothing has to wait for it any more."""
        if self.under_way is not None:
            self.under_way.pop(self, None)

    def synchronize(self) -> None:
        self.wait()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        if not self.is_completed():
            return None
        try:
            self.wait()
        except BaseException as error:  # noqa: BLE001 - it is handed on
            return error
        return None

    def result(self) -> Any:
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[Any]:
        """Set by a thread that waits: what hangs on it may begin the next collective and wait for that one. One and the
        same, whoever asks: several threads may at once."""
        new: torch.futures.Future[Any] = torch.futures.Future()
        future: torch.futures.Future[Any] = self.__dict__.setdefault("_future", new)
        if future is new:
            self._results.watch(self, partial(self._settle, future))
        return future

    def _settle(self, future: torch.futures.Future[Any]) -> None:
        try:
            self.wait()
        except BaseException as error:  # noqa: BLE001 - for whoever holds the future
            future.set_exception(error)
        else:
            future.set_result(self._tensors)


class CallWork(Work):
    """Of a call in its order of jobs."""

    def __init__(self, call: Call, tensors: Any, results: Results) -> None:
        super().__init__(tensors, results)
        self._call = call

    @property
    def limit_s(self) -> float:
        return self._call.endpoint.limit_s

    def expire(self) -> None:
        self._call.expire()

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            self._call.wait(timeout.total_seconds() if timeout and timeout.total_seconds() > 0 else None)
        except TimeoutError:
            raise
        except BaseException:
            self._leave()
            raise
        self._leave()
        return True

    def is_completed(self) -> bool:
        return self._call.done()


class AllWork(Work):
    """Of several calls: over when all of them are."""

    def __init__(self, works: Sequence[Work], tensors: Any, results: Results) -> None:
        super().__init__(tensors, results)
        self._works = works
        self.limit_s = min((work.limit_s for work in works), default=self.limit_s)

    def expire(self) -> None:
        for work in self._works:
            if not work.is_completed():
                work.expire()
                return

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Every one is waited for; the first error is raised."""
        errors = []
        for work in self._works:
            try:
                work.wait(timeout)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)
