"""When the workload has ended: does what was asked of some packets still leave all others alone? Foils once more,
through the rules that are in force then."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from lossbench.errors import RunError
from lossbench.net import conservation
from lossbench.net.conservation import Between
from lossbench.net.counters import UNMATCHED, RuleCounters
from lossbench.net.network import Network
from lossbench.proof.probe.exchange import Exchange
from lossbench.proof.probe.flows import Flow, plan
from lossbench.proof.probe.foils import FEW, foils
from lossbench.proof.probe.probing import PROBE_HEADERS, Probes, slowest_mbit
from lossbench.spec.placement import Hook, Rules

UNSEEN = 0.01  # of what no rule is about, at a port: if so many are lost, none of these is one time in twenty
AT_LEAST_S = 1.0  # of half the slowest link, that they may take


def changed_meanwhile(network: Network, *, payload_bytes: int, token: int) -> list[str]:
    """In words, what packets that no rule is about met; nothing where they met nothing, or every packet is asked for.
    Nothing else is sent now. Machines of a lab are not probed again."""
    if not network.genuine or network.experiment.topology.machines:
        return []
    flows = foils_alone(network.rules, network, payload_bytes=payload_bytes)
    if not flows:
        return []
    try:
        return _told(network, flows, payload_bytes=payload_bytes, token=token, exchange_of=Exchange)
    except (RunError, OSError) as error:
        return [f"after the run packets that no rule is about could not be sent ({error})"]


def foils_alone(rules: Rules, network: Network, *, payload_bytes: int) -> list[Flow]:
    """That no rule takes anywhere, also where those of other rules did before the run."""
    topology, rate_mbit = network.experiment.topology, slowest_mbit(network)
    flows, _ = foils(rules, plan(rules, topology)[0], topology, alone=True)
    told_apart = {hook for hook, here in network.counters().items() if UNMATCHED in here or not rules[hook]}
    through = Counter(hook for one in flows for hook in one.hooks())
    most = math.inf if rate_mbit is None else AT_LEAST_S * rate_mbit * 1e6 / 2 / 8 / (payload_bytes + PROBE_HEADERS)

    def enough(flow: Flow) -> int:
        least = FEW if told_apart.issuperset(set(flow.hooks()) & set(rules)) else flow.at_most
        share = min(through[hook] for hook in flow.hooks())  # how many bring a port what it needs together
        return max(least, math.ceil(min(3 / UNSEEN, most) / share))

    return [replace(one, at_most=enough(one)) for one in flows]


def _told(
    network: Network, flows: list[Flow], *, payload_bytes: int, token: int, exchange_of: Callable[..., Probes]
) -> list[str]:
    sent = sum(flow.count(flow.at_most) for flow in flows)
    with exchange_of(flows, place_of=network.place, payload_bytes=payload_bytes, token=token) as exchange:
        before = network.read(sockets=True)
        heard = exchange.loss(
            packets=max(flow.at_most for flow in flows),
            rate_mbit=slowest_mbit(network),
            settled=lambda received: received >= sent,
            wait_s=network.longest_wait_s(),
        )
        overflow = exchange.overflow
    between = Between(before, network.settled()[0])
    missing = {one.flow: int(one.missing().sum()) for one in heard}
    return in_words(network.rules, missing, between, strays=overflow)


def in_words(rules: Rules, missing: dict[Flow, int], between: Between, *, strays: int = 0) -> list[str]:
    """`missing`: packets of each flow, none of them taken by a rule that is as asked; `strays`: that were lost for
    another reason."""
    out = []
    sent: dict[Hook, int] = {}
    for flow, lost in missing.items():
        up, down = flow.hooks()
        sent[up] = sent.get(up, 0) + flow.at_most
        sent[down] = sent.get(down, 0) + flow.at_most - lost
    for hook, due in sent.items():
        here = between.hooks.get(hook, {})
        rest, ruled = here.get(UNMATCHED, RuleCounters()), {rule.label for rule in rules.get(hook, ())}
        if UNMATCHED not in here or not ruled:
            continue
        for label in ruled:
            taken = min(due - rest.seen, here.get(label, RuleCounters()).seen)
            if taken > 0:
                out.append(f"{hook.name}: after the run {label} took {taken} of {due} packets that it is not about")
    strays += conservation.lost_in_queues(between) + sum(conservation.lost_elsewhere(between).values())
    lost, every = sum(missing.values()), sum(flow.at_most for flow in missing)
    if lost > strays and not out:
        out.append(f"after the run {lost} of {every} packets were lost that no rule is about")
    return out
