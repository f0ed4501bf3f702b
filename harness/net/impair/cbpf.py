"""Backend cbpf: classic BPF in a direct-action filter. Needs no bpf(2), so it works without privileges in a user
namespace. Independent loss only, no seed; the counters are the port's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyroute2 import IPRoute

from harness.lossmodel import ONE, threshold
from harness.net.impair.base import TOTAL, Counters, HookPoint, RuleCounters
from harness.net.impair.cbpf_program import program
from harness.net.impair.clsact import PARENT, ensure_clsact, filters_of, totals
from harness.net.impair.oversize import OversizeCounter
from harness.placement import Hook, Rule
from harness.profile import IidLoss, Profile


def refusal(profile: Profile) -> str | None:
    """What this backend can't do of a profile, in words; None if it can do all."""
    for present, what in (
        (profile.loss is not None and not isinstance(profile.loss, IidLoss), "loss other than iid"),
        (getattr(profile.loss, "correlation_percent", 0.0) > 0, "correlated loss"),
        (profile.delay is not None, "delay"),
        (profile.rate_mbit is not None, "a profile's own rate (a topology's rate_mbit works)"),
        (profile.slot is not None, "slot"),
        (profile.ecn, "ecn"),
        (profile.duplicate_percent > 0, "duplicates"),
        (profile.corrupt_percent > 0, "corruption"),
        (profile.match.datagram is not None, "matching our datagram header"),
        (profile.seed is not None, "a seed"),
    ):
        if present:
            return what
    return None


class CbpfBackend:
    """See base.Backend."""

    name = "cbpf"

    def __init__(
        self, switch: IPRoute, *, namespace: str, state: dict[str, Any] | None = None, rules: Any = None
    ) -> None:
        self._switch = switch
        self._namespace = namespace
        self._oversize = OversizeCounter(switch)
        self._rules: dict[Hook, tuple[Rule, ...]] = dict(rules or {})
        self._start: dict[Hook, tuple[int, int, int]] = {}
        for hook, start in (state or {}).items():
            self._start[Hook.named(hook)] = (start[0], start[1], start[2])

    def put(self, point: HookPoint, rules: tuple[Rule, ...]) -> Counters:
        ensure_clsact(self._switch, point.port_index)
        known = point.hook in self._rules
        if not known:
            self._oversize.put(point)
        self._switch.tc(
            "replace-filter", "bpf", point.port_index, handle=1, parent=PARENT[point.hook.direction],
            prio=2, ops=program(rules), direct_action=True,
        )  # fmt: skip
        final = self.counters(point) if known else {}
        self._rules[point.hook] = rules
        mine = [hook for hook in self._rules if hook.rank == point.hook.rank] if not known else [point.hook]
        for hook in mine:  # a direction that joins changes how the port's counters are told apart
            place = replace(point, hook=hook)
            self._start[hook] = (*self._totals(place), self._oversize.count(place))
        return final

    def read_back(self, point: HookPoint) -> list[dict[str, Any]]:
        """Classic programs are dumped whole: compare instruction by instruction."""
        rules = self._rules[point.hook]
        dumped = [f.get("TCA_BPF_OPS") for f in filters_of(self._switch, point.port_index, point.hook.direction)]
        equal = program(rules) in [bytes(d) for d in dumped if d is not None]
        return [
            {"rule": rule.label, "attached": bool(dumped), "equal": equal,
             "mean_loss": threshold(rule.profile.mean_loss()) / ONE if equal else None}
            for rule in rules
        ] or [{"rule": TOTAL, "attached": bool(dumped), "equal": equal, "mean_loss": 0.0}]  # fmt: skip

    def _both(self, hook: Hook) -> bool:
        return {h.direction for h in self._rules if h.rank == hook.rank} == {"uplink", "downlink"}

    def _totals(self, point: HookPoint) -> tuple[int, int]:
        both = self._both(point.hook)
        return totals(self._switch, point.port_index, both_directions=both)[point.hook.direction]

    def counters(self, point: HookPoint) -> Counters:
        """The port's counters can't tell rules apart: under a rule's label only if it takes every packet."""
        seen, dropped = self._totals(point)
        start = self._start[point.hook]
        rules = self._rules[point.hook]
        label = rules[0].label if len(rules) == 1 and rules[0].takes_all() else TOTAL
        return {
            label: RuleCounters(
                seen=seen - start[0],
                dropped=dropped - start[1],
                super_packets=self._oversize.count(point) - start[2],
                shared=self._both(point.hook),
            )
        }

    def state(self) -> dict[str, Any]:
        return {hook.name: list(start) for hook, start in self._start.items()}

    def close(self) -> None:
        """Nothing is held: the program lives as long as the port."""
