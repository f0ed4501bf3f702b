"""Whose packets a socket takes: a filter in the kernel, so that a stranger's flood does not fill the buffer of a rank.

Packets of others never reach the queue. Whatever came before the filter stood, or where none can be set, is checked
again by the pump: this is about room, that is about truth."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterable

SO_ATTACH_FILTER = 26
NETWORK_HEADER, ALL_BITS = -0x100000, 0xFFFFFFFF
LOAD_WORD, LOAD_HALF, IF_EQUAL, RETURN = 0x20, 0x28, 0x15, 0x06
SOURCE_AT = {int(socket.AF_INET): 12, int(socket.AF_INET6): 8}
MOST_INSTRUCTIONS, INSTRUCTION_BYTES = 4096, 8


def program(family: int, peers: Iterable[tuple[str, int]]) -> bytes:
    """Classic BPF over a datagram: it begins with the UDP header, the source port in front."""
    out = b""
    for address, port in peers:
        checks = [(LOAD_HALF, 0, port)]
        packed = socket.inet_pton(family, address)
        for at in range(0, len(packed), 4):
            place = (NETWORK_HEADER + SOURCE_AT[family] + at) & ALL_BITS
            checks.append((LOAD_WORD, place, int.from_bytes(packed[at : at + 4], "big")))
        for number, (load, offset, value) in enumerate(checks):
            behind = 2 * (len(checks) - number - 1) + 1  # to the next peer
            out += struct.pack("=HBBI", load, 0, 0, offset) + struct.pack("=HBBI", IF_EQUAL, 0, behind, value)
        out += struct.pack("=HBBI", RETURN, 0, 0, ALL_BITS)
    return out + struct.pack("=HBBI", RETURN, 0, 0, 0)


def admit_only(one: socket.socket, peers: Iterable[tuple[str, int]]) -> bool:
    """False if this machine takes no such filter."""
    code = program(one.family, peers)
    count = len(code) // INSTRUCTION_BYTES
    if count > MOST_INSTRUCTIONS:
        return False
    room = ctypes.create_string_buffer(code, len(code))
    try:
        one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", count, ctypes.addressof(room)))
    except OSError:
        return False
    return True
