"""Backend netem: behind the same hook as the others, an IFB with a netem qdisc per rule.

At the switch port's clsact a classic BPF filter redirects a rule's packets to the IFB; there they are already cut to
the MTU, and nothing is reported back to the sender. The kernel feeds them back where they came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from lossbench.net.bpf.classic import classifier, too_long
from lossbench.net.counters import UNMATCHED, Counters, Detour, ReadBack, RuleCounters, added
from lossbench.net.host.place import Place
from lossbench.net.impair.backend import Kind
from lossbench.net.impair.netem.options import decoded, differences, mean_loss_of, options_of, refusal
from lossbench.net.tc import kinds
from lossbench.net.tc.hook import HookPoint, aside, ensure_clsact, filters_at, put_filter, remove_filter
from lossbench.net.tc.look import Look
from lossbench.net.tc.oversize import count_oversize, is_counter, oversize
from lossbench.net.tc.rtnl import Reader
from lossbench.net.tc.rtnl_messages import Filter
from lossbench.spec.placement import Hook, Rule
from lossbench.spec.profile import Match

FIRST_PRIO = 2
REST_PRIO = 0x7000  # behind every rule
REST = "rest"  # beside the places of rules, which all begin with a number
Raw = tuple[int, int, int]


def too_many(rules: tuple[Rule, ...]) -> str | None:
    """What of these rules of one hook the kernel would refuse; None if it takes them."""
    if len(rules) > REST_PRIO - FIRST_PRIO:
        return f"{len(rules)} rules at one hook ({REST_PRIO - FIRST_PRIO} is the most)"
    return next((why for rule in rules if (why := too_long(classifier(rule.match))) is not None), None)


class NetemBackend:
    """See backend.Backend. Every entry of the experiment has an IFB of its own at a hook, in force or not: what waits
    in one still leaves, and a rule that comes back finds its channel where it left it."""

    name = "netem"
    device_kind = "ifb"
    let_pass = "ok"  # what happens to packets that no rule takes
    count_super_packets = staticmethod(count_oversize)

    def __init__(
        self, switch: IPRoute, *, place: Place, state: dict[str, Any] | None = None, rules: Any = None
    ) -> None:
        self._switch = switch
        self._place = place
        self._reader: Reader | None = None
        self._rules: dict[Hook, tuple[Rule, ...]] = dict(rules or {})  # in force
        self._slots: dict[Hook, dict[str, int]] = {}  # a rule's place -> the number of its device
        self._holds: dict[Hook, dict[str, Rule]] = {}  # a rule's place -> the rule that its device holds
        self._start: dict[Hook, dict[str, Raw]] = {}  # by the rule's place; counted when its rule began
        self._redirected: dict[Hook, dict[str, int]] = {}  # counted by filters that are gone
        self._past: dict[Hook, Counters] = {}
        self._tables: set[int] = set()  # devices whose qdisc holds a delay table
        for name, saved in (state or {}).items():
            self._attach(Hook.named(name), saved)

    def _attach(self, hook: Hook, saved: dict[str, Any]) -> None:
        """To what another process put in force."""
        self._slots[hook] = saved["slots"]
        self._start[hook] = {place: (raw[0], raw[1], raw[2]) for place, raw in saved["start"].items()}
        self._holds[hook] = {rule.place: rule for rule in self._rules[hook]}
        for rule in self._rules[hook]:
            if "distribution" in options_of(rule):
                self._tables |= set(self._switch.link_lookup(ifname=self._device_name(hook, rule)))

    def _device_name(self, hook: Hook, rule: Rule) -> str:
        return f"i{hook.rank}{hook.direction[0]}{self._slots[hook][rule.place]}"

    def expect(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        """Their channels stand before the first packet."""
        ensure_clsact(self._switch, point.port_index)
        for rule in rules:
            self._prepare(point, rule)

    def put(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        ensure_clsact(self._switch, point.port_index)
        known, before = point.hook in self._rules, self._rules.get(point.hook, ())
        if not known:
            self.count_super_packets(self._switch, point)
        for rule in rules:
            self._prepare(point, rule)
        changed = [
            number
            for number, (old, new) in enumerate(zip_longest(before, rules))
            if old is None or new is None or (old.match, old.place) != (new.match, new.place)
        ]
        self._keep_redirected(point, [before[number] for number in changed if number < len(before)])
        for number in changed:
            if number < len(rules):
                self._redirect(point, number, rules[number])
        for number in range(len(rules), len(before)):
            remove_filter(self._switch, point, prio=FIRST_PRIO + number)
        self._rules[point.hook] = rules
        if not known:
            self._count_the_rest(point)
            self._begin_rest(point)

    def _keep_redirected(self, point: HookPoint, rules: list[Rule]) -> None:
        """A filter that is replaced takes its counter with it."""
        look = self._look() if rules else None
        for rule in rules:
            kept = self._redirected.setdefault(point.hook, {})
            kept[rule.place] = self._raw(point, rule, look)[0]

    def _prepare(self, point: HookPoint, rule: Rule) -> None:
        """The rule's device with its qdisc; a rule that it holds already is left alone."""
        slots = self._slots.setdefault(point.hook, {})
        slots.setdefault(rule.place, len(slots))
        holds, start = self._holds.setdefault(point.hook, {}), self._start.setdefault(point.hook, {})
        if holds.get(rule.place) == rule:
            return
        old = holds.get(rule.place)
        device = self._device(point, rule)
        early = self._raw(point, old) if old is not None else None
        made_anew = self._put_netem(device, rule)
        if old is not None and early is not None:
            # A change in place keeps counting: what was counted until after it is the old rule's.
            final = self._counted_since(old, early if made_anew else self._raw(point, old), start[rule.place])
            self._past[point.hook] = added(self._past.get(point.hook, {}), {old.label: final})
        holds[rule.place] = rule
        start[rule.place] = self._raw(point, rule)

    def _redirect(self, point: HookPoint, number: int, rule: Rule) -> None:
        target = self._device(point, rule)
        put_filter(self._switch, point, prio=FIRST_PRIO + number, ops=classifier(rule.match), action=aside(target))

    def _count_the_rest(self, point: HookPoint) -> None:
        """Behind all rules: what none of them took is counted by an action that lets it pass."""
        action = {"kind": "gact", "action": self.let_pass}
        try:
            put_filter(self._switch, point, prio=REST_PRIO, ops=classifier(Match()), action=action)
        except NetlinkError:  # no act_gact here: what no rule takes is not counted then
            return

    def _device(self, point: HookPoint, rule: Rule) -> int:
        """Made once, kept."""
        name = self._device_name(point.hook, rule)
        found = self._switch.link_lookup(ifname=name)
        if not found:
            self._switch.link("add", ifname=name, kind="ifb", mtu=max(point.mtu, 1500))
            found = self._switch.link_lookup(ifname=name)
            self._switch.link("set", index=found[0], state="up")
        return int(found[0])

    def _put_netem(self, device: int, rule: Rule) -> bool:
        """In place. Only a delay table can't be taken back: then the qdisc is made anew, and True is returned."""
        options = options_of(rule)
        remake = device in self._tables and "distribution" not in options
        if remake:
            self._switch.tc("del", index=device, parent=kinds.TC_H_ROOT)
            self._tables.discard(device)
        try:
            self._switch.tc("replace", "netem", device, 0x10000, parent=kinds.TC_H_ROOT, netem=options)
        except NetlinkError as error:
            raise OSError(error.code, f"netem refused {rule.label}: {error}") from None
        if "distribution" in options:
            self._tables.add(device)
        return remake

    # --- reading ---------------------------------------------------------------------------------------------------

    def _look(self) -> Look:
        self._reader = self._reader or Reader(self._place)
        return Look.now(self._reader)

    def restart(self, point: HookPoint) -> None:
        """Counters only: a channel goes on where the probes left it, in its long run; netem would begin in the good
        state."""
        look = self._look()
        self._past.pop(point.hook, None)
        for place, rule in self._holds.get(point.hook, {}).items():
            self._start[point.hook][place] = self._raw(point, rule, look)
        self._begin_rest(point, look)

    def _begin_rest(self, point: HookPoint, look: Look | None = None) -> None:
        filters = filters_at(point, look or self._look())
        self._start.setdefault(point.hook, {})[REST] = (_rest(filters) or 0, oversize(filters, point), 0)

    def read_back(self, point: HookPoint, look: Look) -> list[ReadBack]:
        """Field by field; and each rule's filter with its program and its way to the IFB."""
        filters = {one.priority: one for one in filters_at(point, look)}
        count = len(filters_at(point, look))
        out, ours = [], 0
        for number, rule in enumerate(self._rules[point.hook]):
            device = look.device(self._device_name(point.hook, rule))
            one = filters.get(FIRST_PRIO + number)
            filtered = (
                one is not None
                and device is not None
                and one.instructions == classifier(rule.match)
                and one.target == device.index
            )
            ours += filtered
            real = self._real(device.index) if device is not None else {}
            differs = differences(options_of(rule), real)
            out.append(
                ReadBack(
                    rule=rule.label,
                    attached=filtered and bool(real),
                    equal=not differs,
                    differs=tuple(differs),
                    seed=real.get("seed"),
                    mean_loss=mean_loss_of(real) if real else None,
                )
            )
        ours += sum(is_counter(one, point) for one in filters.values()) + (REST_PRIO in filters)
        out = out or [ReadBack(rule=UNMATCHED, attached=True, equal=True, mean_loss=0.0)]
        return [replace(one, foreign=count - ours) for one in out]

    def _real(self, device: int) -> dict[str, Any]:
        """The kernel's own numbers; empty if there is no netem there."""
        for message in self._switch.get_qdiscs(device):
            if message.get_attr("TCA_KIND") == "netem":
                return decoded(message.get_attr("TCA_OPTIONS"))
        return {}

    def _raw(self, point: HookPoint, rule: Rule, look: Look | None = None) -> Raw:
        """(packets redirected to the IFB, packets it let out, packets it dropped)."""
        look = look or self._look()
        device = look.device(self._device_name(point.hook, rule))
        if device is None:
            return 0, 0, 0
        queue = next((one for one in look.qdiscs.get(device.index, ()) if one.kind == "netem"), None)
        redirected = self._redirected.get(point.hook, {}).get(rule.place, 0)
        redirected += sum(one.acted or 0 for one in filters_at(point, look) if one.target == device.index)
        return (redirected, queue.packets + queue.waiting, queue.dropped) if queue is not None else (redirected, 0, 0)

    def counters(self, point: HookPoint, look: Look) -> Counters:
        now: Counters = {}
        for place, rule in self._holds.get(point.hook, {}).items():
            now[rule.label] = self._counted_since(rule, self._raw(point, rule, look), self._start[point.hook][place])
        filters = filters_at(point, look)
        rest, start = _rest(filters), self._start[point.hook].get(REST, (0, 0, 0))
        now[UNMATCHED] = RuleCounters(
            seen=rest - start[0] if rest is not None else 0, super_packets=oversize(filters, point) - start[1]
        )
        return added(self._past.get(point.hook, {}), now)

    def _counted_since(self, rule: Rule, raw: Raw, start: Raw) -> RuleCounters:
        redirected, let_out, lost = (n - s for n, s in zip(raw, start, strict=True))
        # The qdisc's own count outlives its filter; but a duplicate is let out once more than it was seen.
        seen = redirected if rule.profile.duplicate_percent else let_out + lost
        odd = rule.profile.corrupt_percent or (rule.profile.duplicate_percent and rule.profile.loss)
        return RuleCounters(seen=seen, dropped=lost, duplicated=max(let_out + lost - seen, 0), damage_counted=not odd)

    def detours(self, point: HookPoint, look: Look, counters: Counters) -> tuple[Detour, ...]:
        """What netem lets out is fed back by its IFB."""
        out = []
        for rule in self._holds.get(point.hook, {}).values():
            device = look.device(self._device_name(point.hook, rule))
            count = counters.get(rule.label)
            if device is None or count is None:
                continue
            waiting = sum(one.waiting for one in look.qdiscs.get(device.index, ()) if one.kind == "netem")
            out.append(
                Detour(
                    place=f"{point.hook.name}: {self.device_kind} {device.name}",
                    into=count.seen - count.dropped + count.duplicated,
                    returned=device.tx_packets,
                    dropped=device.tx_dropped + device.rx_dropped,
                    waiting=waiting,
                )
            )
        return tuple(out)

    def state(self) -> dict[str, Any]:
        return {hook.name: {"slots": self._slots.get(hook, {}), "start": start} for hook, start in self._start.items()}

    def close(self) -> None:
        """Qdiscs live as long as their devices."""
        if self._reader is not None:
            self._reader.close()


def _rest(filters: Sequence[Filter]) -> int | None:
    """Packets that no rule took; None where that is not counted."""
    return next((one.acted for one in filters if one.priority == REST_PRIO), None)


KIND = Kind(
    name="netem",
    make=NetemBackend,
    refusal=refusal,
    too_many=too_many,
    begins_good=True,
    lacking=lambda kernel: kernel.no_detour() or kernel.no_qdisc("netem"),
    advice="on a stock kernel, here: lossbench vm run -- lossbench run ...",
)
