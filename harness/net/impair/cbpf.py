"""Backend cbpf: classic BPF in a direct-action filter. Needs no bpf(2), so it works without privileges in a user
namespace. Independent loss only, no seed; the counters are the port's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pyroute2 import IPRoute

from lossbench.net.bpf.classic import program, too_long
from lossbench.net.counters import TOTAL, Counters, Detour, ReadBack, RuleCounters, added
from lossbench.net.host.place import Place
from lossbench.net.impair.backend import Kind
from lossbench.net.kernel import Kernel
from lossbench.net.tc.hook import HookPoint, Side, ensure_clsact, filters_at, put_filter, totals
from lossbench.net.tc.look import Look
from lossbench.net.tc.oversize import count_oversize, is_counter, oversize
from lossbench.net.tc.rtnl import Reader
from lossbench.spec.losses import IidLoss
from lossbench.spec.lossmodel import ONE, threshold
from lossbench.spec.placement import Hook, Rule
from lossbench.spec.profile import Profile


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


def too_many(rules: tuple[Rule, ...]) -> str | None:
    """What of these rules of one hook the kernel would refuse; None if it takes them."""
    return too_long(program(rules))


OTHER: dict[Side, Side] = {"ingress": "egress", "egress": "ingress"}
_program = lru_cache(maxsize=1024)(program)  # compared four times a second at every hook


class CbpfBackend:
    """See backend.Backend."""

    name = "cbpf"

    def __init__(
        self, switch: IPRoute, *, place: Place, state: dict[str, Any] | None = None, rules: Any = None
    ) -> None:
        self._switch = switch
        self._place = place
        self._reader: Reader | None = None
        self._rules: dict[Hook, tuple[Rule, ...]] = dict(rules or {})
        self._start: dict[Hook, tuple[int, int, int]] = {}
        self._past: dict[Hook, Counters] = {}
        for hook, start in (state or {}).items():
            self._start[Hook.named(hook)] = (start[0], start[1], start[2])

    def expect(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        """Nothing is kept from rule to rule."""

    def put(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        self.put_many([(point, rules)])

    def put_many(self, changes: Sequence[tuple[HookPoint, tuple[Rule, ...]]]) -> None:
        """See backend.PutsMany: the switch is looked at before and after all of them, not around each."""
        known = [(point, rules) for point, rules in changes if point.hook in self._rules]
        for point, _ in changes:
            ensure_clsact(self._switch, point.port_index)  # somebody may have taken it away
            if point.hook not in self._rules:
                count_oversize(self._switch, point)
        look = self._look() if known else None
        early = {point.hook: self._since(point, look) for point, _ in known if look is not None}
        for point, rules in changes:
            put_filter(self._switch, point, prio=2, ops=program(rules), direct_action=True)
        look = self._look()
        for point, _ in known:
            # What came between may have met the old program or the new one.
            late, shared = self._since(point, look), self._both(point.hook)
            final = {label: replace(c, shared=shared or late != early[point.hook]) for label, c in late.items()}
            self._past[point.hook] = added(self._past.get(point.hook, {}), final)
        joined = {point.hook.rank: point for point, _ in changes if point.hook not in self._rules}
        self._rules |= {point.hook: rules for point, rules in changes}
        begun = {point.hook: point for point, _ in changes}
        for hook in self._rules:
            # A direction that joins changes how the port's counters are told apart; the other may stand since before
            # this process.
            if hook.rank in joined and hook not in begun:
                begun[hook] = replace(joined[hook.rank], hook=hook, side=OTHER[joined[hook.rank].side])
        for point in begun.values():
            self._begin(point, look)

    def _look(self) -> Look:
        self._reader = self._reader or Reader(self._place)
        return Look.now(self._reader)

    def _begin(self, point: HookPoint, look: Look) -> None:
        over = oversize(filters_at(point, look), point)
        self._start[point.hook] = (*totals(point, look, both_directions=self._both(point.hook)), over)

    def restart(self, point: HookPoint) -> None:
        self._past.pop(point.hook, None)
        self._begin(point, self._look())

    def read_back(self, point: HookPoint, look: Look) -> list[ReadBack]:
        """Classic programs are dumped whole: compare instruction by instruction."""
        rules = self._rules[point.hook]
        filters = filters_at(point, look)
        others = [one for one in filters if not is_counter(one, point)]
        attached, wanted = any(one.priority == 2 for one in others), _program(rules)
        equal = any(one.instructions == wanted for one in others)
        foreign = sum(one.instructions != wanted for one in others)
        asked = {rule.label: threshold(rule.profile.mean_loss()) / ONE for rule in rules} or {TOTAL: 0.0}
        return [
            ReadBack(rule=name, attached=attached, equal=equal, mean_loss=loss if equal else None, foreign=foreign)
            for name, loss in asked.items()
        ]

    def _both(self, hook: Hook) -> bool:
        return {h.direction for h in self._rules if h.rank == hook.rank} == {"uplink", "downlink"}

    def counters(self, point: HookPoint, look: Look) -> Counters:
        return added(self._past.get(point.hook, {}), self._since(point, look))

    def _since(self, point: HookPoint, look: Look) -> Counters:
        """The port's counters can't tell rules apart: under a rule's label only if it takes every packet."""
        seen, dropped = totals(point, look, both_directions=self._both(point.hook))
        start, rules = self._start[point.hook], self._rules[point.hook]
        label = rules[0].label if len(rules) == 1 and rules[0].takes_all() else TOTAL
        over = oversize(filters_at(point, look), point) - start[2]
        return {label: RuleCounters(seen=seen - start[0], dropped=dropped - start[1], super_packets=over)}

    def detours(self, point: HookPoint, look: Look, counters: Counters) -> tuple[Detour, ...]:
        del point, look, counters
        return ()

    def state(self) -> dict[str, Any]:
        return {hook.name: list(start) for hook, start in self._start.items()}

    def close(self) -> None:
        """The program lives as long as the port."""
        if self._reader is not None:
            self._reader.close()


KIND = Kind(
    name="cbpf",
    make=CbpfBackend,
    refusal=refusal,
    too_many=too_many,
    lacking=Kernel.no_detour,
    advice="needs a kernel with cls_bpf",
)
