"""Jobs of a group in their order. A job asks the engine for halves and says what is to be done when they are over.

Where nothing waits for its turn a job begins in the caller's thread, and whoever waits for it drives the engine: nobody
is woken. What takes several steps, or waits for a GPU, is `queued` to a thread that is made when it is first needed; it
begins the next job before the one under way has ended."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from lossbench.workloads.transport.half import Half, Result


@dataclass(kw_only=True)
class Asked:
    """What a job has asked for. `then` is called once, when the halves are over."""

    halves: Sequence[Half] = ()
    then: Callable[[list[Result]], None] | None = None


Job = Callable[[], Asked | None]


class Waits(Protocol):
    """What jobs need of an endpoint."""

    def over(self, half: Half) -> bool: ...
    def finish(self, halves: Sequence[Half], timeout_s: float | None) -> list[Result]: ...
    def failed(self, error: BaseException) -> None: ...

    asked: int  # halves, so far


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
        if self.queued is not None:
            self.queued.result(timeout_s)
            return
        with self._lock:
            if not self._done:
                self._finish(timeout_s)
        if self._error is not None:
            raise self._error

    def _finish(self, timeout_s: float | None) -> None:
        try:
            if self.asked is not None:
                results = self.endpoint.finish(self.asked.halves, timeout_s)
                if self.asked.then is not None:
                    self.asked.then(results)
        except TimeoutError:
            raise
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            self._error = error
            self.endpoint.failed(error)
        self._done = True  # before `asked` goes: whoever finds none of it finds this
        self.asked = None  # and with it the caller's tensors


class Worker:
    """One thread, one job after the other; up to `depth` are under way at once."""

    def __init__(self, endpoint: Waits, *, depth: int, name: str) -> None:
        self._endpoint, self._depth = endpoint, depth
        self._jobs: queue.SimpleQueue[tuple[Job, Future[None]] | None] = queue.SimpleQueue()
        self._flying: deque[tuple[Call, Future[None]]] = deque()
        self._count, self._lock = 0, threading.Lock()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Jobs that have not ended."""
        return self._count

    def put(self, job: Job) -> Future[None]:
        future: Future[None] = Future()
        with self._lock:
            self._count += 1
        self._jobs.put((job, future))
        return future

    def stop(self, patience_s: float) -> bool:
        """True if it has ended, or is the one who asks."""
        self._jobs.put(None)
        if self._thread is threading.current_thread():
            return True
        self._thread.join(min(patience_s, threading.TIMEOUT_MAX))
        return not self._thread.is_alive()

    def _main(self) -> None:
        while True:
            with suppress(queue.Empty):
                entry = self._jobs.get() if not self._flying else self._jobs.get_nowait()
                if entry is None:
                    break
                self._begin(*entry)
                del entry
                if len(self._flying) < self._depth:
                    continue
            self._land()
        while self._flying:
            self._land()

    def _begin(self, job: Job, future: Future[None]) -> None:
        before = self._endpoint.asked
        try:
            call = Call(endpoint=self._endpoint, asked=job())
        except BaseException as error:  # noqa: BLE001 - the caller's thread is where it belongs
            if self._endpoint.asked > before:
                self._endpoint.failed(error)
            self._told(future, error)
        else:
            self._flying.append((call, future))

    def _land(self) -> None:
        if not self._flying:
            return
        call, future = self._flying.popleft()
        try:
            call.wait()
        except BaseException as error:  # noqa: BLE001
            self._told(future, error)
        else:
            self._told(future, None)

    def _told(self, future: Future[None], error: BaseException | None) -> None:
        with self._lock:
            self._count -= 1
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
