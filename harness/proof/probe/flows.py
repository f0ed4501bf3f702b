"""Which probe flows prove which rules. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from lossbench import contract
from lossbench.spec.losses import BlockLoss
from lossbench.spec.placement import Hook, Rule, Rules, matches_addresses
from lossbench.spec.profile import DatagramMatch
from lossbench.spec.topology import Host, Topology

FIRST_PORT = 29500
PACKETS_PER_BLOCK = 4  # of a probe that proves block loss


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Probe packets of one kind from one host to another."""

    source: Host
    destination: Host
    family: int  # 4 or 6
    protocol: str
    source_port: int
    destination_port: int
    dscp: int
    step: int
    half: int
    block: int
    blocks: bool  # number the blocks, PACKETS_PER_BLOCK packets each
    kind: str = "probe"  # as its header says
    turn: int = 0  # a foil's; sent when those before it have been
    at_most: int = 0  # packets; 0: as many as are asked for

    def count(self, packets: int) -> int:
        return min(packets, self.at_most) if self.at_most else packets

    def block_of(self, packet: int) -> int:
        return self.block + packet // PACKETS_PER_BLOCK if self.blocks else self.block

    def hooks(self) -> tuple[Hook, Hook]:
        return Hook(rank=self.source.rank, direction="uplink"), Hook(rank=self.destination.rank, direction="downlink")


def plan(rules: Rules, topology: Topology) -> tuple[list[Flow], list[str]]:
    """(flows, remarks): at least one flow through every hook and every rule; remarks name rules no packet can reach."""
    flows: list[Flow] = []
    remarks: list[str] = []
    for hook, here in rules.items():
        for rule in here:
            if any(hook in flow.hooks() and taken_by(here, flow) == rule for flow in flows):
                continue  # a flow on its way to another hook proves this rule too
            flow = _flow_for(hook, rule, topology, port=free_port(rules, flows))
            if flow is None or taken_by(here, flow) != rule:
                remarks.append(f"{hook.name}: no probe can be sent that only rule {rule.label} would take: not proven")
            else:
                flows.append(flow)
        if not here and not any(hook in flow.hooks() for flow in flows):
            plain = _flow_for(hook, None, topology, port=free_port(rules, flows))
            assert plain is not None
            flows.append(plain)
    return flows, remarks


def free_port(rules: Rules, flows: list[Flow], besides: int = 0) -> int:
    """One that tells flows apart and that no rule is about."""
    matches = [rule.match for here in rules.values() for rule in here]
    named = {port for match in matches for port in (*match.destination_ports, *match.source_ports)}
    used = named | {besides} | {flow.destination_port for flow in flows}
    return next(port for port in range(FIRST_PORT, 65536) if port not in used)


def _flow_for(hook: Hook, rule: Rule | None, topology: Topology, *, port: int) -> Flow | None:
    ends = _ends(hook, rule, topology)
    if ends is None:
        return None
    source, destination, family = ends
    match = rule.match if rule is not None else None
    block_rule = rule is not None and isinstance(rule.profile.loss, BlockLoss)
    header = (match.datagram if match else None) or DatagramMatch()
    return Flow(
        source=source,
        destination=destination,
        family=family,
        protocol=(match.protocol if match else None) or "udp",
        source_port=match.source_ports[0] if match and match.source_ports else 0,
        destination_port=match.destination_ports[0] if match and match.destination_ports else port,
        dscp=match.dscp if match and match.dscp is not None else 0,
        step=header.steps[0] if header.steps else 0,
        half=contract.HALVES[header.halves[0]] if header.halves else 0,
        block=header.blocks[0] if header.blocks else 0,
        blocks=block_rule and header.blocks is None,
    )


def _ends(hook: Hook, rule: Rule | None, topology: Topology) -> tuple[Host, Host, int] | None:
    """A pair of hosts whose packets pass this hook and, as far as addresses go, belong to the rule."""
    for source, destination, family in ends_at(hook, topology):
        one, other = (source.ipv4, destination.ipv4) if family == 4 else (source.ipv6, destination.ipv6)
        if rule is None or matches_addresses(rule.match, source=one, destination=other):
            return source, destination, family
    return None


def ends_at(hook: Hook, topology: Topology) -> Iterator[tuple[Host, Host, int]]:
    """All pairs of hosts whose packets pass this hook, by each IP version."""
    hosts = topology.all_hosts()
    for distance in range(1, len(hosts)):
        # Neighbours first: as a ring, every host then sends one flow and receives one.
        if hook.direction == "uplink":
            source, destination = hosts[hook.rank], hosts[(hook.rank + distance) % len(hosts)]
        else:
            source, destination = hosts[(hook.rank - distance) % len(hosts)], hosts[hook.rank]
        families = [ipaddress.ip_address(one).version for one in source.addresses(topology.family)]
        # With both IP versions every other host probes the second one.
        for family in families if hook.rank % 2 == 0 else reversed(families):
            yield source, destination, family


def addresses(flow: Flow) -> tuple[str, str]:
    source, destination = flow.source, flow.destination
    return (source.ipv4, destination.ipv4) if flow.family == 4 else (source.ipv6, destination.ipv6)


def taken_by(rules: tuple[Rule, ...], flow: Flow) -> Rule | None:
    """The first rule that matches this flow's packets, as the backends decide it."""
    return next((rule for rule in rules if is_about(rule, flow)), None)


def is_about(rule: Rule, flow: Flow) -> bool:
    match = rule.match
    source, destination = addresses(flow)
    if not matches_addresses(match, source=source, destination=destination):
        return False
    if match.protocol and match.protocol != flow.protocol:
        return False
    if match.dscp is not None and match.dscp != flow.dscp:
        return False
    if match.source_ports and flow.source_port not in match.source_ports:
        return False
    if match.destination_ports and flow.destination_port not in match.destination_ports:
        return False
    if match.datagram is None:
        return not isinstance(rule.profile.loss, BlockLoss) or flow.protocol == "udp"
    return flow.protocol == "udp" and _matches_header(match.datagram, flow)


def _matches_header(wanted: DatagramMatch, flow: Flow) -> bool:
    return (
        flow.kind in wanted.kinds
        and (not wanted.halves or flow.half in [contract.HALVES[h] for h in wanted.halves])
        and (wanted.steps is None or wanted.steps[0] <= flow.step < wanted.steps[1])
        and (wanted.blocks is None or wanted.blocks[0] <= flow.block < wanted.blocks[1])
    )
