"""The code at the gate and behind it.

1 gate, at the NIC: a packet that came back passes; past the deadline everything does; what must never be lost does (the
  operator's SSH, ARP, ND, DHCP, DNS, the gateway); of the rest what was asked for is led to A.
2 A is a veth without offloads: what leaves it is cut to the MTU, as on the wire; and a drop behind it is not
  reported to the sender, as none on a wire is.
3 at B the rules decide (backend ebpf), or lead a rule's packets to its own pair C and D, where C's qdisc is netem.
4 onward: back to the NIC, on the side where it was taken.

`tc_index` tells a packet that was taken from one that is back, and both from what somebody else sends on our devices.
The deadline is the kernel's own: nobody has to be alive for the loss to end.
"""

from __future__ import annotations

from dataclasses import dataclass

from lossbench.net.bpf.assembler import (
    FP,
    KTIME_GET_BOOT_NS,
    R0,
    R1,
    R2,
    R3,
    R4,
    R6,
    R9,
    REDIRECT,
    SKB_LOAD_BYTES,
    Assembler,
)
from lossbench.net.impair.ebpf.match import (
    DESTINATION,
    DPORT,
    DSCP,
    ETHERNET_HEADER,
    FAMILY,
    IPPROTO,
    PROTOCOL,
    SCRATCH,
    SOURCE,
    SPORT,
    emit_parse,
    emit_within,
)
from lossbench.net.nic.way.clock import Fds, counter_at
from lossbench.net.tc.hook import Side

