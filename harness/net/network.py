"""A network under test: star, offloads, rates, backend and proof, in one object that a run or a standing lab holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from harness.evidence import Count, Counts, FlowSeen, Proof
from harness.experiment import Experiment
from harness.net import kinds, namespaces, offloads, shaping
from harness.net.impair import registry
from harness.net.impair.base import TOTAL, UNMATCHED, Backend, Counters, RuleCounters
from harness.net.probe.exchange import Exchange, Heard
from harness.net.probe.flows import plan, taken_by
from harness.net.shaping import ClassState
from harness.net.star import Star, remove_namespaces
from harness.placement import Hook, Rule, Rules
from harness.proof import prove
from harness.topology import DATA_INTERFACE, SWITCH

HookCounters = dict[Hook, Counters]
MIN_PROBES = 200  # packets per flow
PROBE_S = 1.5  # a run's probe is cut to this on slow links
PROBE_HEADERS = 66  # Ethernet, IPv6 and UDP
LONGEST_DELAY_FACTOR = 5  # jitter is waited for this many deviations


class Network:
    """Built once, changed in place, removed once."""

    def __init__(self, *, network_id: str, experiment: Experiment, backend: str) -> None:
        kinds.install()
        self.experiment = experiment
        self.star = Star(network_id=network_id, topology=experiment.topology)
        self.backend_name = backend
        self.backend: Backend
        self.rules: Rules = {}
        self._earlier: HookCounters = {}

    def build(self, *, before_making: Callable[[str, str], None]) -> None:
        self.star.build(before_making=before_making)
        self.backend = self._make_backend()

    def cut_to_mtu(self) -> None:
        """Senders cut to the MTU before the loss point, receivers merge behind it."""
        self.star.set_offloads()

    def attach(self, *, state: dict[str, Any], rules: Rules) -> None:
        """To a network that another process built."""
        self.star.open()
        self.rules = rules
        self.backend = self._make_backend(state=state, rules=rules)

    def _make_backend(self, *, state: dict[str, Any] | None = None, rules: Rules | None = None) -> Backend:
        place = self.star.namespace(SWITCH)
        return registry.make(self.backend_name, self.star.switch, namespace=place, state=state, rules=rules)

    def shape(self) -> None:
        """Rates and classes of every link."""
        topology, how = self.experiment.topology, self.experiment.shaping
        up, down = topology.uplink_mbit(), topology.downlink_mbit()
        for host in topology.all_hosts():
            steps = shaping.room()
            if down is not None:
                steps = shaping.plan(how, rate_mbit=down, mtu=topology.mtu, at_host=False)
            elif steps:
                self.star.switch.link("set", index=self.star.ports[host.rank], txqlen=shaping.ROOM_PACKETS)
            shaping.carry_out(self.star.switch, self.star.ports[host.rank], steps)
            if up is not None:
                with namespaces.open_inside(self.star.namespace(host.name)) as inside:
                    index = inside.link_lookup(ifname=DATA_INTERFACE)[0]
                    # Without this TCP's super-packets would sit in the slow uplink's queue as one piece.
                    inside.link("set", index=index, gso_max_segs=1)
                    steps = shaping.plan(how, rate_mbit=up, mtu=topology.mtu, at_host=True)
                    shaping.carry_out(inside, index, steps)

    def put(self, rules: Rules) -> dict[Hook, Counters]:
        """Put rules in force; only hooks whose rules differ are touched. Returns those, with the final counters of what
        was in force there before."""
        if any(rule.profile.corrupt_percent for here in rules.values() for rule in here):
            self._checksum_in_software()
        replaced = {}
        for hook, here in rules.items():
            assert len({rule.label for rule in here}) == len(here), "counters are kept by label"
            if hook in self.rules and self.rules[hook] == here:
                continue
            replaced[hook] = self.backend.put(self.star.hook_point(hook), here)
            self.rules[hook] = here
            kept = self._earlier.setdefault(hook, {})
            for label, final in replaced[hook].items():
                kept[label] = kept[label].plus(final) if label in kept else final
        return replaced

    def restart(self) -> None:
        """The same rules from their beginning: counters at zero, seeded patterns at their first packet."""
        self._earlier = {}
        for hook, here in self.rules.items():
            self.backend.put(self.star.hook_point(hook), here)

    def _checksum_in_software(self) -> None:
        """Damaged packets must carry the sender's checksum, or the damage would reach the application unseen."""
        for host in self.experiment.topology.all_hosts():
            with namespaces.inside(self.star.namespace(host.name)):
                offloads.switch(DATA_INTERFACE, dict.fromkeys(offloads.CHECKSUM, False))

    def counters(self) -> HookCounters:
        """Since the rules were put in force, counted over every change in place."""
        out: HookCounters = {}
        for hook in self.rules:
            merged = dict(self._earlier.get(hook, {}))
            for label, now in self.backend.counters(self.star.hook_point(hook)).items():
                merged[label] = merged[label].plus(now) if label in merged else now
            out[hook] = merged
        return out

    def current_counters(self) -> HookCounters:
        """Of the rules as they are in force now."""
        return {hook: self.backend.counters(self.star.hook_point(hook)) for hook in self.rules}

    def read_back(self) -> dict[Hook, list[dict[str, Any]]]:
        return {hook: self.backend.read_back(self.star.hook_point(hook)) for hook in self.rules}

    def classes(self) -> dict[str, list[ClassState]]:
        """Per-class counters and backlog of every shaped link."""
        out: dict[str, list[ClassState]] = {}
        topology, how = self.experiment.topology, self.experiment.shaping
        for host in topology.all_hosts():
            if topology.downlink_mbit() is not None:
                out[f"{host.name} downlink"] = shaping.read(self.star.switch, self.star.ports[host.rank], how)
            if topology.uplink_mbit() is not None:
                with namespaces.open_inside(self.star.namespace(host.name)) as inside:
                    index = inside.link_lookup(ifname=DATA_INTERFACE)[0]
                    out[f"{host.name} uplink"] = shaping.read(inside, index, how)
        return out

    def queue_drops(self) -> int:
        """Of every queue and ring of the network: packets it had no room for."""
        shaped = sum(c.dropped for link in self.classes().values() for c in link)
        ports = self.star.ports.values()
        return shaped + self.star.port_drops() + sum(shaping.room_drops(self.star.switch, port) for port in ports)

    def ports_missing(self) -> list[str]:
        """Ports that were there and are gone or down."""
        up = {link.get_attr("IFLA_IFNAME"): link.get_attr("IFLA_OPERSTATE") for link in self.star.switch.get_links()}
        return [h.port for h in self.experiment.topology.all_hosts() if up.get(h.port) != "UP"]

    # --- proof -------------------------------------------------------------------------------------------------

    def prove(
        self, *, packets: int, payload_bytes: int, token: int, bystanders: bool = False, limit_s: float = PROBE_S
    ) -> Proof:
        """Probe every rule; `packets` over all flows. `bystanders`: others may be sending."""
        flows, remarks = plan(self.rules, self.experiment.topology)
        wrong = self.star.offloads_wrong()
        remarks += [f"offloads are not as they must be: {', '.join(wrong[:4])}"] if wrong else []
        remarks += self.not_in_force()
        before, drops_before = self.current_counters(), self.queue_drops()
        each = max(MIN_PROBES, packets // max(len(flows), 1))
        rate_mbit = self._slowest_mbit()
        if rate_mbit is not None:  # probes take half of the link
            bits = (payload_bytes + PROBE_HEADERS) * 8
            each = max(MIN_PROBES, min(each, int(limit_s * rate_mbit * 1e6 / 2 / bits)))
        delayed = self._longest_wait_s()
        with Exchange(flows, namespace_of=self.star.namespace, payload_bytes=payload_bytes, token=token) as exchange:
            samples = exchange.delay(wait_s=delayed) if delayed else []
            between, drops_between = (
                (self.current_counters(), self.queue_drops()) if delayed else (before, drops_before)
            )
            heard = exchange.loss(
                packets=each,
                rate_mbit=rate_mbit,
                settled=lambda received: self._settled(received, each * len(flows), between),
                wait_s=delayed,
            )
            overflow = exchange.overflow
        after, queue_drops = self.current_counters(), self.queue_drops() - drops_between
        seen = [self._flow_seen(one, samples[i] if samples else None) for i, one in enumerate(heard)]
        return prove(
            rules=self.rules,
            flows=seen,
            counts=_counts(self.rules, seen, between, after),
            read_back=self._read_back_loss(),
            overflow=overflow,
            queue_drops=queue_drops,
            bystanders=bystanders,
            remarks=remarks + [f"{h.flow}: header came back different" for h in heard if h.wrong_headers],
        )

    def not_in_force(self) -> list[str]:
        """What the kernel no longer has as it was put there."""
        return [
            f"{hook.name}: rule {entry['rule']} is {'changed' if entry['attached'] else 'not attached'} in the kernel"
            for hook, entries in self.read_back().items()
            for entry in entries
            if not (entry["attached"] and entry["equal"])
        ]

    def _read_back_loss(self) -> dict[tuple[Hook, str], float | None]:
        return {
            (hook, entry["rule"]): entry["mean_loss"] for hook, entries in self.read_back().items() for entry in entries
        }

    def _slowest_mbit(self) -> float | None:
        topology = self.experiment.topology
        own = [r.profile.rate_mbit for here in self.rules.values() for r in here]
        rates = [rate for rate in (topology.uplink_mbit(), topology.downlink_mbit(), *own) if rate]
        return min(rates, default=None)

    def _longest_wait_s(self) -> float:
        delays = [r.profile.delay for here in self.rules.values() for r in here if r.profile.delay]
        return 2 * max((d.mean_ms + LONGEST_DELAY_FACTOR * d.jitter_ms for d in delays), default=0.0) / 1000

    def _settled(self, received: int, sent: int, before: HookCounters) -> bool:
        now = self.current_counters()
        gone = sum(
            (c := counters[label].minus(before[hook].get(label, RuleCounters(seen=0, dropped=0)))).dropped + c.corrupted
            for hook, counters in now.items()
            for label in counters
        )
        return received + gone >= sent

    def _flow_seen(self, heard: Heard, samples: Heard | None) -> FlowSeen:
        flow = heard.flow
        up, down = flow.hooks()

        def rule_at(hook: Hook) -> Rule | None:
            return taken_by(self.rules.get(hook, ()), flow)

        return FlowSeen(
            name=f"h{flow.source} to h{flow.destination}",
            uplink=(up, rule_at(up)),
            downlink=(down, rule_at(down)),
            missing=heard.missing(),
            duplicates=heard.duplicates(),
            reordered=heard.reordered(),
            delays_ms=tuple(samples.delays_ms) if samples else (),
            header={"step": flow.step, "half": flow.half, "source": flow.source, "destination": flow.destination},
            blocks=tuple(flow.block_of(i) for i in range(heard.sent)),
        )

    # --- standing labs -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return self.backend.state()

    def close(self) -> None:
        """Handles only: the network stands on."""
        if hasattr(self, "backend"):
            self.backend.close()
        self.star.close()

    def remove(self) -> None:
        self.close()
        remove_namespaces(self.star.names())


def _counts(rules: Rules, flows: list[FlowSeen], before: HookCounters, after: HookCounters) -> Counts:
    """Kernel counters of the proof alone, keyed by hook and rule."""
    out: Counts = {}
    for hook, counters in after.items():
        for label, now in counters.items():
            start = before[hook].get(label, RuleCounters(seen=0, dropped=0))
            delta, position = now.minus(start), start.position
            key, seen = label, delta.seen
            if label == UNMATCHED:
                key = "none"
            elif label == TOTAL and len(rules[hook]) <= 1:
                # One rule and a counter that can't split: what is dropped is its doing, what it saw is what was sent.
                rule = rules[hook][0] if rules[hook] else None
                key = rule.label if rule else "none"
                seen = sum(f.sent for f in flows for place in (f.uplink, f.downlink) if place == (hook, rule))
            out[(hook, key)] = Count(
                seen=seen,
                dropped=delta.dropped,
                corrupted=delta.corrupted,
                duplicated=delta.duplicated,
                super_packets=delta.super_packets,
                generator=position.generator if position else None,
                state=position.state if position else 0,
                packets_before=position.packets if position else 0,
                damage_counted=now.damage_counted,
            )
    return out


def classes_as_json(classes: dict[str, list[ClassState]]) -> dict[str, Any]:
    return {link: [asdict(state) for state in states] for link, states in classes.items()}


def counters_as_json(counters: HookCounters) -> dict[str, Any]:
    return {hook.name: {label: asdict(c) for label, c in here.items()} for hook, here in counters.items()}
