"""How long a run's own threads wait for a core while they could run, by the kernel's own account (schedstat).

Using a core fully is no fault; waiting for one is. A short wait is how two threads take turns (a ping-pong on one core
waits some microseconds a message). What makes times wrong is much waiting, and what makes latencies wrong is waiting
long each time, however seldom. Of who lives too shortly to be looked at `unseen` knows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from lossbench.net.host import cgroups
from lossbench.runs.launch.unseen import Unseen

TURNS_MS = 2.0  # shorter waits are threads that take turns; who computes keeps its core longer
OFTEN = 20  # times that a thread was given a core, to say how long it waits for one
MOST_OF_A_CORE = 0.02  # that looking may cost


class Account(NamedTuple):
    """Of one thread."""

    ran_ns: int = 0
    waited_ns: int = 0
    times: int = 0  # that it was given a core

    def since(self, before: Account) -> Account:
        return Account(*(now - old for now, old in zip(self, before, strict=True)))

    def each_ms(self) -> float:
        return self.waited_ns / 1e6 / max(1, self.times)


Accounts = dict[int, Account]  # by thread


class Waits:
    """`begin` when the clock starts, `sample` several times a second. `roots`: processes whose threads count, with
    those of all their descendants."""

    def __init__(self, roots: Callable[[], Iterable[int]]) -> None:
        self._roots = roots
        self._first: Accounts = {}
        self._last: Accounts = {}
        self._before: Accounts = {}
        self._read_at = self._next = 0.0
        self.waited: list[float] = []
        self.processes: set[int] = set()  # of the last look
        self.unseen = Unseen(self._group)

    def begin(self) -> None:
        self._read_at = time.monotonic()
        self.unseen.begin(self._read_at)
        self._first = self._before = self._look()

    def sample(self) -> None:
        at, worked = time.monotonic(), time.thread_time()
        if at < self._next:
            return
        now, passed = self._look(), at - self._read_at
        grown = _grown(now, self._before)
        if now and passed > 0:
            self.waited.append(longest_waiter(grown, passed))
        self.unseen.look(at, sum(one.ran_ns for one in grown.values()) / 1e9, passed * somebody_waits(grown, passed))
        self._last |= now
        self._before, self._read_at = now, at
        self._next = at + (time.thread_time() - worked) / MOST_OF_A_CORE

    def each_ms(self) -> float:
        """Of the threads that waited for cores longer than they had them: how long the worst did, each time."""
        return slowest_start(_grown(self._last, self._first))

    def _look(self) -> Accounts:
        """With those of the group that have left their parents."""
        self.processes = set()
        return _accounts([*self._roots(), *self.unseen.pids()], self.processes)

    def _group(self) -> Path | None:
        return next((group for pid in self._roots() if (group := cgroups.of_process(pid))), None)


def longest_waiter(grown: Accounts, passed_s: float) -> float:
    """The largest share of the time that a thread spent waiting, other than by taking turns."""
    long = [one.waited_ns / 1e9 / passed_s for one in grown.values() if one.each_ms() > TURNS_MS]
    return min(1.0, max(long, default=0.0))


def somebody_waits(grown: Accounts, passed_s: float) -> float:
    """The share of the time in which at least one of these waited, if they do it independently of each other."""
    return (
        1 - math.prod(1 - min(1.0, one.waited_ns / 1e9 / passed_s) for one in grown.values()) if passed_s > 0 else 0.0
    )


def slowest_start(grown: Accounts) -> float:
    late = [one.each_ms() for one in grown.values() if one.times >= OFTEN and one.waited_ns > one.ran_ns]
    return max(late, default=0.0)


def _grown(now: Accounts, before: Accounts) -> Accounts:
    return {thread: one.since(before.get(thread, Account())) for thread, one in now.items()}


def _accounts(roots: Iterable[int], seen: set[int]) -> Accounts:
    """`seen`: is told which processes they are."""
    out: Accounts = {}
    todo = list(roots)
    while todo:
        process = todo.pop()
        if process in seen:
            continue
        seen.add(process)
        for thread in _threads(process):
            here = f"/proc/{process}/task/{thread}"
            todo += [int(child) for child in _said(f"{here}/children").split()]
            numbers = _said(f"{here}/schedstat").split()
            if len(numbers) == len(Account._fields):
                out[int(thread)] = Account(*map(int, numbers))
    return out


def _threads(process: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{process}/task")
    except OSError:  # it has ended
        return []


def _said(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""