PASS, DROP = -1, 2  # TC_ACT_UNSPEC: filters of others still see it; TC_ACT_SHOT
TAKEN, BACK = 0x6C00, 0x6D00  # in tc_index; the low byte is the packet's priority, which a veth forgets
INGRESS_FLAG = 1  # of bpf_redirect: received, not sent
_PRIORITY, _TC_INDEX, _GSO_SEGMENTS = 32, 44, 164  # in struct __sk_buff
_MOST_PRIORITY = 0xFF
_ICMPV6, _ND_FIRST, _ND_LAST = 58, 130, 143  # with multicast listeners' reports
_DNS, _DHCP = 53, (67, 68, 546, 547)
_IPV6_EXTENSIONS = (0, 43, 44, 60)  # hop by hop (multicast listeners'), routing, fragments, options


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Which packets are asked for; what is not said means all."""

    peers: tuple[str, ...] = ()  # networks of the other end
    own: tuple[str, ...] = ()  # what comes must be for these: no broadcast, no multicast
    ports: tuple[tuple[int, int], ...] = ()  # from, to: of either end
    dscp: int | None = None
    protocol: str | None = None


@dataclass(frozen=True, kw_only=True)
class Protected:
    """What is never touched, whatever was asked."""

    ssh_ports: tuple[int, ...] = (22,)
    gateways: tuple[str, ...] = ()


def gate(*, fds: Fds, side: Side, to: int, traffic: Traffic, protected: Protected) -> bytes:
    """`to` 0: what was asked for is counted, and passes."""
    a = Assembler()
    a.mov(R6, R1)
    a.load(4, R0, R6, _TC_INDEX)
    a.mov(R1, R0)
    a.alu("and", R1, 0xFF00)
    a.jump_if("ne", R1, BACK, "fresh")
    a.alu("and", R0, _MOST_PRIORITY)
    a.store(4, R6, _PRIORITY, R0)
    a.mov(R0, 0)
    a.store(4, R6, _TC_INDEX, R0)
    _count_and_pass(a, fds.counts, side, "returned")
    a.label("fresh")
    a.call(KTIME_GET_BOOT_NS)
    a.map_value(R9, fds.deadline)
    a.load(8, R1, R9)
    a.jump_if("lt", R0, R1, "in_time")
    _count_and_pass(a, fds.counts, side, "expired")
    a.label("in_time")
    emit_parse(a)
    _protect(a, protected)
    _asked_for(a, traffic, peer=DESTINATION if side == "egress" else SOURCE)
    if side == "ingress" and traffic.own:
        emit_within(a, DESTINATION, traffic.own, prefix="own", otherwise="other")
    _count_taken(a, fds.counts, side)
    if to:
        _lead_aside(a, to)
    else:
        a.exit(PASS)
    a.label("protected")
    _count_and_pass(a, fds.counts, side, "protected")
    if traffic != Traffic():  # nothing leads there else, and the verifier refuses dead code
        a.label("other")
        _count_and_pass(a, fds.counts, side, "other")
    return a.assemble()


def _lead_aside(a: Assembler, to: int) -> None:
    a.load(4, R0, R6, _PRIORITY)
    a.jump_if("le", R0, _MOST_PRIORITY, "kept")
    a.mov(R0, 0)
    a.label("kept")
    a.alu("or", R0, TAKEN)
    a.store(4, R6, _TC_INDEX, R0)
    _redirect(a, to, 0)


def _protect(a: Assembler, protected: Protected) -> None:
    """Jumps to "protected"; what is no IP (ARP, LLDP, a VLAN's) is."""
    a.load(4, R0, FP, FAMILY)
    a.jump_if("eq", R0, 0, "protected")
    _fragments(a)
    _neighbour_discovery(a)
    for place in (SPORT, DPORT):
        a.load(4, R0, FP, place)
        for port in (_DNS, *_DHCP):
            a.jump_if("eq", R0, port, "protected")
    a.load(4, R0, FP, PROTOCOL)
    a.jump_if("ne", R0, IPPROTO["tcp"], "no_ssh")
    for place in (SPORT, DPORT):
        a.load(4, R0, FP, place)
        for port in protected.ssh_ports:
            a.jump_if("eq", R0, port, "protected")
    a.label("no_ssh")
    for place in (SOURCE, DESTINATION) if protected.gateways else ():
        emit_within(a, place, protected.gateways, prefix=f"gateway{place}", otherwise=f"no_gateway{place}")
        a.jump("protected")
        a.label(f"no_gateway{place}")


def _fragments(a: Assembler) -> None:
    """A later fragment has no ports: whether it belongs to what is protected can't be told. Nor can it behind IPv6's
    extension headers. (r0: the family)"""
    a.jump_if("eq", R0, 4, "fragment4")
    _load(a, 6, 1)  # what stands first: PROTOCOL is what follows the extensions
    a.load(1, R0, FP, SCRATCH)
    for header in _IPV6_EXTENSIONS:
        a.jump_if("eq", R0, header, "protected")
    a.jump("whole")
    a.label("fragment4")
    _load(a, 6, 2)
    a.load(2, R0, FP, SCRATCH)
    a.from_big_endian(R0, 16)
    a.jump_if("set", R0, 0x1FFF, "protected")
    a.label("whole")


def _load(a: Assembler, at: int, count: int) -> None:
    """Bytes behind the Ethernet header; a packet that is too short is nobody's to lose."""
    a.mov(R1, R6)
    a.mov(R2, ETHERNET_HEADER + at)
    a.mov(R3, FP)
    a.alu("add", R3, SCRATCH)
    a.mov(R4, count)
    a.call(SKB_LOAD_BYTES)
    a.jump_if("ne", R0, 0, "protected")


def _neighbour_discovery(a: Assembler) -> None:
    a.load(4, R0, FP, PROTOCOL)
    a.jump_if("ne", R0, _ICMPV6, "no_nd")
    _load(a, 40, 1)
    a.load(1, R0, FP, SCRATCH)
    a.jump_if("lt", R0, _ND_FIRST, "no_nd")
    a.jump_if("le", R0, _ND_LAST, "protected")
    a.label("no_nd")


def _asked_for(a: Assembler, traffic: Traffic, *, peer: int) -> None:
    """Jumps to "other" unless the packet is."""
    if traffic.protocol:
        a.load(4, R0, FP, PROTOCOL)
        a.jump_if("ne", R0, IPPROTO[traffic.protocol], "other")
    if traffic.dscp is not None:
        a.load(4, R0, FP, DSCP)
        a.jump_if("ne", R0, traffic.dscp, "other")
    if traffic.peers:
        emit_within(a, peer, traffic.peers, prefix="peers", otherwise="other")
    if traffic.ports:
        for place in (SPORT, DPORT):
            a.load(4, R0, FP, place)
            a.jump_if("gt", R0, 0xFFFF, "other")  # no port at all
            for number, (first, last) in enumerate(traffic.ports):
                a.jump_if("lt", R0, first, f"below{place}_{number}")
                a.jump_if("le", R0, last, "ports_yes")
                a.label(f"below{place}_{number}")
        a.jump("other")
        a.label("ports_yes")


def onward(*, nic: int, side: Side) -> bytes:
    """At the end of the detour."""
    a = Assembler()
    _ours_only(a)
    _emit_onward(a, nic, side)
    return a.assemble()


def _ours_only(a: Assembler) -> None:
    """What a network manager sends on our devices must never reach the NIC."""
    a.mov(R6, R1)
    a.load(4, R0, R6, _TC_INDEX)
    a.alu("and", R0, 0xFF00)
    a.jump_if("eq", R0, TAKEN, "ours")
    a.exit(DROP)
    a.label("ours")


def _emit_onward(a: Assembler, nic: int, side: Side) -> None:
    a.load(4, R0, R6, _TC_INDEX)
    a.alu("and", R0, _MOST_PRIORITY)
    a.alu("or", R0, BACK)
    a.store(4, R6, _TC_INDEX, R0)
    _redirect(a, nic, INGRESS_FLAG if side == "ingress" else 0)


def _redirect(a: Assembler, device: int, flags: int) -> None:
    a.mov(R1, device)
    a.mov(R2, flags)
    a.call(REDIRECT)
    a.exit(None)


def _count_taken(a: Assembler, map_fd: int, side: Side) -> None:
    """As packets of the wire: one that is cut behind us, or was merged before us, counts as its segments."""
    a.load(4, R1, R6, _GSO_SEGMENTS)
    a.jump_if("ne", R1, 0, "segments")
    a.mov(R1, 1)
    a.label("segments")
    a.map_value(R9, map_fd, counter_at(side, "taken"))
    a.atomic_add(R9, 0, R1)


def _count(a: Assembler, map_fd: int, side: Side, name: str) -> None:
    a.map_value(R9, map_fd, counter_at(side, name))
    a.mov(R1, 1)
    a.atomic_add(R9, 0, R1)


def _count_and_pass(a: Assembler, map_fd: int, side: Side, name: str) -> None:
    _count(a, map_fd, side, name)
    a.exit(PASS)
