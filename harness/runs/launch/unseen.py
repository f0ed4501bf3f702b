"""Processes that come and go between two looks: a program that forks a child for each request has its work done by
them. Nothing tells how long each of them waited for a core, but the group that they lived in has accounts of its own:
CPU time of all in it, and how long at least one of them waited. What those who were seen did not use, others did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lossbench.net.host import cgroups

RENEWED_S = 2.25  # as old is what the kernel says of waiting, at most (some kernels renew it at every look)
MATTER = 0.2  # of a run's CPU time, used by processes that nobody saw
LEAST_S = 0.04  # that they waited: twenty times two milliseconds
SHORTEST_S = 1.0  # in less nothing is said: both accounts are some milliseconds behind


class Mark(NamedTuple):
    """Of one moment: what the group has used and waited, and those of it that were seen; seconds."""

    at: float
    used: float
    waited: float
    seen_used: float
    seen_waited: float


class Unseen:
    """`look` with every sample. `group`: of the run's processes, if they have one of their own."""

    def __init__(self, group: Callable[[], Path | None]) -> None:
        self._group_of = group
        self.group: Path | None = None  # as it was when the clock started
        self._group: Path | None = None
        self._began = self._before = Mark(0.0, 0.0, 0.0, 0.0, 0.0)
        self._marks: list[Mark] = []  # moments at which the kernel said anew how long they waited: the first, the last

    def begin(self, at: float) -> None:
        self.group = self._group = self._group_of()
        self._marks = []
        self._began = self._before = self._mark(at, 0.0, 0.0) or Mark(at, 0.0, 0.0, 0.0, 0.0)

    def pids(self) -> list[int]:
        return cgroups.pids(self._group) if self._group else []

    def look(self, at: float, used: float, waited: float) -> None:
        """Since the last look, by those that were seen: `used`, the sum; `waited`, while at least one did."""
        before = self._before
        now = self._mark(at, before.seen_used + used, before.seen_waited + waited)
        if now is None:
            self._group = None
            return
        last = self._marks[-1].at if self._marks else self._began.at
        if now.waited != before.waited or at - last >= RENEWED_S:
            self._marks = [*self._marks[:1], now]
        self._before = now

    def cores(self) -> float:
        """That all of them kept busy on average; 0.0 where nothing is known."""
        passed = self._before.at - self._began.at
        return (self._before.used - self._began.used) / passed if passed >= SHORTEST_S else 0.0

    def share(self) -> float:
        """Of the CPU time, that processes used which nobody saw."""
        first, last = self._ends()
        used = last.used - first.used
        return max(0.0, used - (last.seen_used - first.seen_used)) / used if used > 0 else 0.0

    def times(self) -> float:
        """So many times as long as they had a core, at least one of them waited for one; 0.0 where they are few, or
        nothing is known. Whether one waits is taken to be independent of the others: where they share a core they wait
        together, and this is too few."""
        first, last = self._ends()
        passed = last.at - first.at
        if passed < SHORTEST_S or self.share() < MATTER:
            return 0.0
        anybody = min(1.0, (last.waited - first.waited) / passed)
        seen = min(0.99, (last.seen_waited - first.seen_waited) / passed)
        waited = passed * (1 - (1 - anybody) / (1 - seen))
        used = last.used - first.used - (last.seen_used - first.seen_used)
        return waited / used if waited >= LEAST_S else 0.0

    def _ends(self) -> tuple[Mark, Mark]:
        return (self._marks[0], self._marks[-1]) if self._marks else (self._began, self._began)

    def _mark(self, at: float, seen_used: float, seen_waited: float) -> Mark | None:
        if self._group is None:
            return None
        used, waited = cgroups.used_us(self._group), cgroups.waited_us(self._group)
        return None if used is None or waited is None else Mark(at, used / 1e6, waited / 1e6, seen_used, seen_waited)
