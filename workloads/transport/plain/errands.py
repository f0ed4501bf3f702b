"""What other threads ask of the engine's thread: it does so between two steps, in their order.

Nobody holds a lock meanwhile: a signal's handler may come in between anywhere, and close the group that its own thread
is asking for something."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

LONGEST_S = threading.TIMEOUT_MAX


class Errands:
    def __init__(self) -> None:
        self._asked: deque[Callable[[], None]] = deque()
        self._waiting: deque[threading.Lock] = deque()
        self.wake_out, self._wake_in = os.pipe()
        os.set_blocking(self.wake_out, False)
        os.set_blocking(self._wake_in, False)
        self._open = [self.wake_out, self._wake_in]
        self._waking: list[None] = []  # one for each who may write
        self.ended = False  # the engine's thread: who asks does it

    def leave(self, work: Callable[[], None]) -> None:
        """To be done soon."""
        self._asked.append(work)
        self._waking.append(None)
        try:
            if not self.ended:
                os.write(self._wake_in, b"x")
        except BlockingIOError:  # it is full: there is a wake-up in it
            pass
        finally:
            self._waking.pop()
        if self.ended:
            self.run()
            self._close()

    def done(self, work: Callable[[], None]) -> None:
        """Until it is."""
        over = threading.Lock()
        over.acquire()

        def told() -> None:
            try:
                work()
            finally:
                over.release()

        self.leave(told)
        over.acquire()

    def until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it is; looked at whenever the engine says that something `changed`."""
        end = time.monotonic() + timeout_s
        while not true():
            changed = threading.Lock()
            changed.acquire()
            self._waiting.append(changed)
            if true():  # meanwhile
                break
            left = end - time.monotonic()
            if left <= 0 or not changed.acquire(timeout=min(left, LONGEST_S)):
                with suppress(ValueError):
                    self._waiting.remove(changed)
                return true()
        return True

    # --- the engine's thread --------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Whether there was anything to do."""
        some = False
        while True:
            try:
                work = self._asked.popleft()
            except IndexError:
                return some
            some = True
            work()

    def changed(self) -> None:
        while True:
            try:
                self._waiting.popleft().release()
            except IndexError:
                return

    def woken(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.wake_out, 4096)

    def end(self) -> None:
        """What was asked for before is done here, what comes later by whoever asks."""
        self.ended = True
        self.run()
        self.changed()
        self._close()

    def _close(self) -> None:
        """By the last who may write: a descriptor that was closed may be somebody else's by then."""
        if not self._waking:
            with suppress(IndexError):
                while True:
                    os.close(self._open.pop())
