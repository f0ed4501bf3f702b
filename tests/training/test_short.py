"""The short way of an all-reduce: what it does at each call, counted, and what it must not forgo for that."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from lossbench.workloads.errors import TransportError
from lossbench.workloads.sync.channels.genuine import Genuine
from lossbench.workloads.transport.native import build
from tests.training.test_calls import GPU
from tests.training.workers import over_loopback, together

pytestmark = pytest.mark.training


class Counting:
    """A library's functions, and how often each was called. `more`: is added to what each returns."""

    def __init__(self, real: Any, more: int = 0) -> None:
        self._real, self._more, self.calls = real, more, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)

        def counted(*given: Any) -> Any:
            self.calls[name] += 1
            out = real(*given)
            return out + self._more if out else out

        return counted


@pytest.fixture
def compiled() -> None:
    if isinstance(build.load(), str):
        pytest.skip(f"no compiled engine: {build.load()}")


@pytest.mark.usefixtures("compiled")
def test_a_short_call_asks_the_engine_twice_and_the_kernel_for_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: three times, the process's number three times, and numpy for an address at each call."""
    asked, real, calling = Counter[str](), os.getpid, set[int]()

    def getpid() -> int:  # of the calls' own threads: whatever else runs here may ask, and as often as it is late
        if threading.get_ident() in calling:
            asked.update(["getpid"])
        return real()

    monkeypatch.setattr(os, "getpid", getpid)
    monkeypatch.setattr(
        "lossbench.workloads.collective.short.address",
        lambda array: (asked.update(["address"]), int(array.ctypes.data))[1],
        raising=False,
    )

    def work(channel: Genuine) -> Counter[str]:
        group, tensor = channel.group, torch.ones(250)
        engine: Any = group._endpoint.engine
        group.allreduce([tensor]).wait()
        engine._holding, engine._library = Counting(engine._holding), Counting(engine._library)
        gc.collect()
        gc.disable()  # an engine of an earlier test's that is found meanwhile would ask
        calling.add(threading.get_ident())
        for _ in range(20):
            group.allreduce([tensor]).wait()
        calling.discard(threading.get_ident())
        gc.enable()
        calls: Counter[str] = engine._holding.calls + engine._library.calls
        engine._holding, engine._library = engine._holding._real, engine._library._real
        return calls

    for calls in together(over_loopback(1), work):
        assert calls == {"lb_submit_pair": 20, "lb_wait": 20}
    assert asked["getpid"] == 0, "none at a call"
    assert asked["address"] == 1


@pytest.mark.usefixtures("compiled")
def test_that_packets_leave_one_by_one_is_said_at_the_end_of_a_wait() -> None:
    """Once, though every wait says so; parts.c has the engine's side."""

    def work(channel: Genuine) -> list[str]:
        group, tensor = channel.group, torch.ones(250)
        engine: Any = group._endpoint.engine
        engine._holding = Counting(engine._holding, more=2)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(3):
                group.allreduce([tensor]).wait()
        return [str(one.message) for one in said]

    assert together(over_loopback(1), work) == [["this device takes no UDP GSO: every packet is a system call"]]


def refused(work: Callable[[], Any]) -> bool:
    """As in a fork."""
    try:
        work()
    except TransportError as error:
        return "belongs to the process that was forked" in str(error)
    return False


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("native", ["", "switched off by a test"], ids=["compiled", "python"])
def test_a_short_call_says_in_a_fork_whose_it_is(monkeypatch: pytest.MonkeyPatch, native: str, device: str) -> None:
    """One that begins there, one that the parent began, and those of a fork's fork."""
    if native:
        monkeypatch.setattr(build, "load", lambda: native)

    def work(channel: Genuine) -> None:
        group, tensor = channel.group, torch.ones(250, device=device)
        begun = group.allreduce([torch.ones(250, device=device)])
        child = os.fork() if channel.rank == 0 else 0
        if channel.rank == 0 and not child:
            with suppress(BaseException):
                faulthandler.dump_traceback_later(60, exit=True)
                inner = os.fork()
                ours = refused(begun.wait) and refused(lambda: group.allreduce([tensor]))
                if not inner:
                    os._exit(0 if ours else 1)
                os._exit(0 if ours and os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) == 0 else 1)
            os._exit(2)
        assert not child or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        begun.wait()
        group.allreduce([tensor]).wait()
        assert bool((tensor == 2).all())

    together(over_loopback(2), work)


@pytest.mark.parametrize("native", ["", "switched off by a test"], ids=["compiled", "python"])
def test_so_it_does_in_a_fork_that_python_was_not_told_of(monkeypatch: pytest.MonkeyPatch, native: str) -> None:
    """By a library in C, say; parts.c has what another thread holds meanwhile. A group of one, in this thread: in such
    a fork Python waits for other threads of its own. As it was: the child went on by its parent's engine."""
    if native:
        monkeypatch.setattr(build, "load", lambda: native)
    channel = over_loopback(1)[0]()
    group, tensor = channel.group, torch.ones(250)
    group.allreduce([tensor]).wait()

    def code() -> int:
        time.sleep(0.05)
        child = ctypes.PyDLL(None).fork()
        if not child:
            with suppress(BaseException):
                works = (lambda: group.allreduce([tensor]).wait(), lambda: group._endpoint.still(()))
                os._exit(0 if all(map(refused, works)) else 1)
            os._exit(2)
        until = time.monotonic() + 30
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
        return os.waitstatus_to_exitcode(ended[1])

    # Where another thread, the plain engine's or pytest's, has asked for Python's lock, a fork of C's hands it over to
    # nobody and waits for good: that is Python's, and told from a call of ours that waits by trying again.
    assert next((found for _ in range(4) if (found := code()) != -signal.SIGKILL), "it waits") == 0
    group.allreduce([tensor]).wait()
    channel.close()


def test_bitmaps_of_calls_are_apart_though_they_are_made_in_one_piece() -> None:
    def work(channel: Genuine) -> None:
        group = channel.group
        works = [group.allreduce([torch.ones(5000)]) for _ in range(5)]
        places = sorted((one._arrived.ctypes.data, one._arrived.size) for one in works)
        assert all(at + size <= after for (at, size), (after, _) in zip(places, places[1:], strict=False))
        for one in works:
            one.wait()
        assert all(np.all(bits) for account in group.accounts for bits in account.arrived.values())

    together(over_loopback(2), work)
