"""Classic BPF for cls_bpf: matching packets, and losing some of them. Plain numbers, no kernel call."""

from __future__ import annotations

import ipaddress
import struct
from typing import Any

from lossbench.spec.lossmodel import ONE, threshold
from lossbench.spec.placement import Rule
from lossbench.spec.profile import Match

NETWORK_HEADER, ANCILLARY = -0x100000, -0x1000
ANCILLARY_PROTOCOL, ANCILLARY_RANDOM = ANCILLARY + 0, ANCILLARY + 56
LOAD_BYTE, LOAD_HALF, LOAD_WORD, LOAD_HALF_AT_X = 0x30, 0x28, 0x20, 0x48
AND, SHIFT_LEFT, SHIFT_RIGHT, TO_X, RETURN = 0x54, 0x64, 0x74, 0x07, 0x06
IF_EQUAL, IF_GREATER_EQUAL, IF_SET, JUMP, LOAD_X_IMMEDIATE = 0x15, 0x35, 0x45, 0x05, 0x01
PASS, DROP = 0xFFFFFFFF, 2
MAX_INSTRUCTIONS, INSTRUCTION_BYTES = 4096, 8
ETHERTYPE = {4: 0x0800, 6: 0x86DD}
PROTOCOL_NUMBER = {"tcp": 6, "udp": 17}
PROTOCOL_AT = {4: 9, 6: 6}
ADDRESS_AT = {4: {"sources": 12, "destinations": 16}, 6: {"sources": 8, "destinations": 24}}


class _Code:
    """Instructions with forward labels."""

    def __init__(self) -> None:
        self._items: list[tuple[int, int, str, str]] = []
        self._labels: dict[str, int] = {}

    def add(self, code: int, value: int = 0, *, yes: str = "", no: str = "") -> None:
        self._items.append((code, value & 0xFFFFFFFF, yes, no))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._items)

    def assemble(self) -> bytes:
        """A conditional jump reaches 255 instructions; one that must go further jumps to a jump."""
        far: set[int] = set()
        while True:
            places = self._places(far)
            more = {at for at in range(len(self._items)) if at not in far and self._too_far(at, places)}
            if not more:
                break
            far |= more
        return b"".join(self._encoded(at, places, long=at in far) for at in range(len(self._items)))

    def _places(self, far: set[int]) -> list[int]:
        out = [0]
        for at in range(len(self._items)):
            out.append(out[-1] + (3 if at in far else 1))
        return out

    def _forward(self, at: int, places: list[int], name: str, *, after: int) -> int:
        """Instructions to skip from the place `after`; 0 to go on behind this item."""
        return places[self._labels[name] if name else at + 1] - after

    def _too_far(self, at: int, places: list[int]) -> bool:
        code, _, yes, no = self._items[at]
        return code != JUMP and any(self._forward(at, places, n, after=places[at] + 1) > 255 for n in (yes, no))

    def _encoded(self, at: int, places: list[int], *, long: bool) -> bytes:
        code, value, yes, no = self._items[at]
        here = places[at] + 1
        if code == JUMP:
            return struct.pack("<HBBI", code, 0, 0, self._forward(at, places, yes, after=here))
        if not long:
            return struct.pack("<HBBI", code, *(self._forward(at, places, n, after=here) for n in (yes, no)), value)
        out = struct.pack("<HBBI", code, 0, 1, value)
        for number, name in enumerate((yes, no), start=1):
            out += struct.pack("<HBBI", JUMP, 0, 0, self._forward(at, places, name, after=here + number))
        return out


def too_long(code: bytes) -> str | None:
    """Why the kernel would not take it."""
    count = len(code) // INSTRUCTION_BYTES
    return (
        f"{count} instructions of classic BPF ({MAX_INSTRUCTIONS} is the kernel's limit)"
        if count > MAX_INSTRUCTIONS
        else None
    )


def program(rules: tuple[Rule, ...]) -> bytes:
    """First match wins; what no rule takes passes."""
    code = _Code()
    for number, rule in enumerate(rules):
        families = _families(rule.match)
        for family in families:
            _emit_rule(code, rule, family, tag=f"{number}_{family}")
    code.add(RETURN, PASS)
    return code.assemble()


def _families(match: Match) -> list[int]:
    """0: any packet at all; else the IP versions to look into."""
    return [0] if match.is_everything() else [4, 6]


