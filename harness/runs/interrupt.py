"""Ended from outside at any moment, a run still undoes what it did: the first signal interrupts, once; whatever comes
later, or while something is being undone, waits until that is done.

`listen` before anything takes time; `undoing` around what must be undone; `finish` when the command ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from lossbench.errors import RunError

INSIST_S = 1.0
AGAIN_S = 0.05  # after one that got lost: whoever swallowed it is through by then
IN_A_LOOP_S = 1.0  # longer than any netlink call; in a notebook an event loop runs always
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WAIT = b"lossbench: undoing what was made; a moment\n"


class _State:
    asked = False  # a signal came
    asked_at = 0.0
    raised = False  # and interrupted
    raised_at = 0.0
    undid = False  # something was undone
    held = 0  # depth of sections that must not be interrupted
    undoing: list[Undo] = []  # noqa: RUF012 - of this process
    last_words: list[str] = []  # noqa: RUF012
    unraisable: Callable[[sys.UnraisableHookArgs], object] = sys.__unraisablehook__  # who was told before us


def listen() -> dict[int, Any]:
    """Ctrl-C, SIGTERM and a hang-up interrupt. Who was started by nohup wants to outlive its terminal; a shell's
    background job has Ctrl-C ignored from the start, and is to be ended all the same. Returns what was before."""
    before: dict[int, Any] = {}
    if sys.unraisablehook is not _unraisable:
        _State.unraisable, sys.unraisablehook = sys.unraisablehook, _unraisable
    for number in ENDING:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, _arrived)
    return before


def _arrived(*_: Any) -> None:
    """Python may raise this where nobody can catch it (in a finaliser, a weakref's callback): it is lost there, and
    comes again; where libraries swallow it, `check` raises it; so does a user who insists, a while later.
    In the midst of an event loop (pyroute2 has one for every call) it would leave tasks that nobody ends: it waits
    until that call is over."""
    now = time.monotonic()
    if not _State.asked:
        _State.asked, _State.asked_at = True, now
    if _State.held or (_State.raised and now - _State.raised_at < INSIST_S):
        _say_wait()
        return
    if not _State.raised and now - _State.asked_at < IN_A_LOOP_S and _in_a_loop():
        _later(_knock)
        return
    _raise()


def _in_a_loop() -> bool:
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)  # none while that is being imported
    return running is not None and running() is not None


def _later(what: Callable[..., None], *arguments: Any) -> None:
    again = threading.Timer(AGAIN_S, what, arguments)
    again.daemon = True
    again.start()


def _knock() -> None:
    """A real signal, which also wakes a sleep; where a section is held its end raises what was asked."""
    if _State.asked and not _State.raised and not _State.held:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """An interruption that got lost is not lost to us, and no reason for a traceback: it comes again, from outside of
    where it can't be raised. A program that sleeps in its own code would never `check`. What was half made when it
    came (an event loop without its socket) fails once more when it goes: that is no reason for one either."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        _later(_once_more, _State.raised_at)
    elif not _State.raised:
        _State.unraisable(lost)


def _once_more(lost_at: float) -> None:
    if not _State.raised or _State.raised_at != lost_at:
        return  # it was over, or raised again, meanwhile
    _State.raised = False
    _knock()


def _raise() -> None:
    _State.raised, _State.raised_at = True, time.monotonic()
    raise KeyboardInterrupt


def caused(error: BaseException | None) -> bool:
    """An interruption may come out as another error: Python 3.11 wraps whatever is raised while the members of a class
    are being named, and what is closed on the way out (a socket in the middle of a request) may fail in turn. Libraries
    in other languages make an error of their own of it, with nothing behind it; then it is whatever came after ours."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None or _State.raised


def forgive() -> None:
    """It was ours (a campaign's clock), and is over: what is run next is not ended by it, nothing is said of it."""
    _State.asked = _State.raised = False
    spoken()


def check() -> None:
    """Where work goes on as if nothing had happened: then a signal that came did not get through."""
    if _State.asked and not _State.held:
        _raise()


def _say_wait() -> None:
    try:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, WAIT)
    except (OSError, ValueError):  # a terminal that is gone: that is why we end
        return


@contextmanager
def held() -> Iterator[None]:
    """Not to be interrupted inside; a signal that came meanwhile interrupts afterwards."""
    _State.held += 1
    try:
        yield
    finally:
        _State.held -= 1
    if _State.asked and not _State.raised and not _State.held:
        _raise()


class Undo:
    """Steps to undo, by name; carried out in reverse, all of them, whatever fails on the way."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], object]]] = []
        self._before: dict[int, Any] = {}

    def later(self, name: str, step: Callable[[], object]) -> None:
        self._steps.append((name, step))

    def forget(self) -> None:
        """What was made stands."""
        self._steps.clear()

    def run(self) -> list[str]:
        """Returns what failed, in words."""
        failed = []
        while self._steps:
            _State.undid = True
            name, step = self._steps.pop()
            try:
                step()
            except Exception as error:  # noqa: BLE001 - every step gets its turn
                failed.append(f"{name}: {error or type(error).__name__}")
        return failed

    def __enter__(self) -> Undo:
        _State.undoing.append(self)
        if not _State.undoing[1:] and threading.current_thread() is threading.main_thread():
            ours = any(signal.getsignal(number) is _arrived for number in ENDING)
            self._before = {} if ours else listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        _State.held += 1
        try:
            failed = self.run()
        finally:
            _State.undoing.remove(self)
            came = _State.asked
            self._restore()
            _State.held -= 1
        _report(failed, error)
        if came and not _State.held and error is None:
            raise KeyboardInterrupt

    def _restore(self) -> None:
        """Where nobody else listens (a library's user, a test) the next interruption is a first one again."""
        if self._before:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            sys.unraisablehook = _State.unraisable
            _State.asked = _State.raised = False


def _report(failed: list[str], error: BaseException | None) -> None:
    """What could not be undone is said beside whatever ended the run, never instead of it."""
    if not failed:
        return
    text = f"not everything could be undone ({'; '.join(failed)})"
    if error is None:
        raise RunError(text, next_step="lossbench clean finishes it")
    error.add_note(text)
    _leftovers.append(text)


_leftovers: list[str] = []


def undid() -> bool:
    """Was there anything to undo?"""
    return _State.undid


def last_words(text: str) -> None:
    """To be said when the command has ended, below whatever ended it."""
    _State.last_words.append(text)


def spoken() -> list[str]:
    said, _State.last_words[:] = list(_State.last_words), []
    return said


def undoing() -> Undo:
    return Undo()


def finish() -> list[str]:
    """At the end of a command: what an interruption kept from being undone (it can come between a block and its end),
    and everything that failed, in words."""
    _State.held += 1  # from here on nothing interrupts
    while _State.undoing:
        _leftovers.extend(f"not everything could be undone ({text})" for text in _State.undoing.pop().run())
    said, _leftovers[:] = list(_leftovers), []
    return said
