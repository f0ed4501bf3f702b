"""Who is where on the links, entered by hand: nobody has to ask, so nothing but the experiment's packets is ever on
the data links, and no link depends on the kernel's table of learned neighbours, which holds 1024 for all namespaces.
And where nobody is: a link that asks nobody would send what is for an absent host to itself. It goes to a port of the
switch that leads nowhere, and is counted there."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network, summarize_address_range

from lossbench.spec.topology import NOWHERE_MAC

NUD_PERMANENT = 0x80
TRAIN = 100
RTM_NEWNEIGH, NLM_F_REQUEST_ACK_CREATE_REPLACE = 28, 0x1 | 0x4 | 0x400 | 0x100
NDA_DST, NDA_LLADDR, NLMSG_ERROR = 1, 2, 2
RTM_NEWROUTE, RTA_DST, RTA_OIF, RTA_GATEWAY = 24, 1, 4, 5
RT_TABLE_MAIN, RTPROT_STATIC, RTN_UNICAST, RTNH_F_ONLINK = 254, 4, 1, 4
NOWHERE = {4: "169.254.77.77", 6: "fe80::6c6f:7373"}  # routers of the links that there are none of


def add_neighbours(interface_index: int, known: Sequence[tuple[str, str]]) -> None:
    """Permanent entries (address, hardware address) in netlink message trains: 64 x 64 single calls would take seconds.
    A longer train's answers would not fit the socket."""
    messages = [
        _neighbour_message(interface_index, socket.AF_INET6 if ":" in address else socket.AF_INET, address, mac)
        for address, mac in known
    ]
    _send(messages)


def lead_nowhere(interface_index: int, networks: Sequence[IPv4Network | IPv6Network]) -> None:
    """Packets to these addresses go on the link, as to a router."""
    add_neighbours(interface_index, [(NOWHERE[one], NOWHERE_MAC) for one in {network.version for network in networks}])
    _send([_route_message(interface_index, network) for network in networks])


def where_nobody_is(known: Sequence[str], prefix: int) -> list[IPv4Network | IPv6Network]:
    """The rest of the network that these addresses are in, in as few pieces as there are."""
    network = ip_network(f"{known[0]}/{prefix}", strict=False)
    kind, here = type(network.network_address), sorted(int(ip_address(one)) for one in known)
    first, last = int(network.network_address), int(network.broadcast_address)
    gaps = zip((first, *(one + 1 for one in here)), (*(one - 1 for one in here), last), strict=True)
    return [piece for low, high in gaps if low <= high for piece in summarize_address_range(kind(low), kind(high))]


def _send(messages: list[bytes]) -> None:
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


def _route_message(index: int, network: IPv4Network | IPv6Network) -> bytes:
    family = socket.AF_INET6 if network.version == 6 else socket.AF_INET
    body = struct.pack(
        "<8BI", family, network.prefixlen, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, 0, RTN_UNICAST, RTNH_F_ONLINK
    )
    for kind, value in (
        (RTA_DST, network.network_address.packed),
        (RTA_GATEWAY, socket.inet_pton(family, NOWHERE[network.version])),
        (RTA_OIF, struct.pack("<i", index)),
    ):
        body += struct.pack("<HH", 4 + len(value), kind) + value
    return struct.pack("<IHHII", 16 + len(body), RTM_NEWROUTE, NLM_F_REQUEST_ACK_CREATE_REPLACE, 1, 0) + body


def _check_acknowledgements(channel: socket.socket, *, count: int) -> None:
    while count:
        reply, at = channel.recv(1 << 16), 0
        while at < len(reply):
            length, kind = struct.unpack_from("<IH", reply, at)
            code = struct.unpack_from("<i", reply, at + 16)[0] if kind == NLMSG_ERROR else 0
            if code:
                raise OSError(-code, "the kernel refused a neighbour or a route")
            at += -(-length // 4) * 4
            count -= 1
