"""Jobs of a group in their order. A job asks the engine for halves and says what is to be done when they are over.

Where nothing waits for its turn a job begins in the caller's thread, and whoever waits for it drives the engine: nobody
is woken. What takes several steps, or waits for a GPU or for an earlier call, is `queued` to a thread that is made when
it is first needed; it begins the next job before the one under way has ended."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from lossbench.workloads.errors import TransportError
from lossbench.workloads.transport.half import Half, Result


@dataclass(kw_only=True)
class Asked:
    """What a job has asked for. `then` is called once, when the halves are over; `always` then, also if it failed."""

    halves: Sequence[Half] = ()
    then: Callable[[list[Result]], None] | None = None
    always: Callable[[], None] | None = None


Job = Callable[[], Asked | None]
CLOSED = "this group is closed"
LOOK_S = 0.05  # whether what is waited for can still come


class Waits(Protocol):
    """What jobs need of an endpoint."""

    def here(self) -> None: ...
    def over(self, half: Half) -> bool: ...
    def finish(self, halves: Sequence[Half], timeout_s: float | None) -> list[Result]: ...
    def still(self, halves: Sequence[Half]) -> None: ...
    def failed(self, error: BaseException) -> None: ...

    def overdue(self, timeout_s: float | None) -> Exception: ...

    asked: int  # halves, so far
    limit_s: float


def take_turn(turn: threading.Lock, timeout_s: float | None, *, look: Callable[[], None]) -> None:
    """Until somebody else lets go of it; TimeoutError if that takes longer. `look` raises where that one can't: a
    signal's handler has come in between there, closes the group, and waits for whoever waits here."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    if turn.acquire(blocking=False):
        return
    while not turn.acquire(timeout=LOOK_S if until is None else max(min(LOOK_S, until - time.monotonic()), 0.0)):
        look()
        if until is not None and time.monotonic() >= until:
            raise TimeoutError(f"the call has not ended after {timeout_s:g} s")


@dataclass(kw_only=True)
class Call:
    """A job under way or done."""

    endpoint: Waits
    asked: Asked | None = None
    queued: Future[None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: bool = False
    _error: BaseException | None = None

    def done(self) -> bool:
        """Without waiting; then its results are where they belong, too."""
        if self.queued is not None:
            return self.queued.done()
        asked = self.asked
        if self._done or asked is None:
            return True
        if not all(self.endpoint.over(half) for half in asked.halves) or not self._lock.acquire(blocking=False):
            return False  # or somebody is about to end it
        try:
            if not self._done:
                self._finish(None)
        finally:
            self._lock.release()
        return True

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it has ended; TimeoutError if that takes longer. What went wrong is raised."""
        self.endpoint.here()
        if self.queued is not None:
            self.queued.result(timeout_s)
            return
        take_turn(self._lock, timeout_s, look=self._look)  # somebody else may be ending it
        try:
            if not self._done:
                self._finish(timeout_s)
        finally:
            self._lock.release()
        if self._error is not None:
            raise self._error

    def expire(self) -> None:
        """The group's time for it is over, and so is the group. Of what is queued its own threads see to that."""
        if self.queued is None and self._lock.acquire(blocking=False):
            try:
                if not self._done:
                    self._end(self.endpoint.overdue(None))
            finally:
                self._lock.release()

    def _look(self) -> None:
        if (asked := self.asked) is not None:
            self.endpoint.still(asked.halves)

    def _finish(self, timeout_s: float | None) -> None:
        try:
            if self.asked is not None:
                results = self.endpoint.finish(self.asked.halves, timeout_s)
                if self.asked.then is not None:
                    self.asked.then(results)
        except TimeoutError:
            raise
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            self.endpoint.failed(error)
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self._error = error
        if self.asked is not None and self.asked.always is not None:
            self.asked.always()
        self._done = True  # before `asked` goes: whoever finds none of it finds this
        self.asked = None  # and with it the caller's tensors


class Worker:
    """Two threads: one begins jobs in their order, the other ends them in that order, so that a job is begun while
    those before it are waited for; up to `depth` are under way at once. No lock is held: a signal's handler may come in
    between anywhere, and stop what its own thread gives a job to."""

    def __init__(self, endpoint: Waits, *, depth: int, name: str) -> None:
        self._endpoint, self._room = endpoint, threading.Semaphore(depth)
        self._jobs: queue.SimpleQueue[tuple[Job, Future[None]] | None] = queue.SimpleQueue()
        self._flying: queue.SimpleQueue[tuple[Call, Future[None]] | None] = queue.SimpleQueue()
        self._unended: set[Future[None]] = set()
        self._stopped = self._over = False
        targets = ((self._begins, name), (self._ends, f"{name}-ends"))
        self._threads = [threading.Thread(target=target, name=what, daemon=True) for target, what in targets]
        for thread in self._threads:
            thread.start()

    @property
    def pending(self) -> int:
        """Jobs that have not ended."""
        return len(self._unended)

    def put(self, job: Job) -> Future[None]:
        future: Future[None] = Future()
        self._unended.add(future)
        if self._stopped:
            self._told(future, TransportError(CLOSED))
            return future
        self._jobs.put((job, future))
        if self._over:
            self._refuse()
        return future

    def stop(self, patience_s: float, *, hurried: Callable[[], bool] = lambda: False) -> bool:
        """True if it has ended, or is the one who asks. `hurried` ends patience."""
        self._stopped = True
        self._jobs.put(None)
        if threading.current_thread() in self._threads:
            return True
        until = time.monotonic() + patience_s
        for thread in self._threads:
            while thread.is_alive() and not hurried() and (left := until - time.monotonic()) > 0:
                thread.join(min(left, LOOK_S))
        return not any(thread.is_alive() for thread in self._threads)

    def _begins(self) -> None:
        while (entry := self._jobs.get()) is not None:
            self._room.acquire()
            self._begin(*entry)
            del entry
        self._over = True  # in this order: whoever puts a job looks at it afterwards
        self._refuse()
        self._flying.put(None)

    def _refuse(self) -> None:
        """What came behind the end."""
        with suppress(queue.Empty):
            while True:
                if (entry := self._jobs.get_nowait()) is not None:
                    self._told(entry[1], TransportError(CLOSED))

    def _ends(self) -> None:
        while (entry := self._flying.get()) is not None:
            call, future = entry
            try:
                call.wait()
            except BaseException as error:  # noqa: BLE001 - whoever waits is told
                told: BaseException | None = error
            else:
                told = None
            self._room.release()
            self._told(future, told)
            del entry, call, future, told

    def _begin(self, job: Job, future: Future[None]) -> None:
        before = self._endpoint.asked
        try:
            call = Call(endpoint=self._endpoint, asked=job())
        except BaseException as error:  # noqa: BLE001 - the caller's thread is where it belongs
            if self._endpoint.asked > before:
                self._endpoint.failed(error)
            self._room.release()
            self._told(future, error)
        else:
            self._flying.put((call, future))

    def _told(self, future: Future[None], error: BaseException | None) -> None:
        self._unended.discard(future)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
