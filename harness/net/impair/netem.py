"""Backend netem: behind the same hook as the others, an IFB with a netem qdisc per rule.

At the switch port's clsact a classic BPF filter redirects a rule's packets to the IFB; there they are already cut to
the MTU, and nothing is reported back to the sender. The kernel feeds them back where they came from.
"""

from __future__ import annotations

import math
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from harness.net import kinds
from harness.net.impair.base import UNMATCHED, Counters, HookPoint, RuleCounters
from harness.net.impair.cbpf_program import classifier
from harness.net.impair.clsact import PARENT, ensure_clsact, filters_of
from harness.net.impair.oversize import OversizeCounter, action_packets
from harness.placement import Hook, Rule
from harness.profile import BlockLoss, GilbertElliottLoss, IidLoss, Profile, State4Loss, TraceLoss

FIRST_PRIO = 2
OVERSIZE = "oversize"  # beside the rule labels, which all begin with a number
Raw = tuple[int, int, int]
DEFAULT_LIMIT_PACKETS = 1000
ASSUMED_PACKETS_PER_S = 1_000_000  # for sizing the queue of a delay when no rate is given


def refusal(profile: Profile) -> str | None:
    """What this backend can't do of a profile, in words; None if it can do all."""
    if isinstance(profile.loss, TraceLoss):
        return "a loss trace"
    if isinstance(profile.loss, BlockLoss):
        return "block loss"
    if profile.match.datagram is not None:
        return "matching our datagram header"
    return None


def limit_packets(profile: Profile) -> int:
    """Room for everything that waits, or netem drops it and calls it loss."""
    if profile.queue_limit_packets is not None:
        return profile.queue_limit_packets
    if profile.delay is None:
        return DEFAULT_LIMIT_PACKETS
    hold_s = (profile.delay.mean_ms + 4 * profile.delay.jitter_ms) / 1000
    rate = profile.rate_mbit * 1e6 / 8 / 128 if profile.rate_mbit else ASSUMED_PACKETS_PER_S
    return DEFAULT_LIMIT_PACKETS + math.ceil(min(rate, ASSUMED_PACKETS_PER_S) * hold_s * 1.5)


def options_of(rule: Rule) -> dict[str, Any]:
    """netem's options in netem's own units, by the names kinds.netem_parameters takes."""
    profile, u32 = rule.profile, kinds.netem_u32
    options: dict[str, Any] = {"limit": limit_packets(profile), "seed": rule.seed}
    correlations = {"delay": 0, "loss": 0, "duplicate": 0}
    options.update(_loss_options(profile, correlations))
    if profile.delay is not None:
        options["latency_ns"] = round(profile.delay.mean_ms * 1e6)
        options["jitter_ns"] = round(profile.delay.jitter_ms * 1e6)
        correlations["delay"] = u32(profile.delay.correlation_percent / 100)
        if profile.delay.distribution != "uniform" and profile.delay.jitter_ms:
            options["distribution"] = profile.delay.distribution
    if profile.reorder is not None:
        options["gap"] = profile.reorder.gap
        options["reorder"] = {
            "probability": u32(profile.reorder.percent / 100),
            "correlation": u32(profile.reorder.correlation_percent / 100),
        }
    if profile.duplicate_percent:
        options["duplicate"] = u32(profile.duplicate_percent / 100)
    # A change keeps every attribute that is not sent: what is not asked for goes as zero.
    options["corrupt"] = {"probability": u32(profile.corrupt_percent / 100), "correlation": 0}
    options["rate_bytes_s"] = round((profile.rate_mbit or 0.0) * 1e6 / 8)
    slot = profile.slot
    options["slot"] = {
        "min_delay": round(slot.min_ms * 1e6) if slot else 0, "max_delay": round(slot.max_ms * 1e6) if slot else 0,
        "max_packets": slot.packets if slot else 0, "max_bytes": slot.bytes if slot else 0,
        "dist_delay": 0, "dist_jitter": 0,
    }  # fmt: skip
    options["ecn"] = int(profile.ecn)
    options["corr"] = correlations
    return options