def _emit_rule(code: _Code, rule: Rule, family: int, *, tag: str) -> None:
    otherwise = f"next{tag}"
    if family:
        code.add(LOAD_HALF, ANCILLARY_PROTOCOL)
        code.add(IF_EQUAL, ETHERTYPE[family], no=otherwise)
        if not _emit_match(code, rule.match, family, tag=tag, otherwise=otherwise):
            code.label(otherwise)
            return
    limit = threshold(rule.profile.mean_loss())
    if limit < ONE:
        code.add(LOAD_WORD, ANCILLARY_RANDOM)
        code.add(IF_GREATER_EQUAL, limit, yes=f"pass{tag}")
    code.add(RETURN, DROP)
    code.label(f"pass{tag}")
    code.add(RETURN, PASS)
    code.label(otherwise)


def _emit_match(code: _Code, match: Match, family: int, *, tag: str, otherwise: str) -> bool:
    """False: no packet of this family can match."""
    for side in ("sources", "destinations"):
        networks = [ipaddress.ip_network(n) for n in getattr(match, side)]
        mine = [n for n in networks if n.version == family]
        if networks and not mine:
            return False
        if mine:
            _emit_within(code, mine, ADDRESS_AT[family][side], tag=f"{tag}{side}", otherwise=otherwise)
    if match.dscp is not None:
        code.add(LOAD_HALF, NETWORK_HEADER)
        code.add(SHIFT_RIGHT, 2 if family == 4 else 6)
        code.add(AND, 63)
        code.add(IF_EQUAL, match.dscp, no=otherwise)
    if match.protocol:
        code.add(LOAD_BYTE, NETWORK_HEADER + PROTOCOL_AT[family])
        code.add(IF_EQUAL, PROTOCOL_NUMBER[match.protocol], no=otherwise)
    if match.source_ports or match.destination_ports:
        _emit_ports(code, match, family, tag=tag, otherwise=otherwise)
    return True


def _emit_ports(code: _Code, match: Match, family: int, *, tag: str, otherwise: str) -> None:
    if not match.protocol:  # ports exist only in these two
        code.add(LOAD_BYTE, NETWORK_HEADER + PROTOCOL_AT[family])
        code.add(IF_EQUAL, PROTOCOL_NUMBER["tcp"], yes=f"l4{tag}")
        code.add(IF_EQUAL, PROTOCOL_NUMBER["udp"], no=otherwise)
        code.label(f"l4{tag}")
    if family == 4:
        code.add(LOAD_HALF, NETWORK_HEADER + 6)
        code.add(IF_SET, 0x1FFF, yes=otherwise)  # a later fragment has no ports
        code.add(LOAD_BYTE, NETWORK_HEADER)
        code.add(AND, 15)
        code.add(SHIFT_LEFT, 2)
        code.add(TO_X)
    else:
        code.add(LOAD_X_IMMEDIATE, 40)
    for offset, ports in ((0, match.source_ports), (2, match.destination_ports)):
        if ports:
            code.add(LOAD_HALF_AT_X, NETWORK_HEADER + offset)
            for port in ports:
                code.add(IF_EQUAL, port, yes=f"port{offset}{tag}")
            code.add(JUMP, yes=otherwise)
            code.label(f"port{offset}{tag}")


def _emit_within(code: _Code, networks: list[Any], at: int, *, tag: str, otherwise: str) -> None:
    for number, network in enumerate(networks):
        next_one = f"w{tag}{number}"
        address, mask = network.network_address.packed, network.netmask.packed
        for word in range(0, len(address), 4):
            bits = int.from_bytes(mask[word : word + 4], "big")
            if bits:
                code.add(LOAD_WORD, NETWORK_HEADER + at + word)
                code.add(AND, bits)
                code.add(IF_EQUAL, int.from_bytes(address[word : word + 4], "big"), no=next_one)
        code.add(JUMP, yes=f"in{tag}")
        code.label(next_one)
    code.add(JUMP, yes=otherwise)
    code.label(f"in{tag}")


def classifier(match: Match) -> bytes:
    """Matches (-1: take this filter's action) exactly the packets of a rule, for filters with an action."""
    code = _Code()
    for family in _families(match):
        if family:
            code.add(LOAD_HALF, ANCILLARY_PROTOCOL)
            code.add(IF_EQUAL, ETHERTYPE[family], no=f"next{family}")
            possible = _emit_match(code, match, family, tag=str(family), otherwise=f"next{family}")
            code.add(RETURN, PASS if possible else 0)
            code.label(f"next{family}")
        else:
            code.add(RETURN, PASS)
    code.add(RETURN, 0)
    return code.assemble()
