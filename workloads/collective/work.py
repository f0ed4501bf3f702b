"""A collective under way, as torch sees it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import Work as C10dWork

from lossbench.workloads.transport.jobs import Call


class Results:
    """Threads that wait for calls whose futures somebody holds: one for each that waits, since what hangs on a future
    may wait for the next one, however deep; none as long as nobody does. Not those of concurrent.futures: a program
    ends although somebody still waits."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle, self._closed, self._lock = 0, False, threading.RLock()

    def put(self, work: Callable[[], None]) -> None:
        with self._lock:  # a signal's handler may come in between, and close
            idle = self._idle > 0
            self._idle -= idle
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

    def __init__(self, tensors: Any, results: Results) -> None:
        super().__init__()
        self._tensors, self._results = tensors, results

    def wait(self, timeout: timedelta | None = None) -> bool:
        """With a time that is over first: TimeoutError; the call goes on and may be waited for again."""
        raise NotImplementedError

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
            self._results.put(partial(self._settle, future))
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
