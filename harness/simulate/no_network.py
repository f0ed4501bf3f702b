"""No network at all: loss is drawn by the workload itself, from the same profiles. Never *valid*.

Answers every question a run asks its network, so that it takes the same nine steps; its proof says that nothing was
proven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lossbench.net.counters import HeldByRule, HookCounters, ReadBack, Reading
from lossbench.net.host.place import Here, Place
from lossbench.net.tc.look import Look
from lossbench.net.tc.shaping import ClassState
from lossbench.proof.evidence import Proof
from lossbench.proof.verdict import Finding, Judgement, Status
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import Hook, Rules

NOT_PROVEN = "simulated by the workload: no network lost anything, nothing is proven"


def not_proven() -> Proof:
    return Proof(rows=(), judgement=Judgement(findings=(Finding(status=Status.UNKNOWN, text=NOT_PROVEN),)))


class NoNetwork:
    """See net.network.Network; nobody looks at what is not genuine."""

    genuine = False
    begins_good = False
    keeps_time = False

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.rules = experiment, Rules()

    def build(self, *, before_making: Callable[[str, str], None]) -> None:
        del before_making

    def cut_to_mtu(self) -> None: ...

    def links_as_json(self) -> dict[str, Any]:
        return {}

    def shape(self) -> None: ...

    def expect(self, rules: Rules) -> None: ...

    def put(self, rules: Rules) -> list[Hook]:
        del rules
        return []

    def restart(self) -> None: ...

    def begin(self, at_s: float) -> None: ...

    def place(self, host: str) -> Place:
        return Here(host)

    def look(self) -> Look:
        raise AssertionError("there is nothing to look at")

    def read(self, *, look: Look | None = None, sockets: bool = False) -> Reading:
        del look, sockets
        return Reading()

    def settled(self, *, since: Reading | None = None) -> tuple[Reading, int]:
        del since
        return Reading(), 0

    def counters(self) -> HookCounters:
        return {}

    def classes(self, look: Look | None = None) -> dict[str, list[ClassState]]:
        del look
        return {}

    def read_back(self, look: Look | None = None) -> dict[Hook, list[ReadBack]]:
        del look
        return {}

    def control_sockets(self) -> list[str]:
        return []

    def held(self) -> HeldByRule:
        return {}

    def longest_wait_s(self) -> float:
        return 0.0

    def listen(self) -> None: ...

    def changes(self) -> list[str]:
        return []

    def not_in_force(self, look: Look | None = None) -> list[str]:
        del look
        return []

    shaping_wrong = not_in_force

    def mtu_wrong(self, look: Look) -> list[str]:
        del look
        return []

    links_wrong = mtu_wrong
    offloads_wrong = changes

    def hosts_wrong(self, *, some: bool = False) -> list[str]:
        del some
        return []

    def end_programs(self) -> None: ...

    def close(self) -> None: ...
