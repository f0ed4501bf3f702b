"""Who is where on the links, entered by hand: nobody has to ask, so nothing but the experiment's packets is ever on
the data links, and no link depends on the kernel's table of learned neighbours, which holds 1024 for all namespaces."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

NUD_PERMANENT = 0x80
TRAIN = 100
RTM_NEWNEIGH, NLM_F_REQUEST_ACK_CREATE_REPLACE = 28, 0x1 | 0x4 | 0x400 | 0x100
NDA_DST, NDA_LLADDR, NLMSG_ERROR = 1, 2, 2


def add_neighbours(interface_index: int, known: Sequence[tuple[str, str]]) -> None:
    """Permanent entries (address, hardware address) in netlink message trains: 64 x 64 single calls would take seconds.
    A longer train's answers would not fit the socket."""
    messages = [
        _neighbour_message(interface_index, socket.AF_INET6 if ":" in address else socket.AF_INET, address, mac)
        for address, mac in known
    ]
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as channel:
        channel.bind((0, 0))
        for first in range(0, len(messages), TRAIN):
            some = messages[first : first + TRAIN]
            channel.send(b"".join(some))
            _check_acknowledgements(channel, count=len(some))


def _neighbour_message(index: int, family: int, address: str, mac: str) -> bytes:
    packed = socket.inet_pton(family, address)
    body = struct.pack("<BBHiHBB", family, 0, 0, index, NUD_PERMANENT, 0, 0)
    body += struct.pack("<HH", 4 + len(packed), NDA_DST) + packed
    body += struct.pack("<HH", 10, NDA_LLADDR) + bytes.fromhex(mac.replace(":", "")) + b"\0\0"
    return struct.pack("<IHHII", 16 + len(body), RTM_NEWNEIGH, NLM_F_REQUEST_ACK_CREATE_REPLACE, 1, 0) + body


def _check_acknowledgements(channel: socket.socket, *, count: int) -> None:
    while count:
        reply, at = channel.recv(1 << 16), 0
        while at < len(reply):
            length, kind = struct.unpack_from("<IH", reply, at)
            code = struct.unpack_from("<i", reply, at + 16)[0] if kind == NLMSG_ERROR else 0
            if code:
                raise OSError(-code, "the kernel refused a neighbour entry")
            at += -(-length // 4) * 4
            count -= 1
