"""What must not be done to an interface, and what is never lost on it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lossbench.errors import NotAbleError
from lossbench.net.nic.facts import Facts
from lossbench.net.nic.way.programs import Protected
from lossbench.net.tc.hook import Side

SSH_PORT = 22
FIRST = 1


def refuse(facts: Facts, sides: Sequence[Side], *, this_nic: bool, past_rdma: bool = False) -> None:
    """Before anything is changed, with what to do instead."""
    for reason, step in reasons(facts, sides, this_nic=this_nic, past_rdma=past_rdma):
        raise NotAbleError(f"{facts.name}: {reason}", next_step=step)


def reasons(facts: Facts, sides: Sequence[Side], *, this_nic: bool, past_rdma: bool) -> list[tuple[str, str]]:
    """(why not, what to do); for whoever only looks, too."""
    out = []
    if facts.loopback or not facts.ethernet:
        out.append(("no Ethernet interface", "choose one with a wire: ip -br link"))
    if facts.master:
        out.append((f"a member of {facts.master}: its packets may go past it", "name the interface above it"))
    if facts.rdma and not past_rdma:
        text = f"RDMA device {', '.join(facts.rdma)}: that traffic never meets a qdisc and could not be lost"
        out.append((text, "--past-rdma, in lab.toml past_rdma = true, if only TCP/IP is meant (NCCL_IB_DISABLE=1)"))
    if facts.hardware_tc:
        at = facts.at.get("hardware_tc", facts.name)
        out.append((f"tc is offloaded to its hardware{_below(facts, at)}", f"ethtool -K {at} hw-tc-offload off"))
    if facts.lro and "ingress" in sides:
        at = facts.at.get("lro", facts.name)
        text = f"large receive offload{_below(facts, at)} merges packets for good: the wire's can't be told any more"
        out.append((text, f"ethtool -K {at} lro off"))
    if facts.xdp and "ingress" in sides:
        text = f"an XDP program{_below(facts, facts.at.get('xdp', facts.name))} may take packets before any filter"
        out.append((f"{text} sees them", "--side egress, or detach it"))
    if facts.old_ingress and "egress" in sides:
        text = "it has an ingress qdisc, which leaves no room for clsact, and it is not ours to replace"
        out.append((text, "--side ingress"))
    for side in sides:
        if facts.ahead.get(side):
            out.append((f"{facts.ahead[side]} tcx programs of others stand ahead at {side}", "detach them first"))
        if free_priority(facts, side) is None:
            text = f"a filter of others has priority 1 at {side}: packets led aside behind it would meet it twice"
            out.append((text, "give it a higher priority number, or choose the other --side"))
    if (facts.default_route or facts.ssh_here) and not this_nic:
        what = "your SSH session runs over it" if facts.ssh_here else "it holds the default route"
        step = "--yes-this-nic (of a lab: --yes-these-nics) if you mean it"
        out.append((what, f"{step} (SSH, ARP, ND, DHCP, DNS and the gateway are never touched)"))
    return out


def _below(facts: Facts, at: str) -> str:
    """Where it is, if it is on a device below."""
    return f" (of {at}, below it)" if at != facts.name else ""


def free_priority(facts: Facts, side: Side) -> int | None:
    """Ahead of everybody else's, also of those that come later; None if it is taken."""
    return None if any(one.priority == FIRST for one in facts.filters.get(side, ())) else FIRST


def protected(facts: Facts, also: tuple[int, ...] = ()) -> Protected:
    """The gateways themselves, the ports of `also`, and SSH: of the server that the operator came through, and of the
    usual port, since a terminal multiplexer has forgotten who came how."""
    ports = {SSH_PORT, *also} | ({facts.ssh.server_port} if facts.ssh is not None else set())
    return Protected(ssh_ports=tuple(sorted(ports)), gateways=facts.gateways)
