"""Ends that are nobody's crash: a group that closes while others are inside it, and what a fork has of it."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossbench.workloads.collective.context import Group
from lossbench.workloads.collective.reduce import all_reduce, ask_all_reduce
from lossbench.workloads.errors import TransportError
from lossbench.workloads.transport import endpoint as endpoint_room
from lossbench.workloads.transport.half import Half
from lossbench.workloads.transport.jobs import Asked, Call, Worker
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.plain.flows import Open
from lossbench.workloads.transport.plan import address
from lossbench.workloads.transport.policy import Policy
from tests.forms import forms, full
from tests.transport.conftest import Make, make_ranks

F32 = CODECS["float32"]
ROOT = Path(__file__).resolve().parents[2]


def begun(group: Group, elements: int = 100_000) -> Call:
    """An all-reduce that nobody else takes part in."""
    data = np.ones(elements, np.float32)
    plan = group.plan(group.endpoint.even(len(data)), F32)
    return group.endpoint.begin(lambda: ask_all_reduce(group, address(data), plan=plan, holds=data))


def summed(group: Group) -> None:
    all_reduce(group, np.ones(10_000, np.float32), codec=F32)


def test_counters_are_read_while_and_after_a_group_closes(ranks: Make) -> None:
    """As it was: memory that was freed, three times of three."""
    for _ in range(2):
        made, over, found = ranks(2), threading.Event(), list[BaseException]()
        made.all(summed)

        def monitor(group: Group, over: threading.Event = over, found: list[BaseException] = found) -> None:
            try:
                while not over.is_set():
                    assert group.endpoint.read()["halves"] == 2
            except BaseException as error:  # noqa: BLE001 - shown below
                found.append(error)

        threads = [threading.Thread(target=monitor, args=(group,)) for group in made.groups]
        for thread in threads:
            thread.start()
        made.close()
        assert made.groups[0].endpoint.read()["data_arrived"] > 0
        over.set()
        for thread in threads:
            thread.join()
        assert not found


def test_an_abort_wakes_whoever_waits_and_ends_the_patience_of_whoever_closes(ranks: Make) -> None:
    """As it was: the second to close did nothing, and the first waited for what would never come."""
    made = ranks(2)
    endpoint, call, said = made.groups[0].endpoint, begun(made.groups[0]), list[str]()

    def wait() -> None:
        with pytest.raises(TransportError) as caught:
            call.wait()
        said.append(str(caught.value))

    threads = [threading.Thread(target=wait), threading.Thread(target=endpoint.close, args=(600.0,))]
    for thread in threads:
        thread.start()
    while not endpoint._closing:
        time.sleep(0.001)
    endpoint.close(0.0)
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert said == ["rank 0: aborted"]


def test_a_program_that_aborts_when_it_is_told_to_end_ends(ranks: Make) -> None:
    """A handler of a signal runs in the thread that waits. As it was: not before the call had ended."""
    made = ranks(2)
    endpoint, call = made.groups[0].endpoint, begun(made.groups[0])
    before = signal.signal(signal.SIGALRM, lambda *_: endpoint.close(0.0))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(TransportError, match="aborted"):
            call.wait(60)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_so_it_does_where_another_call_waits_for_that_one(ranks: Make) -> None:
    """A call on the same tensor. As it was: the handler waited for the thread that waited for what its own held."""
    made, inside = ranks(2), threading.Event()
    endpoint, call = made.groups[0].endpoint, begun(made.groups[0])
    later = endpoint.begin(lambda: call.wait() if inside.wait(60) else None, queued=True)
    before = signal.signal(signal.SIGALRM, lambda *_: endpoint.close(0.0))
    try:
        threading.Timer(0.2, inside.set).start()
        signal.setitimer(signal.ITIMER_REAL, 0.6)
        with pytest.raises(TransportError, match="aborted"):
            call.wait(60)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(TransportError):
        later.wait(60)


def test_an_abort_in_a_handler_waits_for_nobody_who_waits_for_its_own_thread(
    pump: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call on a tensor of the one that was interrupted. As it was: ten seconds, five of them twice."""
    del pump
    monkeypatch.setattr(endpoint_room, "LEFT_S", 600.0)

    def work() -> None:
        made, inside = make_ranks(2), threading.Event()
        endpoint, call = made.groups[0].endpoint, begun(made.groups[0])
        later = endpoint.begin(lambda: (inside.wait(60), call.wait())[1], queued=True)
        signal.signal(signal.SIGALRM, lambda *_: endpoint.close(0.0))
        threading.Timer(0.1, inside.set).start()
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(TransportError, match="aborted"):
            call.wait(60)
        with pytest.raises(TransportError, match="aborted"):
            later.wait(60)

    assert ends(work)


