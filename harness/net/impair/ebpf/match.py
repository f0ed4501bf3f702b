"""Code that reads a packet's headers and sorts it to a rule, for the eBPF programs."""

from __future__ import annotations

import ipaddress

from lossbench import contract
from lossbench.net.bpf.assembler import FP, R0, R1, R2, R3, R4, R6, R7, SKB_LOAD_BYTES, Assembler, Reg
from lossbench.spec.losses import BlockLoss
from lossbench.spec.placement import Rule
from lossbench.spec.profile import DatagramMatch, Match

# What is parsed from the packet, at fixed places of the stack (u32 each unless said).
SCRATCH = -40  # 40 bytes to load headers into
PROTOCOL, SPORT, DPORT, DSCP, FAMILY = -44, -48, -52, -56, -60
SOURCE, DESTINATION = -80, -96  # 16 bytes each
_OURS = -100
HEADER = -144  # the 40 bytes of our datagram header
SAVED = -152
NOW = -160  # u64: when the packet came, for rules with a window

_SKB_PROTOCOL = 16
ETHERNET_HEADER = 14
_ETH_P_IP, _ETH_P_IPV6 = 0x0008, 0xDD86  # as they stand in skb->protocol on a little-endian machine
IPPROTO = {"tcp": 6, "udp": 17}
HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS = 0, 43, 60  # headers between IPv6's and the transport's
EXTENSIONS = 4  # of them are looked past


def emit_parse(a: Assembler) -> None:
    """Fill the stack's places from the packet's headers; what is not there stays at a value nothing matches."""
    for place in (PROTOCOL, SPORT, DPORT, DSCP):
        a.store_number(4, FP, place, -1)
    a.store_number(4, FP, FAMILY, 0)
    a.store_number(4, FP, _OURS, 0)
    for place in range(0, 32, 4):
        a.store_number(4, FP, DESTINATION + place, 0)
    for place in range(0, contract.HEADER_BYTES, 8):
        a.store_number(8, FP, HEADER + place, 0)
    a.load(4, R0, R6, _SKB_PROTOCOL)
    a.jump_if("eq", R0, _ETH_P_IP, "ipv4")
    a.jump_if("ne", R0, _ETH_P_IPV6, "parsed")
    _emit_parse_ipv6(a)
    a.jump("transport")
    a.label("ipv4")
    _emit_parse_ipv4(a)
    a.label("transport")
    _emit_parse_transport(a)
    a.label("parsed")


def _emit_parse_ipv6(a: Assembler) -> None:
    """Leaves the transport header's offset in r7."""
    _emit_load(a, offset=0, count=40, into=SCRATCH)
    a.store_number(4, FP, FAMILY, 6)
    a.load(2, R0, FP, SCRATCH)
    a.from_big_endian(R0, 16)
    a.alu("rsh", R0, 6)
    a.alu("and", R0, 63)
    a.store(4, FP, DSCP, R0)
    a.load(1, R0, FP, SCRATCH + 6)
    a.store(4, FP, PROTOCOL, R0)
    for word in range(0, 16, 4):
        a.load(4, R0, FP, SCRATCH + 8 + word)
        a.store(4, FP, SOURCE + word, R0)
        a.load(4, R0, FP, SCRATCH + 24 + word)
        a.store(4, FP, DESTINATION + word, R0)
    a.mov(R7, 40)
    for number in range(EXTENSIONS):
        _emit_skip_extension(a, f"extension{number}")


def _emit_skip_extension(a: Assembler, here: str) -> None:
    """Options and routing say what follows them, and how long they are; pieces (44) hide it."""
    a.load(4, R0, FP, PROTOCOL)
    a.jump_if("eq", R0, HOP_BY_HOP, here)
    a.jump_if("eq", R0, ROUTING, here)
    a.jump_if("ne", R0, DESTINATION_OPTIONS, "transport")
    a.label(here)
    _emit_load(a, offset=R7, count=2, into=SCRATCH)
    a.load(1, R0, FP, SCRATCH)
    a.store(4, FP, PROTOCOL, R0)
    a.load(1, R0, FP, SCRATCH + 1)
    a.alu("add", R0, 1)
    a.alu("lsh", R0, 3)
    a.alu("add", R7, R0)


def _emit_parse_ipv4(a: Assembler) -> None:
    _emit_load(a, offset=0, count=20, into=SCRATCH)
    a.store_number(4, FP, FAMILY, 4)
    a.load(1, R0, FP, SCRATCH + 1)
    a.alu("rsh", R0, 2)
    a.store(4, FP, DSCP, R0)
    a.load(1, R0, FP, SCRATCH + 9)
    a.store(4, FP, PROTOCOL, R0)
    a.load(4, R0, FP, SCRATCH + 12)
    a.store(4, FP, SOURCE, R0)
    a.load(4, R0, FP, SCRATCH + 16)
    a.store(4, FP, DESTINATION, R0)
    a.load(2, R0, FP, SCRATCH + 6)
    a.from_big_endian(R0, 16)
    a.jump_if("set", R0, 0x1FFF, "parsed")  # a later fragment has no ports
    a.load(1, R7, FP, SCRATCH)
    a.alu("and", R7, 15)
    a.alu("lsh", R7, 2)


