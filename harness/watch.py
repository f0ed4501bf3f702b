"""While the workload runs: the barrier, the schedule of faults, health, and what is needed to judge timing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import RunError
from harness.experiment import Experiment
from harness.net.impair.base import Counters, RuleCounters
from harness.net.network import Network, counters_as_json
from harness.placement import Hook, Rule, Rules, rules_in_force
from harness.ranks import Ranks
from harness.store import RunFolder

TICK_S = 0.02
SAMPLE_S = 0.25
READY_LIMIT_S = 120.0

ROW_OWN = ("kind", "rank", "time_s")

LIVE = ("steps", "loss", "arrived_1", "arrived_2")  # of a rank's records, for the live view

Progress = Callable[[str | dict[str, Any]], None]  # a stage in words, or how the workload does just now


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One rule at one hook, from one change of the schedule to the next, with what the kernel counted in between."""

    hook: Hook
    rule: Rule | None  # None: what no rule took, or a backend that can't tell rules apart
    counters: RuleCounters


@dataclass(kw_only=True)
class Watched:
    """What the watch saw."""

    segments: list[Segment] = field(default_factory=list)
    cpu_busy: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    summaries: list[dict[str, Any]] = field(default_factory=list)
    traffic: dict[int, dict[str, Any]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lapses: list[str] = field(default_factory=list)  # rules that were not in force any more when they were looked at
    never: list[str] = field(default_factory=list)  # entries of the schedule whose time never came
    last_step: int = -1
    duration_s: float = 0.0
    damaged_lines: int = 0
    problem: str = ""


class Watch:
    """Ranks are started; `run` returns when they have ended."""

    def __init__(self, *, experiment: Experiment, network: Network, ranks: Ranks, store: RunFolder, seed: int,
                 progress: Progress) -> None:  # fmt: skip
        self.experiment = experiment
        self.network = network
        self.ranks = ranks
        self.store = store
        self.seed = seed
        self.progress = progress
        self.seen = Watched()
        self._active: tuple[bool, ...] = ()
        self._ever: set[int] = set()
        self._cpu = _cpu_times()
        self._now: dict[str, Any] = {}

    def run(self) -> Watched:
        try:
            self._wait_until_ready()
            start = time.monotonic()
            self._schedule(0.0)
            self.ranks.open_gate()
            self.progress("8 workload runs")
            self._watch(start)
        except RunError as error:
            # What was measured until then is kept; the outcome column says what happened.
            self.seen.problem = str(error)
        self._finish()
        return self.seen

    def _wait_until_ready(self) -> None:
        if not self.experiment.workload.barrier:
            return
        deadline = time.monotonic() + min(READY_LIMIT_S, self.experiment.workload.time_limit_s)
        while not self.ranks.all_ready():
            self._take(self.ranks.read())
            self.ranks.check_alive()
            if len(self.ranks.running()) < len(self.ranks.members) and not self.ranks.all_ready():
                raise RunError(
                    "a rank ended before it said ready (workload.barrier = false for programs that never do)"
                )
            if time.monotonic() > deadline:
                missing = [r.number for r in self.ranks.members if not r.ready]
                raise RunError(f"ranks {missing} did not say ready in time (workload.barrier = false if they never do)")
            time.sleep(TICK_S)

    def _watch(self, start: float) -> None:
        limit, next_sample = self.experiment.workload.time_limit_s, 0.0
        while True:
            running = self.ranks.running()
            self._take(self.ranks.read())
            elapsed = self.seen.duration_s = time.monotonic() - start
            self.ranks.check_alive()
            if not running:
                return
            if elapsed > limit:
                raise RunError(f"the workload ran past its limit of {limit:g} s (workload.time_limit_s)")
            self._schedule(elapsed)
            if elapsed >= next_sample:
                next_sample = elapsed + SAMPLE_S
                self._sample(elapsed)
            before = time.monotonic()
            time.sleep(TICK_S)
            self.seen.late_ms.append((time.monotonic() - before - TICK_S) * 1000)

    def _sample(self, elapsed: float) -> None:
        now = _cpu_times()
        total, idle = now[0] - self._cpu[0], now[1] - self._cpu[1]
        self._cpu = now
        if total:
            self.seen.cpu_busy.append(1 - idle / total)
        self.progress(
            {"elapsed_s": elapsed, "last_step": self.seen.last_step, **self._now, "network": self._network_now}
        )
        gone = self.network.ports_missing()
        if gone:
            raise RunError(f"links went away during the run: switch ports {', '.join(gone)}")
        if self.experiment.shaping.classes:
            backlog = {
                link: {c.name: c.backlog_bytes for c in states} for link, states in self.network.classes().items()
            }
            self.store.append("queues.jsonl", {"elapsed_s": round(elapsed, 3), "backlog_bytes": backlog})

    def _take(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            kind = record.get("kind")
            if kind in ("begin", "step"):
                self._now |= {name: record[name] for name in LIVE if name in record}
            if kind == "step" and isinstance(record.get("step"), int):
                self.seen.last_step = max(self.seen.last_step, record["step"])
            elif kind == "summary":
                self.seen.summaries.append(record)
            elif kind == "row":
                self.seen.rows.append({key: value for key, value in record.items() if key not in ROW_OWN})
            elif kind == "traffic":
                self._take_traffic(record)
            elif kind == "error":
                self.seen.errors.append(f"rank {record['rank']}: {record.get('message', 'error')}")

    def _network_now(self) -> tuple[int, int]:
        """Packets that met a rule, and those dropped, since the last change; only asked for where somebody looks."""
        here = [c for counters in self.network.current_counters().values() for c in counters.values()]
        return sum(c.seen for c in here), sum(c.dropped for c in here)

    def _take_traffic(self, record: dict[str, Any]) -> None:
        columns = (record.get("sent"), record.get("received"))
        if all(isinstance(c, list) and all(isinstance(n, int) and n >= 0 for n in c) for c in columns):
            self.seen.traffic[record["rank"]] = record
        else:
            self.seen.errors.append(f"rank {record['rank']}: a traffic record without lists of counts")

    # --- the schedule ------------------------------------------------------------------------------------------

    def _schedule(self, elapsed_s: float) -> None:
        """Put in force what time and step ask for; written to the timeline whenever it changes."""
        step = max(self.seen.last_step, 0)
        active = tuple(entry.active(elapsed_s=elapsed_s, step=step) for entry in self.experiment.impair)
        if active == self._active:
            return
        rules = rules_in_force(self.experiment, seed=self.seed, elapsed_s=elapsed_s, step=step)
        self.seen.lapses += self.network.not_in_force()
        before, old = time.monotonic(), dict(self.network.rules)
        replaced = self.network.put(rules)
        if self._active:  # at the start nothing of the workload has met what is replaced
            self._take_counters({hook: old[hook] for hook in replaced if hook in old}, replaced)
        self._active = active
        self._ever |= {number for number, on in enumerate(active) if on}
        in_force = [entry for entry, on in zip(self.experiment.impair, active, strict=True) if on]
        self.store.append(
            "timeline.jsonl",
            {
                "time_s": time.time(),
                "elapsed_s": round(elapsed_s, 4),
                "took_s": round(time.monotonic() - before, 4),
                "step": self.seen.last_step,
                "in_force": [{**entry.model_dump(), "profile": entry.profile.name} for entry in in_force],
                "changed_hooks": [hook.name for hook in replaced],
            },
        )

    def _finish(self) -> None:
        """The last counters, and whether what was asked was still there and ever came."""
        self.seen.damaged_lines = self.ranks.damaged_lines
        try:
            self.seen.lapses += self.network.not_in_force()
            wrong = self.network.star.offloads_wrong()
            self._take_counters(self.network.rules, self.network.current_counters())
        except Exception as error:  # noqa: BLE001 - a port that is gone has no counters; say so and keep the rest
            self.seen.lapses.append(f"the network can't be read any more ({error})")
            return
        if wrong:
            self.seen.lapses.append(f"offloads were switched during the run: {', '.join(wrong[:4])}")
        for number, entry in enumerate(self.experiment.impair):
            if number not in self._ever:
                text = f"impair.{number} ({entry.profile.name}) was never in force: the workload ended before its time"
                self.seen.never.append(text)

    def _take_counters(self, rules: Rules, counters: dict[Hook, Counters]) -> None:
        for hook, here in rules.items():
            for label, count in counters[hook].items():
                rule = next((rule for rule in here if rule.label == label), None)
                self.seen.segments.append(Segment(hook=hook, rule=rule, counters=count))
        self.store.append("counters.jsonl", {"time_s": time.time(), "hooks": counters_as_json(counters)})


def _cpu_times() -> tuple[int, int]:
    """(all, idle) ticks of all cores; time stolen by a hypervisor counts as busy."""
    fields = [int(f) for f in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]]
    return sum(fields[:8]), fields[3] + fields[4]
