"""The schedule of faults: puts in force what time and steps ask for, and writes down when it really came and went."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lossbench.net.counters import counters_as_json
from lossbench.net.network import Network
from lossbench.proof.watched import Change, Unit, Watched
from lossbench.results.folders import RunFolder
from lossbench.spec.experiment import Impair
from lossbench.spec.placement import rules_in_force

LATE_S = 0.25  # a change that comes later than this is said of the timing too


class Schedule:
    """Of one run. `hear`: take what ranks have reported until now."""

    def __init__(
        self, *, network: Network, store: RunFolder, seed: int, seen: Watched, hear: Callable[[], None]
    ) -> None:
        self.network, self.store, self.seed, self.seen = network, store, seed, seen
        self.entries = network.experiment.impair
        self._hear = hear
        self._start = 0.0
        self._before = (0.0, 0)  # second and step when it was last kept
        self._active: tuple[bool, ...] = ()
        self._ever: set[int] = set()
        self._stamped: list[tuple[float, Change]] = []  # when it was done by the clock that ranks stamp records with

    def begin(self, start: float) -> None:
        """The run's clock begins at this moment of the monotonic one; what is asked from there on is in force."""
        self._start = start

    def keep(self, elapsed_s: float) -> None:
        """Put in force what time and step ask for; written to the timeline whenever it changes."""
        step = max(self.seen.last_step, 0)
        active = tuple(entry.active(elapsed_s=elapsed_s, step=step) for entry in self.entries)
        if active != self._active:
            self._put(active, elapsed_s, step)
        self._before = (elapsed_s, step)

    def _put(self, active: tuple[bool, ...], elapsed_s: float, step: int) -> None:
        rules = rules_in_force(self.network.experiment, seed=self.seed, elapsed_s=elapsed_s, step=step)
        self.seen.lapsed(self.network.not_in_force())
        began = time.monotonic()
        changed = self.network.put(rules)
        took_s = time.monotonic() - began
        for hook, here in rules.items():
            self.seen.rules.setdefault(hook, {}).update({rule.label: rule for rule in here})
        self._changed(active, (elapsed_s, step))
        self._active = active
        self._ever |= {number for number, on in enumerate(active) if on}
        in_force = [entry for entry, on in zip(self.entries, active, strict=True) if on]
        self.store.append(
            "timeline.jsonl",
            {
                "time_s": time.time(),
                "elapsed_s": round(elapsed_s, 4),
                "took_s": round(took_s, 4),
                "step": self.seen.last_step,
                "in_force": [{**entry.model_dump(), "profile": entry.profile.name} for entry in in_force],
                "changed_hooks": [hook.name for hook in changed],
            },
        )
        self.store.append("counters.jsonl", {"time_s": time.time(), "hooks": counters_as_json(self.network.counters())})

    # --- when it really was ------------------------------------------------------------------------------------------

    def _changed(self, active: tuple[bool, ...], now: tuple[float, int]) -> None:
        """It has just been put in force. What was so from the beginning has no moment at which it came."""
        done_s, stamp = time.monotonic() - self._start, time.time()
        changes = [
            change
            for number, entry in enumerate(self.entries)
            if self._active and self._active[number] != active[number]
            for change in _due(number, entry, came=active[number], before=self._before, now=now)
        ]
        if any(change.unit == "step" for change in changes):
            self._hear()  # of the steps that were begun meanwhile
        for change in changes:
            if change.unit == "step":
                change.real = max(self.seen.last_step, 0)
                self._stamped.append((stamp, change))
                continue
            change.real = done_s
            if done_s - change.asked > LATE_S:
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
        edges = [at for entry in self.entries for at in (entry.from_s, entry.to_s) if at is not None]
        due = min((at for at in edges if at > self._before[0]), default=None)
        now = time.monotonic() - self._start
        return longest_s if due is None else min(max(due - now, 0.0), longest_s)

    def end(self) -> None:
        """What never came, and what should have gone and did not until the run ended."""
        now = (self.seen.duration_s, max(self.seen.last_step, 0))
        for number, entry in enumerate(self.entries):
            if number not in self._ever:
                self.seen.never.append(_never(number, entry, self.seen.duration_s))
            elif self._active[number]:
                for change in _due(number, entry, came=False, before=self._before, now=now):
                    change.real = now[0] if change.unit == "s" else now[1]
                    self.seen.changes.append(change)


def _due(number: int, entry: Impair, *, came: bool, before: tuple[float, int], now: tuple[float, int]) -> list[Change]:
    """Which of the limits of an entry were passed since it was last looked at."""
    limits = (entry.from_s, entry.from_step) if came else (entry.to_s, entry.to_step)
    units: tuple[Unit, Unit] = ("s", "step")
    return [
        Change(entry=number, came=came, unit=unit, asked=asked)
        for unit, asked, earlier, reached in zip(units, limits, before, now, strict=True)
        if asked is not None and earlier < asked <= reached
    ]


def _never(number: int, entry: Impair, duration_s: float) -> str:
    """Whose fault it was."""
    name = f"impair.{number} ({entry.profile.name}) was never in force"
    if entry.from_s is not None and entry.from_step is None and entry.from_s < duration_s:
        return f"{name}: the watch was too busy to open its window in time"
    return f"{name}: the workload ended before its time"