def differences(asked: dict[str, Any], real: dict[str, Any]) -> list[str]:
    """Names whose value in the kernel is not the asked one; absent and zero are the same. The delay table and the seed
    (before 6.6) are never dumped."""

    def plain(value: Any) -> Any:
        return {k: v for k, v in value.items() if v} if isinstance(value, dict) else value or 0

    names = {*asked, *real} - {"distribution", "seed"}
    limitless = {"max_packets", "max_bytes"}  # the kernel dumps "no limit" for the zero that was sent
    out = []
    for name in sorted(names):
        wanted, found = plain(asked.get(name, 0)), plain(real.get(name, 0))
        if name == "slot" and isinstance(found, dict) and not wanted:
            found = {k: v for k, v in found.items() if k not in limitless}
        if (wanted or 0) != (found or 0):
            out.append(name)
    return out


def _loss_options(profile: Profile, correlations: dict[str, int]) -> dict[str, Any]:
    u32, loss = kinds.netem_u32, profile.loss
    if isinstance(loss, IidLoss):
        correlations["loss"] = u32(loss.correlation_percent / 100)
        return {"loss": u32(loss.percent / 100)}
    if isinstance(loss, GilbertElliottLoss):
        good, bad = loss.chain().states
        return {
            "gilbert": {
                "p": u32(good[0].probability), "r": u32(bad[0].probability),
                "h": u32(1 - bad[0].loss), "k1": u32(good[0].loss),
            }
        }  # fmt: skip
    if isinstance(loss, State4Loss):
        return {
            "state4": {
                name: u32(getattr(loss, f"{name}_percent") / 100) for name in ("p13", "p31", "p32", "p14", "p23")
            }
        }
    return {}


class NetemBackend:
    """See base.Backend."""

    name = "netem"

    def __init__(
        self, switch: IPRoute, *, namespace: str, state: dict[str, Any] | None = None, rules: Any = None
    ) -> None:
        self._switch = switch
        self._namespace = namespace
        self._oversize = OversizeCounter(switch)
        self._rules: dict[Hook, tuple[Rule, ...]] = dict(rules or {})
        self._start: dict[Hook, dict[str, list[int]]] = {}
        self._tables: set[int] = set()  # devices whose qdisc holds a delay table
        for hook, start in (state or {}).items():
            self._start[Hook.named(hook)] = start
        for place, here in self._rules.items():
            for number, rule in enumerate(here):
                if "distribution" in options_of(rule):
                    self._tables |= set(switch.link_lookup(ifname=_device_name(place, number)))

    def put(self, point: HookPoint, rules: tuple[Rule, ...]) -> Counters:
        ensure_clsact(self._switch, point.port_index)
        known, before = point.hook in self._rules, self._rules.get(point.hook, ())
        if not known:
            self._oversize.put(point)
        early = self.counters(point) if known else {}
        forgotten: set[str] = set()
        start: dict[int, Raw] = {}  # what each place has counted when its new rule begins
        for number, rule in enumerate(rules):
            device = self._device(point, number)
            old = before[number] if number < len(before) else None
            made_anew = self._put_netem(device, rule)
            if old is None or made_anew:
                start[number] = self._raw(point, number)  # before its first packet comes
            forgotten |= {old.label} if old is not None and made_anew else set()
            if old is None or old.match != rule.match:
                self._redirect(point, number, rule, device)
        for number in range(len(rules), len(before)):
            # The qdisc stays, so that what waits in it still leaves; nothing new is sent there.
            self._switch.tc(
                "del-filter", "bpf", point.port_index, handle=1, parent=PARENT[point.hook.direction],
                prio=FIRST_PRIO + number,
            )  # fmt: skip
        # One reading ends the old rule and begins the new one: no packet falls between two.
        now = {number: self._raw(point, number) for number in range(max(len(rules), len(before)))}
        final = self._final(point, before, early, forgotten, now) if known else {}
        self._rules[point.hook] = rules
        begins = {rule.label: list(start.get(n, now[n])) for n, rule in enumerate(rules)}
        self._start[point.hook] = {**begins, OVERSIZE: [self._oversize.count(point)]}
        return final

    def _final(
        self, point: HookPoint, before: tuple[Rule, ...], early: Counters, forgotten: set[str], now: dict[int, Raw]
    ) -> Counters:
        """Read after the change; before it only where the change wiped the counter out."""
        late = self._counted(point, now)
        lost = forgotten | {rule.label for rule in before if rule.profile.duplicate_percent}
        return {label: early[label] if label in lost else count for label, count in late.items()}

    def _redirect(self, point: HookPoint, number: int, rule: Rule, device: int) -> None:
        self._switch.tc(
            "replace-filter", "bpf", point.port_index, handle=1, parent=PARENT[point.hook.direction],
            prio=FIRST_PRIO + number, ops=classifier(rule.match),
            action={"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": device},
        )  # fmt: skip

    def _device(self, point: HookPoint, number: int) -> int:
        """The IFB of this rule's place; made once, kept."""
        name = _device_name(point.hook, number)
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

    def _qdisc(self, point: HookPoint, number: int) -> Any:
        for message in self._switch.get_qdiscs(self._device(point, number)):
            if message.get_attr("TCA_KIND") == "netem":
                return message
        return None

    def read_back(self, point: HookPoint) -> list[dict[str, Any]]:
        """Field by field."""
        attached = len(filters_of(self._switch, point.port_index, point.hook.direction)) - 1
        out = []
        for number, rule in enumerate(self._rules[point.hook]):
            qdisc = self._qdisc(point, number)
            real = {} if qdisc is None else decoded(qdisc.get_attr("TCA_OPTIONS"))
            differs = differences(options_of(rule), real)
            out.append(
                {
                    "rule": rule.label, "attached": number < attached and qdisc is not None, "equal": not differs,
                    "differs": differs, "seed": real.get("seed"), "mean_loss": rule.profile.mean_loss(),
                }
            )  # fmt: skip
        return out or [{"rule": UNMATCHED, "attached": True, "equal": True, "mean_loss": 0.0}]

    def _raw(self, point: HookPoint, number: int) -> Raw:
        """(packets redirected to the IFB, packets it let out, packets it dropped)."""
        qdisc = self._qdisc(point, number)
        if qdisc is None:
            return 0, 0, 0
        stats = qdisc.get_attr("TCA_STATS2")
        basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
        redirected = action_packets(self._switch, point, prio=FIRST_PRIO + number)
        return redirected, basic["packets"] + queue["qlen"], queue["drops"]

    def counters(self, point: HookPoint) -> Counters:
        return self._counted(point, {n: self._raw(point, n) for n in range(len(self._rules[point.hook]))})

    def _counted(self, point: HookPoint, raw: dict[int, Raw]) -> Counters:
        out: Counters = {}
        for number, rule in enumerate(self._rules[point.hook]):
            start = self._start.get(point.hook, {}).get(rule.label, [0, 0, 0])
            redirected, let_out, dropped = (n - s for n, s in zip(raw[number], start, strict=True))
            # The qdisc's own count outlives its filter; but a duplicate is let out once more than it was seen.
            seen = redirected if rule.profile.duplicate_percent else let_out + dropped
            duplicated = max(let_out + dropped - seen, 0)
            out[rule.label] = RuleCounters(seen=seen, dropped=dropped, duplicated=duplicated, damage_counted=False)
        over = self._oversize.count(point) - self._start.get(point.hook, {}).get(OVERSIZE, [0])[0]
        out[UNMATCHED] = RuleCounters(seen=0, dropped=0, super_packets=over)
        return out

    def state(self) -> dict[str, Any]:
        return {hook.name: start for hook, start in self._start.items()}

    def close(self) -> None:
        """Nothing is held: qdiscs live as long as their devices."""


