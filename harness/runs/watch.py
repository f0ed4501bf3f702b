"""While the workload runs: the barrier, health, what is needed to judge timing. Faults come and go by schedule.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lossbench.errors import RunError, VanishedError
from lossbench.files import finite, known_as
from lossbench.net import conservation
from lossbench.net.conservation import Between
from lossbench.net.counters import Reading, counters_as_json
from lossbench.net.network import Network
from lossbench.net.tc.look import Look
from lossbench.net.tc.shaping import ClassState, lost_by_class, met_by_class
from lossbench.proof.judge_fault import went_around
from lossbench.proof.judge_windows import LEAST, opens_with_the_run
from lossbench.proof.watched import ROLE, Carried, Watched
from lossbench.results.measures import BESIDE
from lossbench.runs import interrupt
from lossbench.runs.ground import Gauge
from lossbench.runs.launch.conclude import conclusions
from lossbench.runs.launch.member import SAID_BY
from lossbench.runs.launch.ranks import Ranks
from lossbench.runs.schedule import Schedule

TICK_S = 0.02
SAMPLE_S = 0.25
READY_LIMIT_S = 120.0
LAUNCH_LIMIT_S = 300.0  # in which not one more of our own processes comes to the gate
LEAK_PACKETS = 4096  # fewer may be on their way between two counters while packets flow

ROW_OWN = ("kind", "rank", "time_s")
ROW_NAMES = ("shown", "doubted")  # lists of its numbers' names
ROW_WORDS = ("note", "path", "doubt")  # about a row, not numbers of it
LIVE = ("steps", "loss", "arrived_1", "arrived_2")  # of a rank's records, for the live view
Progress = Callable[[str | dict[str, Any]], None]  # a stage in words, or how the workload does just now


class Watch:
    """Ranks are started; `run` returns when they have ended. `before`: read when the network was quiet."""

    def __init__(
        self, *, network: Network, ranks: Ranks, gauge: Gauge, seed: int, before: Reading, progress: Progress
    ) -> None:
        self.experiment, self.store = ranks.experiment, ranks.store
        self.network, self.ranks = network, ranks
        self.progress = progress
        self.seen = Watched(before=before)
        self.schedule = Schedule(network=network, store=self.store, seed=seed, seen=self.seen, hear=self._hear)
        self._start = 0.0
        self._looked = 0.0
        self._load = gauge
        self._now: dict[str, Any] = {}
        self._classes_before: dict[str, list[ClassState]] = {}

    def run(self) -> Watched:
        try:
            self._wait_until_ready()
            self._classes_before = self.network.classes()
            self._load.begin()  # what starting up took is not the workload's
            self.schedule.keep(0.0)
            if self.schedule.opening_took_s > LEAST["s"] and any(map(opens_with_the_run, self.experiment.impair)):
                self.seen.early = self.network.counters()  # of where it came first
            self._start = time.monotonic()
            self.schedule.begin(self._start)
            self.seen.opened_s = self.ranks.open_gate() - self._start
            self.progress("8 workload runs")
            self._tell(0.0)  # a program may be through before it is looked at
            self._watch()
        except RunError as error:
            # What was measured until then is kept; the outcome column says what happened.
            self.seen.problem, self.seen.vanished = str(error), isinstance(error, VanishedError)
        self.seen.gone, self.seen.never_came = self.ranks.gone(), self.ranks.never_came()
        self._look_inside()
        self.ranks.stop(in_turn=not self.seen.problem)
        self._hear()  # what they said when they were told to end
        self.seen.damaged_lines = self.ranks.damaged_lines
        self.ranks.end()
        self._finish()
        if not self.seen.problem:
            self._take(list(conclusions(self.experiment, self.store.way)))
        return self.seen

    def _wait_until_ready(self) -> None:
        began = moved = time.monotonic()
        deadline, behind = began + min(READY_LIMIT_S, self.experiment.workload.limit_s()), -1
        while (missing := self.ranks.not_ready()) or self.ranks.not_at_gate():
            interrupt.check()
            self._hear()
            self.ranks.check_alive()
            if self.ranks.ended_early() and self.ranks.not_ready():
                raise RunError("a rank ended before it said ready (workload.barrier = false if it never does)")
            late, now = self.ranks.not_at_gate(), time.monotonic()
            moved, behind = (moved, behind) if len(late) == behind else (now, len(late))
            if late and now > moved + LAUNCH_LIMIT_S:
                raise RunError(f"{', '.join(late)} could not be launched in {LAUNCH_LIMIT_S:g} s: is the machine busy?")
            if missing and now > deadline:
                raise RunError(
                    f"{', '.join(missing)} did not say ready in time (workload.barrier = false if they never do)"
                    f"{self.ranks.stuck(missing)}"
                )
            time.sleep(TICK_S)

    def _watch(self) -> None:
        limit, next_sample, took_s = self.experiment.workload.limit_s(), 0.0, 0.0
        while True:
            interrupt.check()
            running = self.ranks.running()
            self._hear()
            elapsed = self.seen.duration_s = time.monotonic() - self._start
            self.ranks.check_alive()
            if not running:
                return self._count(elapsed) if elapsed >= next_sample else None  # who stood still as they ended
            if elapsed > limit:
                key = "workload.time_limit_s"
                key = f"--time-limit; in a file {key}" if self.experiment.workload.command else key
                text = f"the workload ran past its limit of {limit:g} s ({key})"
                raise RunError(text + self.ranks.stuck(running))
            self.schedule.keep(elapsed)
            self.ranks.come_and_go(elapsed)
            if elapsed >= next_sample and self.schedule.nap_s(SAMPLE_S) >= min(took_s, SAMPLE_S):
                next_sample = elapsed + SAMPLE_S
                self._sample(elapsed)
                took_s = time.monotonic() - self._start - elapsed  # whatever is due sooner than that comes first
            nap_s, before = self.schedule.nap_s(TICK_S), time.monotonic()
            time.sleep(nap_s)
            self.seen.quiet.late_ms.append((time.monotonic() - before - nap_s) * 1000)

    def _sample(self, elapsed: float) -> None:
        self._count(elapsed)
        self._tell(elapsed)
        if self.network.genuine:
            self._look(elapsed)

    def _count(self, elapsed: float) -> None:
        """From look to look, with what the one before took: who stands still may do so in the middle of one."""
        self._load.sample()
        if self.network.genuine:
            self.seen.quiet.longest_gap_s = max(self.seen.quiet.longest_gap_s, elapsed - self._looked)
            self._looked = elapsed

    def _tell(self, elapsed: float) -> None:
        now = {"elapsed_s": elapsed, "last_step": self.seen.last_step, **self._now}
        log = known_as(self.store.log_path("rank-0"))
        self.progress({**now, "network": self._network_now, "log": log})

    def _look(self, elapsed: float) -> None:
        """Is everything still there, has every packet met its rule, what have the links carried?"""
        began = time.monotonic() - self._start
        look = self.network.look()
        gone = self.network.links_wrong(look)
        if gone:
            raise RunError(f"links went away during the run: {', '.join(gone)}")
        reading = self.network.read(look=look)
        self._carried(reading, began)
        self.seen.lapsed(self.network.changes() + self.network.not_in_force(look))
        self.seen.lapsed(self.network.shaping_wrong(look) + self.network.hosts_wrong(some=True))
        self.schedule.looked(elapsed)
        between = Between(self.seen.before, reading)
        for leak in conservation.leaks(between):
            if "past the rules" in leak.place and abs(leak.missing) > LEAK_PACKETS:
                self.seen.noticed.setdefault(leak.place, round(elapsed, 1))
        if self.experiment.shaping.classes:
            self._store_backlog(look, elapsed)
        self._look_around(between)

    def _look_around(self, between: Between) -> None:
        """Who talks past the fault? What TCP has closed is still to be seen for a minute."""
        if went_around(self.experiment, self.seen, between):
            self.seen.around += [one for one in self.network.control_sockets() if one not in self.seen.around]

    def _look_inside(self) -> None:
        """Every host, as long as its programs live: what they hold by a descriptor ends with them."""
        try:
            self.seen.lapsed(self.network.hosts_wrong())
        except Exception as error:  # noqa: BLE001 - whatever a program did to its host
            self.seen.lapses.append(f"hosts can't be looked into any more ({error})")

    def _carried(self, reading: Reading, began: float) -> None:
        links, ended = reading.links.items(), time.monotonic() - self._start
        up, down = {r: c.entered_bytes for r, c in links}, {r: c.left_bytes for r, c in links}
        self.seen.carried.append(Carried(from_s=began, to_s=ended, up=up, down=down))

    def _store_backlog(self, look: Look, elapsed: float) -> None:
        classes = self.network.classes(look)
        backlog = {link: {c.name: c.backlog_bytes for c in states} for link, states in classes.items()}
        now = {"elapsed_s": round(elapsed, 3), "backlog_bytes": backlog, "dropped": lost_by_class(classes)}
        self.store.append("queues.jsonl", now)

    def _hear(self) -> None:
        self._take(self.ranks.read())

    def _take(self, records: list[tuple[str, dict[str, Any]]]) -> None:
        for role, one in records:
            try:
                record = finite(one, lambda name: self.seen.not_numbers.setdefault(name, True))
            except RecursionError:
                self.ranks.damaged_lines += 1
                continue
            kind = record.get("kind")
            units, said_by = record.pop("units", None), self._said_by(role, record.pop(SAID_BY, None))
            if isinstance(units, dict):
                self.seen.units |= {named(role, str(name)): str(unit) for name, unit in units.items()}
            if kind == "doubt":
                about = self.seen.of_load if record.get("load") is True else self.seen.doubts.setdefault(role, [])
                about.append(str(record.get("text", "no reason given")))
            elif kind == "traffic":
                self._take_traffic(role, record, said_by)
            elif kind == "control" and isinstance(record.get("sent_bytes"), int):
                self.seen.control[role, record["rank"], str(said_by)] = record["sent_bytes"]
            if role:
                self._take_beside(role, kind, record, said_by)
                continue
            if kind in ("begin", "step"):
                self._now |= {name: record[name] for name in LIVE if name in record}
            if kind == "step" and isinstance(record.get("step"), int):
                self.schedule.stepped(record)
            elif kind == "program":
                self.seen.programs.append(record)
            elif kind == "summary":
                self.seen.summed_up(role, record["rank"], said_by, {**record, "rank": _rank(record, said_by)})
            elif kind == "row":
                self.seen.rows.append({key: value for key, value in record.items() if key not in ROW_OWN})
            elif kind == "error":
                self.seen.errors.append(f"rank {record['rank']}: {record.get('message', 'error')}")

    def _said_by(self, role: str, said_by: Any) -> Any:
        """Under torchrun the ranks of a host share its file, and name themselves; elsewhere a file is one rank's."""
        beside = {one.role: one.torchrun for one in self.experiment.beside}
        return said_by if (beside.get(role, 0) if role else self.experiment.workload.torchrun) > 1 else None

    def _take_beside(self, role: str, kind: Any, record: dict[str, Any], said_by: Any) -> None:
        """Of a program beside the workload: its numbers are called by its role."""
        about = (*ROW_OWN, *ROW_NAMES, *ROW_WORDS)
        own = {named(role, key): value for key, value in record.items() if key not in about}
        if kind == "summary":
            self.seen.summed_up(role, record["rank"], said_by, {**own, "rank": _rank(record, said_by), ROLE: role})
        elif kind == "row":
            names = {key: [named(role, str(one)) for one in record[key]] for key in ROW_NAMES if record.get(key)}
            words = {key: value for key, value in record.items() if key in ROW_WORDS}
            self.seen.rows.append({**own, **words, **names, BESIDE: role})
        elif kind == "error":
            self.seen.errors.append(f"{role} {record['rank']}: {record.get('message', 'error')}")

    def _network_now(self) -> tuple[int, int]:
        """Packets that met a rule, and those dropped, since the run began."""
        here = [c for counters in self.network.counters().values() for c in counters.values()]
        return sum(c.seen for c in here), sum(c.dropped for c in here)

    def _take_traffic(self, role: str, record: dict[str, Any], said_by: Any) -> None:
        columns = (record.get("sent"), record.get("received"))
        if all(isinstance(c, list) and all(isinstance(n, int) and n >= 0 for n in c) for c in columns):
            self.seen.traffic.setdefault(role, {})[_rank(record, said_by)] = record
        else:
            self.seen.errors.append(f"{role or 'rank'} {record['rank']}: a traffic record without lists of counts")

    def _finish(self) -> None:
        """The last counters, and whether what was asked was still there and ever came."""
        seen = self.seen
        self._load.into(seen.quiet)
        self.schedule.end()
        if not self.network.genuine:
            return
        try:
            look = self.network.look()
            gone = self.network.links_wrong(look)
            if gone:
                seen.lapses.append(f"the network can't be read any more: {', '.join(gone)} went away")
                return
            self.network.end_programs()
            seen.after, seen.moving = self.network.settled(since=seen.before)
            self._carried(seen.after, time.monotonic() - self._start)
            self._look_around(Between(seen.before, seen.after))
            self.seen.lapsed(self.network.changes() + self.network.not_in_force(look))
            self.seen.lapsed(self.network.shaping_wrong() + self.network.mtu_wrong(look) + self.network.hosts_wrong())
            seen.held = self.network.held()
            before, after = self._classes_before, self.network.classes()
            seen.classes, seen.came = (_grown(by(before), by(after)) for by in (lost_by_class, met_by_class))
            wrong = self.network.offloads_wrong()
        except Exception as error:  # noqa: BLE001 - a port that is gone has no counters; say so and keep the rest
            seen.lapses.append(f"the network can't be read any more ({error})")
            return
        if wrong:
            seen.lapses.append(f"offloads were switched during the run: {', '.join(wrong[:4])}")
        self.store.append("counters.jsonl", {"time_s": time.time(), "hooks": counters_as_json(seen.after.hooks)})


def _grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items()}


def named(role: str, name: str) -> str:
    """A number of a program beside the workload."""
    return f"{role}.{name}" if role else name


def _rank(record: dict[str, Any], said_by: Any) -> int:
    return said_by if isinstance(said_by, int) else int(record["rank"])
