"""The proof of a standing network: probes through every rule, counters around them, joined by lossbench.proof.prove."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Protocol

from lossbench.net.conservation import Between
from lossbench.net.counters import TOTAL, UNMATCHED, HeldByRule, Reading, RuleCounters, held_since
from lossbench.net.network import Network
from lossbench.proof.evidence import Counts, FlowSeen, Proof, Seen
from lossbench.proof.probe.exchange import Exchange
from lossbench.proof.probe.flows import plan, taken_by
from lossbench.proof.probe.foils import foils
from lossbench.proof.probe.heard import Heard
from lossbench.proof.prove import prove
from lossbench.spec.losses import BlockLoss
from lossbench.spec.placement import UNTAKEN, Hook, Rule, Rules

PROBE_S = 1.5  # a run's probe is cut to this on slow links
MIN_PROBES = 200  # packets per flow
PROBE_HEADERS = 66  # Ethernet, IPv6 and UDP


class Probes(Protocol):
    """Sends probes and hears them: on this machine (Exchange), or from machine to machine."""

    @property
    def overflow(self) -> int: ...

    def __enter__(self) -> Probes: ...

    def __exit__(self, *_: object) -> None: ...

    def delay(self, *, wait_s: float) -> list[Heard]: ...

    def loss(
        self, *, packets: int, rate_mbit: float | None, settled: Callable[[int], bool], wait_s: float
    ) -> list[Heard]: ...


def prove_network(
    network: Network,
    *,
    packets: int,
    payload_bytes: int,
    token: int,
    bystanders: bool = False,
    limit_s: float = PROBE_S,
    exchange_of: Callable[..., Probes] = Exchange,
) -> Proof:
    """Probe every rule; `packets` over all flows. `bystanders`: others may be sending."""
    flows, remarks = plan(network.rules, network.experiment.topology)
    foiled, untold = foils(network.rules, flows, network.experiment.topology)
    look = network.look()
    wrong = network.offloads_wrong()
    remarks += [f"offloads are not as they must be: {', '.join(wrong[:4])}"] if wrong else []
    remarks += network.not_in_force(look) + network.shaping_wrong() + network.mtu_wrong(look)
    each = max(MIN_PROBES, packets // max(len(flows), 1))
    rate_mbit = slowest_mbit(network)
    if rate_mbit is not None:  # probes take half of the link
        bits = (payload_bytes + PROBE_HEADERS) * 8
        each = max(MIN_PROBES, min(each, int(limit_s * rate_mbit * 1e6 / 2 / bits)))
    flows += foiled
    delayed = network.longest_wait_s()
    with exchange_of(flows, place_of=network.place, payload_bytes=payload_bytes, token=token) as exchange:
        held = network.held() if delayed else {}
        samples = exchange.delay(wait_s=delayed) if delayed else []
        held = held_since(network.held(), held) if delayed else {}
        before = network.read(sockets=True) if bystanders else network.settled()[0]
        heard = exchange.loss(
            packets=each,
            rate_mbit=rate_mbit,
            settled=lambda received: _settled(network, received, sum(flow.count(each) for flow in flows), before),
            wait_s=delayed,
        )
        overflow = exchange.overflow
    after = network.read(sockets=True) if bystanders else network.settled(since=before)[0]
    seen = [_flow_seen(network.rules, one, samples[i] if samples else None, held) for i, one in enumerate(heard)]
    read_back = network.read_back()
    return prove(
        rules=network.rules,
        seen=Seen(
            flows=seen,
            counts=_counts(network.rules, seen, before, after),
            read_back={(hook, one.rule): one.mean_loss for hook, some in read_back.items() for one in some},
            overflow=overflow,
            between=Between(before, after),
            bystanders=bystanders,
            begins_good=network.begins_good,
            not_judged=untold,
        ),
        remarks=remarks + [f"{h.flow}: header came back different" for h in heard if h.wrong_headers],
    )


def slowest_mbit(network: Network) -> float | None:
    topology = network.experiment.topology
    own = [r.profile.rate_mbit for here in network.rules.values() for r in here]
    rates = [rate for rate in (topology.uplink_mbit(), topology.downlink_mbit(), *own) if rate]
    return min(rates, default=None)


def _settled(network: Network, received: int, sent: int, before: Reading) -> bool:
    hooks = Between(before, network.read()).hooks
    gone = sum(count.dropped + count.corrupted for here in hooks.values() for count in here.values())
    return received + gone >= sent


def _flow_seen(rules: Rules, heard: Heard, samples: Heard | None, held: HeldByRule) -> FlowSeen:
    flow = heard.flow
    up, down = flow.hooks()

    def rule_at(hook: Hook) -> Rule | None:
        return taken_by(rules.get(hook, ()), flow)

    by_block = any(rule and isinstance(rule.profile.loss, BlockLoss) for rule in (rule_at(up), rule_at(down)))
    return FlowSeen(
        name=f"{flow.source.name} to {flow.destination.name}",
        uplink=(up, rule_at(up)),
        downlink=(down, rule_at(down)),
        missing=heard.missing(),
        duplicates=heard.duplicates(),
        reordered=heard.reordered(),
        delays_ms=tuple(samples.delays_ms) if samples else (),
        clock_ms=samples.clock_ms if samples else 0.0,
        sender_ms=median(samples.late_ms) if samples and samples.late_ms else 0.0,
        wire_ms=sum(one.late_ms(0.5) for hook in (up, down) for one in held.get(hook, {}).values()),
        header={"step": flow.step, "half": flow.half, "source": flow.source.rank, "destination": flow.destination.rank},
        blocks=tuple(flow.block_of(i) for i in range(heard.sent)) if by_block else (),
    )


def _counts(rules: Rules, flows: list[FlowSeen], before: Reading, after: Reading) -> Counts:
    """Kernel counters of the proof alone, keyed by hook and rule; positions are where the proof began."""
    out: Counts = {}
    for hook, counters in Between(before, after).hooks.items():
        for label, delta in counters.items():
            start = before.hooks[hook].get(label, RuleCounters())
            key, seen = label, delta.seen
            if label == UNMATCHED:
                key = UNTAKEN
            elif label == TOTAL and len(rules[hook]) <= 1:
                # One rule and a counter that can't split: what is dropped is its doing, what it saw is what was sent.
                rule = rules[hook][0] if rules[hook] else None
                key = rule.label if rule else UNTAKEN
                seen = sum(f.sent for f in flows for place in (f.uplink, f.downlink) if place == (hook, rule))
            out[(hook, key)] = RuleCounters(
                seen=seen,
                dropped=delta.dropped,
                corrupted=delta.corrupted,
                duplicated=delta.duplicated,
                damageable=delta.damageable,
                super_packets=delta.super_packets,
                position=start.position,
                damage_counted=delta.damage_counted,
            )
    return out