def test_an_abort_ends_the_patience_of_who_closes_though_a_job_waits_for_something_else(
    ranks: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a GPU, say. As it was: `patience_s`, and ten seconds more."""
    monkeypatch.setattr(endpoint_room, "LEFT_S", 0.1)
    endpoint, over = ranks(2).groups[0].endpoint, threading.Event()
    call = endpoint.begin(lambda: None if over.wait(600) else None, queued=True)
    closing = threading.Thread(target=endpoint.close, args=(600.0,))
    closing.start()
    while not endpoint._closing:
        time.sleep(0.001)
    aborting = threading.Thread(target=endpoint.close, args=(0.0,))
    aborting.start()
    for thread in (closing, aborting):
        thread.join(60)
    alive = [thread for thread in (closing, aborting) if thread.is_alive()]
    over.set()
    assert not alive
    call.wait(60)


class ToldAt:
    """Calls of the one that it stands for; one of them brings a signal, once, before or after."""

    def __init__(self, real: Any, name: str, *, after: bool) -> None:
        self._real, self._name, self._after, self._told = real, name, after, False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name != self._name or self._told:
            return real

        def told(*given: Any) -> Any:
            self._told = True
            if not self._after:
                signal.raise_signal(signal.SIGUSR1)
            out = real(*given)
            if self._after:
                signal.raise_signal(signal.SIGUSR1)
            return out

        return told


def ends(work: Callable[[], None]) -> bool:
    """In a process of its own, which says where it stood if it does not."""
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(60, exit=True)
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - shown
            traceback.print_exc()
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def closing_when_told(group: Group) -> None:
    """As a program does that aborts when it is told to end."""
    signal.signal(signal.SIGUSR1, lambda *_: (group.endpoint.close(0.0), group.endpoint.read()))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_abort_while_a_job_is_handed_over_ends(pump: str, after: bool) -> None:
    """In a handler, in the thread that hands it over. As it was: it waited for a lock of its own for ever."""
    del pump

    def work() -> None:
        endpoint = make_ranks(2).groups[0].endpoint
        endpoint.begin(lambda: None, queued=True).wait()
        assert endpoint._worker is not None
        endpoint._worker._jobs = ToldAt(endpoint._worker._jobs, "put", after=after)
        closing_when_told(Group(endpoint))
        call = endpoint.begin(lambda: None, queued=True)
        with suppress(TransportError):  # it may have been through
            call.wait(30)
        assert endpoint._closed.is_set() and not endpoint._worker.pending

    assert ends(work)


def test_an_abort_at_any_door_of_an_engine_ends(pump: str) -> None:
    """As it was: the numpy engine's doors held a lock, and closing joined the thread that waited for it."""

    def told_while_opened(patched: pytest.MonkeyPatch) -> None:
        real = Open.__init__

        def told(self: Open, *given: Any, **named: Any) -> None:
            patched.setattr(Open, "__init__", real)
            signal.raise_signal(signal.SIGUSR1)
            real(self, *given, **named)

        patched.setattr(Open, "__init__", told)

    def work() -> None:
        with pytest.MonkeyPatch.context() as patched:
            group = make_ranks(2).groups[0]
            closing_when_told(group)
            told_while_opened(patched) if pump == "python" else signal.raise_signal(signal.SIGUSR1)
            with suppress(TransportError):
                begun(group).wait(30)
            assert group.endpoint._closed.is_set()

    assert ends(work)


@forms("every", [4, 1])
@pytest.mark.parametrize("deed", ["calls", "closes", "waits for who closes"])
def test_an_abort_ends_wherever_a_handler_may_come_in_between(pump: str, deed: str, every: int) -> None:
    """A signal at each call that Python makes in turn. As it was: the numpy engine never ended, and with both engines
    whoever was told while it closed closed twice."""
    deeds = {
        "calls": lambda group: (begun(group).done(), group.endpoint.read()),
        "closes": lambda group: group.endpoint.close(0.2),
        "waits for who closes": _closed_twice,
    }
    del pump

    def work() -> None:
        number = came = 1
        while came >= number:
            faulthandler.dump_traceback_later(60, exit=True)
            made, came = make_ranks(2), 0
            closing_when_told(made.groups[0])

            def told(_: object, event: str, __: object, at: int = number) -> None:
                nonlocal came
                came += event in ("call", "c_return")  # where the interpreter looks for signals
                if came == at and event in ("call", "c_return"):
                    signal.raise_signal(signal.SIGUSR1)

            sys.setprofile(told)
            try:
                deeds[deed](made.groups[0])
            except TransportError as error:
                assert "aborted" in str(error) or "closed" in str(error)
            finally:
                sys.setprofile(None)
            for group in made.groups:
                group.endpoint.close(0.0)
                assert group.endpoint._closed.is_set()
            number += every

    assert ends(work)


def _closed_twice(group: Group) -> None:
    other = threading.Thread(target=group.endpoint.close, args=(0.2,))
    other.start()
    group.endpoint.close(0.2)
    other.join()


def test_a_worker_that_is_made_while_its_group_closes_ends(ranks: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: nobody stopped its threads, and its job was begun."""
    endpoint, ran = ranks(2).groups[0].endpoint, list[int]()

    def closed_meanwhile(*given: Any, **keys: Any) -> Worker:
        endpoint.close(0.0)
        return Worker(*given, **keys)

    monkeypatch.setattr("lossbench.workloads.transport.endpoint.Worker", closed_meanwhile)
    with pytest.raises(TransportError, match="closed"):
        endpoint.begin(lambda: ran.append(1), queued=True).wait(60)
    assert not ran and endpoint._worker is not None
    for thread in endpoint._worker._threads:
        thread.join(60)
        assert not thread.is_alive()


def test_calls_begun_while_a_peer_is_late_ask_only_for_the_oldest(ranks: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: each begin asked for all that were under way."""
    made, asked = ranks(2), list[Half]()
    endpoint, over = made.groups[0].endpoint, made.groups[0].endpoint.over
    monkeypatch.setattr(endpoint, "over", lambda half: (asked.append(half), over(half))[1])
    calls, counts = [], []
    for _ in range(100):
        calls.append(begun(made.groups[0], 64))
        counts.append(len(asked))
        asked.clear()
    endpoint.close(0.0)
    assert max(counts) <= 4, counts


def _not_refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except TransportError as error:
        return "belongs to the process that was forked" not in str(error)
    return True


@full
def test_counters_and_halves_of_a_forked_child_say_whose_they_are(ranks: Make) -> None:
    """As it was: half of the children hung, with locks that nobody will open."""
    made, over = ranks(2), threading.Event()

    def busy() -> None:
        while not over.is_set():
            made.all(summed)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if not child:
                faulthandler.dump_traceback_later(30, exit=True)
                end = made.groups[0].endpoint
                end.failed(TransportError("of a call that it has from its parent"))
                os._exit(sum(map(_not_refused, (end.read, end.start, lambda end=end: end.begin(lambda: None)))))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        over.set()
        thread.join()


@full
def test_a_forked_child_does_not_wait_for_a_call_that_its_parent_began(ranks: Make) -> None:
    """As it was: for ever, since nobody ends it there."""
    made, over = ranks(2), threading.Event()
    end, direct = made.groups[0].endpoint, begun(made.groups[0])
    queued = end.begin(lambda: None if over.wait(60) else None, queued=True)
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(30, exit=True)
        os._exit(sum(map(_not_refused, (direct.wait, queued.wait))))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    over.set()
    end.close(0.0)


def test_a_queued_job_begins_while_the_one_before_it_is_under_way(ranks: Make) -> None:
    """As it was: whoever came when the queue was empty waited until the one before had ended."""
    made, began = ranks(2), [threading.Event(), threading.Event()]
    group = made.groups[0]

    def ask(number: int) -> Asked:
        data = np.ones(10_000, np.float32)
        plan = group.plan(group.endpoint.even(len(data)), F32)
        asked = ask_all_reduce(group, address(data), plan=plan, holds=data)
        began[number].set()
        return asked

    calls = [group.endpoint.begin(lambda: ask(0), queued=True)]
    assert began[0].wait(60)
    time.sleep(0.3)  # there is nothing more to begin
    calls.append(group.endpoint.begin(lambda: ask(1), queued=True))
    assert began[1].wait(60) and not calls[0].done()
    for _ in calls:
        made.start(1, summed).result(60)
    for call in calls:
        call.wait(60)


def test_an_interruption_between_a_call_and_whoever_holds_it_ends_its_halves(
    ranks: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that raises when the engine has been asked. As it was: memory that nobody held was written to."""
    group, asked = ranks(2).groups[0], list[Half]()
    start = group.endpoint.start

    def interrupted(_: Call) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(group.endpoint, "start", lambda *halves: (start(*halves), asked.extend(halves))[0])
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Call, "done", interrupted)
        begun(group)
    assert len(asked) == 2 and all(map(group.endpoint.over, asked))


def _stops_itself(waits: int, go: int) -> bool:
    """Two ranks of one process, one of which is in a call when all of it is stopped. Whether the sums are right."""
    made = make_ranks(2, policy=Policy(timeout_s=0.6))
    first = made.start(0, ones)
    while not made.groups[0].endpoint.read()["sent"][1]:
        time.sleep(0.01)
    os.write(waits, b"x")
    os.read(go, 1)
    return all(np.all(future.result(60) == 2.0) for future in (made.start(1, ones), first))


def ones(group: Group) -> np.ndarray:
    mine = np.ones(10_000, np.float32)
    all_reduce(group, mine, codec=F32)
    return mine


def test_a_job_that_was_stopped_as_a_whole_takes_its_own_sleep_for_nobodys_silence(pump: str) -> None:
    """Longer than `timeout_s`. As it was: each rank named another that had ended."""
    del pump
    (waits, told), (told_to_go, go) = os.pipe(), os.pipe()
    job = os.fork()
    if not job:
        faulthandler.dump_traceback_later(90, exit=True)
        with suppress(BaseException):
            os._exit(0 if _stops_itself(told, told_to_go) else 1)
        os._exit(2)
    assert os.read(waits, 1) == b"x"
    os.kill(job, signal.SIGSTOP)
    time.sleep(1.2)
    os.kill(job, signal.SIGCONT)
    time.sleep(0.2)
    os.write(go, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]) == 0
    for end in (waits, told, told_to_go, go):
        os.close(end)


DROPPED = """
import gc, os, threading, time
import numpy as np
from lossbench.workloads.collective.reduce import all_reduce
from lossbench.workloads.transport.packet.codec import CODECS
from tests.transport.conftest import make_ranks

def summed(group):
    all_reduce(group, np.ones(10_000, np.float32), codec=CODECS["float32"])

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
for _ in range(5):
    made = make_ranks(2)
    calls = [threading.Thread(target=summed, args=(group,)) for group in made.groups]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    del made, calls, call
    gc.collect()
until = time.monotonic() + 60
while threads() > before and time.monotonic() < until:
    time.sleep(0.05)
print(threads() - before)
"""


def test_a_group_that_nobody_closed_ends_its_threads_before_its_memory_goes() -> None:
    """As it was: memory was freed under a thread that ran on."""
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
