"""An experiment's rules as the workload draws them itself (lossbench.workloads.sync.channels.simulated)."""

from __future__ import annotations

import ipaddress
from typing import Any

from lossbench.contract import HALVES
from lossbench.errors import NotAbleError
from lossbench.spec import lossmodel
from lossbench.spec.experiment import Experiment, Impair
from lossbench.spec.losses import BlockLoss
from lossbench.spec.topology import Topology


def layers(experiment: Experiment) -> list[list[dict[str, Any]]]:
    """Rules for lossbench.workloads.sync.channels.simulated: uplinks, then downlinks; later entries come first."""
    if experiment.topology.uplink_mbit() or experiment.topology.downlink_mbit():
        raise NotAbleError("the simulation has no rates", next_step="drop topology.rate_mbit, or use --backend auto")
    if experiment.topology.mtu != 1500:
        raise NotAbleError("the simulation cuts packets for an MTU of 1500", next_step="drop topology.mtu")
    out: list[list[dict[str, Any]]] = [[], []]
    for number, entry in enumerate(experiment.impair):
        refuse(entry, number)
        for depth, direction in enumerate(("uplink", "downlink")):
            if direction in entry.directions():
                out[depth] = [*_rules(entry, direction, experiment.topology), *out[depth]]
    return out


def refuse(entry: Impair, number: int) -> None:
    """What only a network can do."""
    profile, match = entry.profile, entry.profile.match
    reason = None
    if profile.chain() is None and not isinstance(profile.loss, BlockLoss):
        reason = "this loss model"
    elif match.protocol == "tcp" or match.source_ports or match.destination_ports or match.dscp is not None:
        reason = "ports, protocols or DSCP"
    elif entry.from_s is not None or entry.to_s is not None:
        reason = "times in seconds (steps it can)"
    elif any((profile.delay, profile.slot, profile.duplicate_percent, profile.corrupt_percent, profile.rate_mbit)):
        reason = "anything but loss"
    if reason is not None:
        raise NotAbleError(
            f"impair.{number} ({profile.name}): the simulation has no {reason}",
            next_step="use a real network: --backend auto",
        )


def _rules(entry: Impair, direction: str, topology: Topology) -> list[dict[str, Any]]:
    profile, datagram = entry.profile, entry.profile.match.datagram
    chain = profile.chain() or lossmodel.iid(0.0)  # none where whole blocks are drawn
    base: dict[str, Any] = {
        "chain": [[[o.probability, o.next_state, o.loss] for o in state] for state in chain.states],
        "block_loss": profile.loss.percent / 100 if isinstance(profile.loss, BlockLoss) else None,
        "sources": _ranks(profile.match.sources, topology),
        "destinations": _ranks(profile.match.destinations, topology),
        "steps": _steps(entry),
    }
    if datagram is not None:
        base["halves"] = [HALVES[half] for half in datagram.halves] or None
        base["blocks"] = datagram.blocks
    if entry.pairs:
        pairs = [(topology.host(a).rank, topology.host(b).rank) for a, b in entry.pairs]
        return [{**base, "sources": [a], "destinations": [b]} for a, b in pairs]
    if entry.hosts != "all":
        end = "sources" if direction == "uplink" else "destinations"
        named = [topology.host(host).rank for host in entry.hosts]
        base[end] = [rank for rank in named if base[end] is None or rank in base[end]]
    return [base]


def _steps(entry: Impair) -> tuple[int, int] | None:
    named = entry.profile.match.datagram.steps if entry.profile.match.datagram else None
    ranges = [r for r in (named, (entry.from_step or 0, entry.to_step or 2**31)) if r]
    low, high = max(r[0] for r in ranges), min(r[1] for r in ranges)
    return None if (low, high) == (0, 2**31) else (low, high)


def _ranks(places: tuple[str, ...], topology: Topology) -> list[int] | None:
    """Host names or addresses as ranks."""
    if not places:
        return None
    out = []
    for host in topology.all_hosts():
        addresses = [ipaddress.ip_address(a) for a in host.addresses(topology.family)]
        nets = [ipaddress.ip_network(p) for p in places if not p.startswith("h")]
        if host.name in places or any(a in net for a in addresses for net in nets if a.version == net.version):
            out.append(host.rank)
    return out