def _device_name(hook: Hook, number: int) -> str:
    return f"i{hook.rank}{hook.direction[0]}{number}"


def decoded(options: Any) -> dict[str, Any]:
    """A dump in the names of `options_of`."""
    out: dict[str, Any] = {name: options[name] for name in ("limit", "loss", "gap", "duplicate")}
    plain = {
        "TCA_NETEM_LATENCY64": "latency_ns", "TCA_NETEM_JITTER64": "jitter_ns", "TCA_NETEM_ECN": "ecn",
        "TCA_NETEM_PRNG_SEED": "seed", "TCA_NETEM_RATE64": "rate_bytes_s",
    }  # fmt: skip
    structs = {
        "TCA_NETEM_CORR": "corr", "TCA_NETEM_REORDER": "reorder", "TCA_NETEM_CORRUPT": "corrupt",
        "TCA_NETEM_SLOT": "slot",
    }  # fmt: skip
    for name, value in options["attrs"]:
        if name in plain:
            out[plain[name]] = value
        elif name in structs:
            out[structs[name]] = {key: value[key] for key, _ in type(value).fields}
        elif name == "TCA_NETEM_RATE":
            out.setdefault("rate_bytes_s", value["rate"])
        elif name == "TCA_NETEM_LOSS":
            for model, numbers in value["attrs"]:
                kind = "gilbert" if model == "NETEM_LOSS_GE" else "state4"
                out[kind] = {key: numbers[key] for key, _ in type(numbers).fields}
    return out
