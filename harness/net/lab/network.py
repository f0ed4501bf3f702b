"""Machines of a lab as a network that a run can stand on: every machine keeps its own half of it (half.py), and here
their reports are put together."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lossbench.errors import LossbenchError, NotAbleError, RunError, VanishedError
from lossbench.net import network
from lossbench.net.conservation import Between, leaks
from lossbench.net.counters import Fabric, HeldByRule, HookCounters, LinkCounts, ReadBack, Reading
from lossbench.net.host.place import Place
from lossbench.net.impair import registry
from lossbench.net.lab.half import REPORT, Report
from lossbench.net.lab.orders import Channels
from lossbench.net.nic.request import DIRECTION, RULES, BySide
from lossbench.net.tc.hook import Side
from lossbench.net.tc.shaping import ClassState
from lossbench.processes import inherited
from lossbench.spec.experiment import Direction, Experiment
from lossbench.spec.lab import Switch
from lossbench.spec.placement import Hook, Rules

SWITCH_S, SWITCH_STEP_S = 10.0, 0.5  # for the user's own command that asks the switch
BUILD_S = 180.0
LONGEST_S = 7 * 86400.0  # where no limit is set: rules on machines never stand without an end
BEYOND_S = 900.0  # a run takes longer than its workload
SIDE: dict[Direction, Side] = {direction: side for side, direction in DIRECTION.items()}
Reports = dict[int, Report]


class LabNetwork:
    """See net.network.Network. A look is a report of every machine."""

    genuine = True
    keeps_time = False  # machines have clocks of their own

    def __init__(
        self,
        *,
        machines: Channels,
        experiment: Experiment,
        backend: str,
        places: Callable[[str], Place],
        spared: tuple[int, ...] = (),
        these_nics: bool = False,
    ) -> None:
        self.experiment, self.backend, self.machines = experiment, backend, machines
        self.begins_good = registry.find(backend).begins_good
        self.rules: Rules = {}
        self._places, self._spared, self._these_nics = places, spared, these_nics
        self._expected: Rules = {}
        self._built = False
        self._changes: list[str] = []

    # --- making ----------------------------------------------------------------------------------------------------

    def build(self, *, before_making: Callable[[str, str], None]) -> None:
        """Machines and links stand already; what is put on them is in their own journals."""
        del before_making

    def cut_to_mtu(self) -> None:
        """The detour does, on its way to the rules."""

    def shape(self) -> None:
        """Links have the rate that they have; the ground refuses others."""

    def links_as_json(self) -> dict[str, Any]:
        return {f"h{rank}": one.model_dump() for rank, one in enumerate(self.experiment.topology.machines)}

    def expect(self, rules: Rules) -> None:
        self._expected = rules

    def put(self, rules: Rules) -> list[Hook]:
        if not self._built:
            self._build(rules)
            return list(rules)
        changed = {hook for hook, here in rules.items() if self.rules.get(hook) != here}
        ranks = {hook.rank for hook in changed}
        self.machines.all(lambda c: c.ask("network.put", rules=_dumped(rules, c.rank)) if c.rank in ranks else None)
        self.rules.update(rules)
        return [hook for hook in rules if hook in changed]

    def _build(self, rules: Rules) -> None:
        topology, workload = self.experiment.topology, self.experiment.workload
        downlinks = any(hook.direction == "downlink" for hook in rules)
        self.machines.all(
            lambda c: c.ask(
                "network.build",
                timeout_s=BUILD_S,
                interface=c.machine.interface,
                rank=c.rank,
                rules=_dumped(rules, c.rank, downlinks=downlinks),
                later=_dumped(self._expected, c.rank),
                counted=[] if downlinks else ["ingress"],
                traffic={
                    "peers": [one.address for one in topology.machines if one.address != c.machine.address],
                    "own": [c.machine.address],
                },
                past_rdma=c.machine.past_rdma,
                spared=list(self._spared),
                backend=self.backend,
                for_s=min(workload.limit_s(), LONGEST_S) + BEYOND_S,
                this_nic=self._these_nics,
            )
        )
        self._built = True
        self.rules = dict(rules)

    def restart(self) -> None:
        self.machines.all(lambda c: c.ask("network.restart"))

    def begin(self, at_s: float) -> None:
        """Nothing here counts from there."""

    def place(self, host: str) -> Place:
        return self._places(host)

    # --- reading ---------------------------------------------------------------------------------------------------

    def look(self, *, sockets: bool = True) -> Reports:
        found = self.machines.all(lambda c: REPORT.validate_python(c.ask("network.report", sockets=sockets)))
        for rank, report in found.items():
            self._changes += [f"h{rank}: {text}" for text in report.changes]
        return found

    def read(self, *, look: Reports | None = None, sockets: bool = False) -> Reading:
        found = self._read(look=look, sockets=sockets)
        return self._asked_the_switch(found) if sockets else found

    def _asked_the_switch(self, found: Reading) -> Reading:
        assert found.fabric is not None
        return replace(found, fabric=replace(found.fabric, switch=asked(self.machines.lab.switch)))

    def _read(self, *, look: Reports | None = None, sockets: bool = False) -> Reading:
        """Without asking the switch."""
        reports = look or self.look(sockets=sockets)
        cards = {
            f"h{rank}'s {self._interface(rank)}, {name}": count
            for rank, report in reports.items()
            for name, count in report.card.items()
        }
        return Reading(
            time_s=time.monotonic(),
            links={rank: _link(report, sockets=sockets) for rank, report in reports.items()},
            hooks=_by_hook({rank: report.hooks for rank, report in reports.items()}),
            detours=_by_hook({rank: report.detours for rank, report in reports.items()}),
            fabric=Fabric(cards=cards, switch=None),
        )

    def _interface(self, rank: int) -> str:
        return self.experiment.topology.machines[rank].interface

    def settled(self, *, since: Reading | None = None) -> tuple[Reading, int]:
        """The switch may be slow to answer, and slow to count: it is asked once packets are still, and again only while
        what it says leaves some unaccounted for."""
        limit = time.monotonic() + SWITCH_S
        while True:
            found, moved = network.settled(self, since=since, read=self._read)
            found = self._asked_the_switch(found)
            whole = since is None or not leaks(Between(since, found))
            if whole or not self.machines.lab.switch.counters or time.monotonic() > limit:
                return found, moved
            time.sleep(SWITCH_STEP_S)

    def counters(self) -> HookCounters:
        return self.read().hooks

    def classes(self, look: Reports | None = None) -> dict[str, list[ClassState]]:
        del look
        return {}

    def read_back(self, look: Reports | None = None) -> dict[Hook, list[ReadBack]]:
        return _by_hook({rank: report.read_back for rank, report in (look or self.look()).items()})

    def control_sockets(self) -> list[str]:
        return []

    def hosts_wrong(self, *, some: bool = False) -> list[str]:
        """A machine's firewall, routes and programs are its own, and not judged (judge_fault.not_judged)."""
        del some
        return []

    def held(self) -> HeldByRule:
        return {}

    def longest_wait_s(self) -> float:
        return network.longest_wait_s(self.rules)

    # --- is it still as it was asked for? ----------------------------------------------------------------------------

    def listen(self) -> None:
        self.machines.all(lambda c: c.ask("network.listen"))
        self._changes.clear()

    def changes(self) -> list[str]:
        said, self._changes = self._changes, []
        return said

    def not_in_force(self, look: Reports | None = None) -> list[str]:
        reports = look or self.look()
        wrong = [f"h{rank}: {text}" for rank, report in reports.items() for text in report.wrong]
        return wrong + network.not_in_force(self.read_back(reports))

    def shaping_wrong(self, look: Reports | None = None) -> list[str]:
        del look
        return []

    def mtu_wrong(self, look: Reports) -> list[str]:
        asked = self.experiment.topology.mtu
        return [f"h{rank}: MTU {report.mtu}, not {asked}" for rank, report in look.items() if report.mtu != asked]

    def offloads_wrong(self) -> list[str]:
        return [f"h{rank} {text}" for rank, report in self.look().items() for text in report.offloads]

    def links_wrong(self, look: Reports) -> list[str]:
        return [f"h{rank}'s {self._interface(rank)}" for rank, report in look.items() if not report.up]

    # --- the end ---------------------------------------------------------------------------------------------------

    def end_programs(self) -> None:
        self.machines.all(lambda c: c.ask("ranks.end"))

    def close(self) -> None:
        """Every machine gives its half back; one that can't be reached does so by itself."""
        failed = [
            str(one)
            for one in self.machines.each(lambda c: c.ask("network.end")).values()
            if isinstance(one, LossbenchError) and not isinstance(one, VanishedError)
        ]
        if failed:
            raise RunError("; ".join(failed), next_step="lossbench lab revert; else each ends by itself")


