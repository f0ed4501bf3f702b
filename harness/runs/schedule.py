"""The schedule of faults: puts in force what time and steps ask for, and writes down when it really came and went.

Windows in time are kept by the network where it can (Network.keeps_time): it is told once when the run's clock began,
and nobody has to be on time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from lossbench.net.counters import counters_as_json
from lossbench.net.network import Network
from lossbench.proof.judge_windows import opens_with_the_run
from lossbench.proof.watched import Change, Unit, Watched
from lossbench.results.folders import RunFolder
from lossbench.spec.experiment import Impair
from lossbench.spec.placement import Rules, in_steps, rules_in_force, rules_kept

LATE_S = 0.25  # a change that comes later than this is said of the timing too
AHEAD_S = (
    0.25  # before a change is due it is looked whether all stands, so that the change itself need not wait for that
)


class Schedule:
    """Of one run. `hear`: take what ranks have reported until now."""

    def __init__(
        self, *, network: Network, store: RunFolder, seed: int, seen: Watched, hear: Callable[[], None]
    ) -> None:
        self.network, self.store, self.seed, self.seen = network, store, seed, seen
        self.entries = network.experiment.impair
        self._hear = hear
        self._start = self._told_s = 0.0
        self._rules: Rules = {}
        self._before = (0.0, 0)  # second and step when it was last kept
        self._active: tuple[bool, ...] = ()
        self._by_step: tuple[bool, ...] = ()
        self._checked_s = -math.inf
        self._ever: set[int] = set()  # entries that were in force
        self._known: set[int] = set()  # those of them whose rules were told since rules last changed
        self._stamped: list[tuple[float, Change]] = []  # when it was done by the clock that ranks stamp records with
        self._opened = 0.0  # when what is in force from the beginning was so everywhere
        self.opening_took_s = 0.0
        self._unwritten: dict[str, Any] | None = None

    def begin(self, start: float) -> None:
        """The run's clock begins at this moment of the monotonic one; what is asked from there on is in force."""
        self._start = start
        self.network.begin(start)
        self._told_s = time.monotonic() - start
        self.seen.changes += [
            Change(entry=number, came=True, unit="s", asked=0.0, real=self._opened - start)
            for number, entry in enumerate(self.entries)
            if opens_with_the_run(entry) and self._active[number] and not self.network.keeps_time
        ]

    def keep(self, elapsed_s: float) -> None:
        """Put in force what time and step ask for; written to the timeline whenever it changes."""
        self._write()
        step = max(self.seen.last_step, 0)
        active = tuple(entry.active(elapsed_s=elapsed_s, step=step) for entry in self.entries)
        timed = self.network.keeps_time  # then rules that steps ask for stand there, whatever the time
        by_step = tuple(timed and in_steps(entry, step) for entry in self.entries)
        if (active, by_step) != (self._active, self._by_step):
            self._put(active, elapsed_s, step)
        elif (due := self._next_s(elapsed_s)) - elapsed_s <= AHEAD_S and self._checked_s < due - AHEAD_S:
            self._check(elapsed_s)
        self._by_step = by_step
        self._remember(elapsed_s, step)
        self._before = (elapsed_s, step)

    def _put(self, active: tuple[bool, ...], elapsed_s: float, step: int) -> None:
        self._rules = self._wanted(elapsed_s, step)
        if elapsed_s - self._checked_s > 2 * AHEAD_S:
            self._check(elapsed_s)
        began, first = time.monotonic(), not self._active
        changed = self.network.put(self._rules)
        took_s = time.monotonic() - began
        if first:
            self._opened, self.opening_took_s = began + took_s, took_s
        self._changed(active, (elapsed_s, step))
        self._active = active
        self._known.clear()
        self._unwritten = {
            "time_s": time.time(),
            "elapsed_s": round(elapsed_s, 4),
            "took_s": round(took_s, 4),
            "step": self.seen.last_step,
            "in_force": [
                {**entry.model_dump(), "profile": entry.profile.name}
                for entry, on in zip(self.entries, active, strict=True)
                if on
            ],
            "by": "the network" if self.network.keeps_time else "the harness",
            "changed_hooks": [hook.name for hook in changed],
        }
        if not first:
            self._write()

    def _write(self) -> None:
        """What is in force from the beginning is written when the clock has begun: meanwhile it waits for nothing."""
        if self._unwritten is not None:
            self.store.append("timeline.jsonl", self._unwritten)
            counted = counters_as_json(self.network.counters())
            self.store.append("counters.jsonl", {"time_s": time.time(), "hooks": counted})
            self._unwritten = None

    def _check(self, elapsed_s: float) -> None:
        """Does what should be in force until now still stand?"""
        self.seen.lapsed(self.network.not_in_force())
        self.looked(elapsed_s)

    def looked(self, elapsed_s: float) -> None:
        """Somebody has seen that it does: a change soon afterwards need not wait for another look."""
        self._checked_s = elapsed_s

    def _wanted(self, elapsed_s: float, step: int) -> Rules:
        if self.network.keeps_time:
            return rules_kept(self.network.experiment, seed=self.seed, step=step)
        return rules_in_force(self.network.experiment, seed=self.seed, elapsed_s=elapsed_s, step=step)

    def _remember(self, elapsed_s: float, step: int) -> None:
        """What was in force since it was last kept, if only for a part of that where the network keeps time."""
        for number, entry in enumerate(self.entries):
            if self.network.keeps_time:
                opened, shut = entry.from_s or 0.0, entry.to_s
                on = in_steps(entry, step) and opened <= elapsed_s and (shut is None or shut > self._before[0])
            else:
                on = self._active[number]
            if on:
                self._ever.add(number)
        if self._ever == self._known:
            return
        self._known = set(self._ever)
        for hook, here in self._rules.items():
            met = {rule.label: rule for rule in here if rule.entry in self._ever}
            self.seen.rules.setdefault(hook, {}).update(met)

    # --- when it really was ------------------------------------------------------------------------------------------

    def _changed(self, active: tuple[bool, ...], now: tuple[float, int]) -> None:
        """It has just been put in force. What was so from the beginning has no moment at which it came."""
        done_s, stamp = time.monotonic() - self._start, time.time()
        changes = [
            change
            for number, entry in enumerate(self.entries)
            if self._active and self._active[number] != active[number]
            for change in self._due(number, entry, came=active[number], now=now)
        ]
        stepped = [change for change in changes if change.unit == "step"]
        self._stamped += [(stamp, change) for change in stepped]
        for change in stepped:
            change.real = now[1]
        if stepped:
            self._hear()  # of the steps that were begun until then
        for change in changes:
            if change.unit == "step":
                if self.network.experiment.topology.machines:  # whose stamps are by clocks of their own
                    change.real = max(self.seen.last_step, 0)
                continue
            change.real = done_s
            if now[0] - change.asked > LATE_S:  # how long a change takes on many hosts says nothing of the machine
                text = f"impair.{change.entry} {'came' if change.came else 'went'} {done_s - change.asked:.2f} s late"
                self.seen.late.append(text)
        self.seen.changes += changes

    def stepped(self, record: dict[str, Any]) -> None:
        """A rank reports a step. By its own stamp it may have been there before a rule came or went, and was only not
        heard in time. Machines of a lab have clocks of their own."""
        stamp, step = record.get("time_s"), record["step"]
        self.seen.last_step = max(self.seen.last_step, step)
        if isinstance(stamp, int | float) and not self.network.experiment.topology.machines:
            for done, change in self._stamped:
                if stamp <= done:
                    change.real = max(change.real, step)

    def nap_s(self, longest_s: float) -> float:
        """Until the next change in time is due."""
        left_s = self._next_s(self._before[0]) - (time.monotonic() - self._start)
        return min(max(left_s, 0.0), longest_s)

    def _next_s(self, after_s: float) -> float:
        """When the next change in time that is ours to make is due."""
        entries = () if self.network.keeps_time else self.entries
        edges = [at for entry in entries for at in (entry.from_s, entry.to_s) if at is not None]
        return min((at for at in edges if at > after_s), default=math.inf)

    def end(self) -> None:
        """What never came, and what should have gone and did not until the run ended."""
        now = (self.seen.duration_s, max(self.seen.last_step, 0))
        if self._unwritten is not None:
            self.store.append("timeline.jsonl", self._unwritten)
        if self._active and self.network.keeps_time:
            self._remember(*now)
        for number, entry in enumerate(self.entries):
            if number not in self._ever:
                self.seen.never.append(_never(number, entry, now))
            elif self.network.keeps_time and entry.from_step is None and entry.to_step is None:
                self.seen.changes += self._kept(number, entry)
            elif self._active[number]:
                for change in self._due(number, entry, came=False, now=now):
                    change.real = now[0] if change.unit == "s" else now[1]
                    self.seen.changes.append(change)

    def _due(self, number: int, entry: Impair, *, came: bool, now: tuple[float, int]) -> list[Change]:
        """Which of the limits of an entry that are ours to keep were passed since we last looked."""
        limits = (entry.from_s, entry.from_step) if came else (entry.to_s, entry.to_step)
        units: tuple[Unit, Unit] = ("s", "step")
        return [
            Change(entry=number, came=came, unit=unit, asked=asked)
            for unit, asked, before, reached in zip(units, limits, self._before, now, strict=True)
            if asked is not None and before < asked <= reached and not (unit == "s" and self.network.keeps_time)
        ]

    def _kept(self, number: int, entry: Impair) -> list[Change]:
        """By the network, once it was told when the clock began."""
        begins = 0.0 if opens_with_the_run(entry) else entry.from_s or None
        limits = [(came, at) for came, at in ((True, begins), (False, entry.to_s)) if at is not None]
        return [
            Change(entry=number, came=came, unit="s", asked=at, real=max(at, self._told_s), kept=True)
            for came, at in limits
            if at <= self.seen.duration_s
        ]


def _never(number: int, entry: Impair, end: tuple[float, int]) -> str:
    """Whose fault it was."""
    name = f"impair.{number} ({entry.profile.name}) was never in force"
    begun = zip((entry.from_s, entry.from_step), end, strict=True)
    if end[0] > 0 and all(first is None or first < last for first, last in begun):
        return f"{name}: the watch was too busy to open its window in time"
    return f"{name}: the workload ended before its time"