def _emit_parse_transport(a: Assembler) -> None:
    a.load(4, R0, FP, PROTOCOL)
    a.jump_if("eq", R0, IPPROTO["tcp"], "ports")
    a.jump_if("ne", R0, IPPROTO["udp"], "parsed")
    a.label("ports")
    _emit_load(a, offset=R7, count=4, into=SCRATCH)
    for place, at in ((SPORT, 0), (DPORT, 2)):
        a.load(2, R0, FP, SCRATCH + at)
        a.from_big_endian(R0, 16)
        a.store(4, FP, place, R0)
    a.load(4, R0, FP, PROTOCOL)
    a.jump_if("ne", R0, IPPROTO["udp"], "parsed")
    a.alu("add", R7, 8)
    _emit_load(a, offset=R7, count=contract.HEADER_BYTES, into=HEADER)
    a.load(2, R0, FP, HEADER)
    a.jump_if("ne", R0, contract.MAGIC, "parsed")
    a.load(1, R0, FP, HEADER + contract.HEADER_FIELDS["version"][0])
    a.jump_if("ne", R0, contract.VERSION, "parsed")
    a.store_number(4, FP, _OURS, 1)


def _emit_load(a: Assembler, *, offset: int | Reg, count: int, into: int) -> None:
    """Copy bytes counted from the network header; a packet that is too short ends parsing. Of a packet cut from a
    super-packet only the headers lie in one piece: this helper also reads the rest, the relative one does not."""
    a.mov(R1, R6)
    a.mov(R2, offset)
    a.alu("add", R2, ETHERNET_HEADER)
    a.mov(R3, FP)
    a.alu("add", R3, into)
    a.mov(R4, count)
    a.call(SKB_LOAD_BYTES)
    a.jump_if("ne", R0, 0, "parsed")


def emit_match(a: Assembler, rule: Rule, *, otherwise: str) -> None:
    """Jump to `otherwise` unless the packet is this rule's."""
    match: Match = rule.match
    if match.protocol:
        a.load(4, R0, FP, PROTOCOL)
        a.jump_if("ne", R0, IPPROTO[match.protocol], otherwise)
    if match.dscp is not None:
        a.load(4, R0, FP, DSCP)
        a.jump_if("ne", R0, match.dscp, otherwise)
    for place, ports in ((SPORT, match.source_ports), (DPORT, match.destination_ports)):
        if ports:
            a.load(4, R0, FP, place)
            _emit_one_of(a, R0, ports, prefix=f"{otherwise}_{place}", otherwise=otherwise)
    for place, networks in ((SOURCE, match.sources), (DESTINATION, match.destinations)):
        if networks:
            emit_within(a, place, networks, prefix=f"{otherwise}_a{place}", otherwise=otherwise)
    if match.datagram is not None or isinstance(rule.profile.loss, BlockLoss):
        _emit_match_header(a, rule, otherwise=otherwise)


def _emit_match_header(a: Assembler, rule: Rule, *, otherwise: str) -> None:
    wanted = rule.match.datagram or DatagramMatch()
    a.load(4, R0, FP, _OURS)
    a.jump_if("eq", R0, 0, otherwise)
    for name, values in (
        ("kind", tuple(contract.KINDS[k] for k in wanted.kinds)),
        ("half", tuple(contract.HALVES[h] for h in wanted.halves)),
    ):
        if values:
            a.load(1, R0, FP, HEADER + contract.HEADER_FIELDS[name][0])
            _emit_one_of(a, R0, values, prefix=f"{otherwise}_{name}", otherwise=otherwise)
    for name, limits in (("step", wanted.steps), ("block", wanted.blocks)):
        if limits is not None:
            a.load(4, R0, FP, HEADER + contract.HEADER_FIELDS[name][0])
            for condition, limit in (("lt", limits[0]), ("ge", limits[1])):
                a.constant(R1, limit)
                a.jump_if(condition, R0, R1, otherwise)


def _emit_one_of(a: Assembler, value: Reg, allowed: tuple[int, ...], *, prefix: str, otherwise: str) -> None:
    for number in allowed:
        a.jump_if("eq", value, number, f"{prefix}_yes")
    a.jump(otherwise)
    a.label(f"{prefix}_yes")


def emit_within(a: Assembler, place: int, networks: tuple[str, ...], *, prefix: str, otherwise: str) -> None:
    """Is the address at this place of the stack in one of the networks? Words are compared as they lie in memory."""
    for number, text in enumerate(networks):
        network = ipaddress.ip_network(text)
        next_one = f"{prefix}_{number}"
        a.load(4, R0, FP, FAMILY)
        a.jump_if("ne", R0, network.version, next_one)
        address, mask = network.network_address.packed, network.netmask.packed
        for at in range(0, len(address), 4):
            wanted, bits = (int.from_bytes(raw[at : at + 4], "little") for raw in (address, mask))
            if not bits:
                continue
            a.load(4, R0, FP, place + at)
            if bits != 0xFFFFFFFF:
                a.constant(R1, bits)
                a.alu("and", R0, R1)
            a.constant(R1, wanted)
            a.jump_if("ne", R0, R1, next_one)
        a.jump(f"{prefix}_yes")
        a.label(next_one)
    a.jump(otherwise)
    a.label(f"{prefix}_yes")