def _dumped(rules: Rules, rank: int, *, downlinks: bool = False) -> Any:
    """One machine's, as JSON; its uplink always counts, its downlink if any has rules."""
    own: BySide = {SIDE[hook.direction]: here for hook, here in rules.items() if hook.rank == rank}
    if downlinks:
        own.setdefault("ingress", ())
    return RULES.dump_python(own, mode="json")


def _by_hook(found: dict[int, dict[Direction, Any]]) -> dict[Hook, Any]:
    """Uplinks first, as everywhere."""
    out = {Hook(rank=rank, direction=d): value for rank, here in found.items() for d, value in here.items()}
    return dict(sorted(out.items(), key=lambda one: (one[0].direction != "uplink", one[0].rank)))


def _link(report: Report, *, sockets: bool) -> LinkCounts:
    return report.link if sockets else LinkCounts(**{**vars(report.link), "sockets": None})


def asked(switch: Switch) -> dict[str, int] | None:
    """What the switch says it has lost, by port and queue; None without a command."""
    command = switch.counters
    if not command:
        return None
    name = command[0]
    try:
        keys: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, timeout=SWITCH_S, env=inherited(), cwd=switch.folder or None, **keys)
        if done.returncode:
            words = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
            raise NotAbleError(f"the switch can't be asked ({name}: {words[:200]})", next_step="see [switch] counters")
        found = json.loads(done.stdout)
        counted: Counter[str] = Counter()
        for one in found:  # it may name a queue twice: by reason, or by traffic class
            counted[f"port {one['port']} queue {one.get('queue', 0)}"] += int(one["drops"])
        return dict(counted)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAbleError(f"the switch can't be asked ({name}: {error})", next_step="see [switch] counters") from None
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        step = 'it must print JSON: [{"port": "1", "queue": 0, "drops": 12}, ...]'
        raise NotAbleError(f"what {name} says of the switch can't be read ({error!r})", next_step=step) from None
