"""What the kernel counts and has in force, read many times a second.

pyroute2 builds and changes networks, and takes a millisecond for every message it reads; a watch over 64 hosts reads a
thousand of them at each look. A `Reader` asks, a `Monitor` is told of every change, by whomever.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from lossbench.net.host.place import Place
from lossbench.net.tc.rtnl_messages import (
    HEADER,
    LINKMSG,
    NLMSG_DONE,
    NLMSG_ERROR,
    RTM_GETLINK,
    RTM_GETQDISC,
    RTM_GETTCLASS,
    RTM_GETTFILTER,
    Change,
    Filter,
    HtbClass,
    Link,
    Qdisc,
    change_of,
    class_of,
    filter_of,
    link_of,
    messages,
    qdisc_of,
    tcmsg,
)

REQUEST, DUMP, DUMP_INTERRUPTED = 0x1, 0x300, 0x10
GROUP_LINK, GROUP_TC = 0x1, 0x8
GROUPS_STACK = 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18  # neighbours; addresses, routes, rules, IPv4 and IPv6
# Of what has a family of its own: which, its groups, in words.
FIREWALL = (12, 1 << 6, "a firewall rule (nftables) changed")
IPSEC = (6, 1 << 2 | 1 << 3, "an IPsec policy or state (xfrm) changed")
RECEIVE_BYTES = 1 << 18


class Reader:
    """One socket at one place."""

    def __init__(self, place: Place) -> None:
        with place.inside():
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def links(self) -> dict[int, Link]:
        found = self.dump(RTM_GETLINK, LINKMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0, 0))
        return {link.index: link for link in map(link_of, found)}

    def link(self, index: int) -> Link:
        return link_of(self._ask(RTM_GETLINK, REQUEST, LINKMSG.pack(socket.AF_UNSPEC, 0, 0, index, 0, 0))[0])

    def qdiscs(self) -> list[Qdisc]:
        """Of every interface."""
        return [qdisc_of(body) for body in self.dump(RTM_GETQDISC, tcmsg(0))]

    def classes(self, index: int) -> list[HtbClass]:
        found = [class_of(body) for body in self.dump(RTM_GETTCLASS, tcmsg(index))]
        return [one for one in found if one is not None]

    def filters(self, index: int, parent: int) -> list[Filter]:
        """In the order in which packets meet them."""
        found = [filter_of(body) for body in self.dump(RTM_GETTFILTER, tcmsg(index, parent))]
        return [one for one in found if one is not None]

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        for _ in range(8):  # a dump that something changed meanwhile is asked for again
            try:
                return self._ask(kind, REQUEST | DUMP, body)
            except InterruptedError:
                continue
        raise OSError(errno.EINTR, "the network changes faster than it can be read")

    def _ask(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        self._sequence += 1
        self._socket.send(HEADER.pack(16 + len(body), kind, flags, self._sequence, 0) + body)
        out: list[bytes] = []
        interrupted = False
        while True:
            for kind_of, flags_of, _, content in messages(self._socket.recv(RECEIVE_BYTES)):
                interrupted = interrupted or bool(flags_of & DUMP_INTERRUPTED)
                if kind_of in (NLMSG_DONE, NLMSG_ERROR):
                    code = struct.unpack_from("<i", content)[0] if kind_of == NLMSG_ERROR else 0
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    if interrupted:
                        raise InterruptedError
                    return out
                out.append(content)
            if not flags & DUMP & ~REQUEST:
                return out


class Monitor:
    """Hears of every change of links, qdiscs, classes and filters at a place: none is too short to be seen. `stack`: of
    addresses, neighbours, routes, rules, a firewall (nftables) and IPsec, too."""

    def __init__(self, place: Place, *, stack: bool = False) -> None:
        groups = GROUP_LINK | GROUP_TC | (GROUPS_STACK if stack else 0)
        self._socket = _listening(place, socket.NETLINK_ROUTE, groups)
        self._others: list[tuple[socket.socket, str]] = []
        for family, which, words in (FIREWALL, IPSEC) if stack else ():
            with suppress(OSError):  # a kernel without it
                self._others.append((_listening(place, family, which), words))

    def close(self) -> None:
        for one in (self._socket, *(line for line, _ in self._others)):
            one.close()

    def changes(self) -> list[Change]:
        """Since the last call; of what has a family of its own, that there were some."""
        out: list[Change] = []
        for data in _heard(self._socket):
            if data is None:
                out.append(Change(what="more changes than could be listened to", index=0, by=0))
                continue
            out += [change for message in messages(data) if (change := change_of(*message)) is not None]
        return out + [Change(what=words, index=0, by=0) for line, words in self._others if list(_heard(line))]


def _listening(place: Place, family: int, groups: int) -> socket.socket:
    with place.inside():
        one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
    try:
        one.bind((0, groups))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one


def _heard(line: socket.socket) -> Iterator[bytes | None]:
    """None: more than could be listened to."""
    while True:
        data = None
        try:
            data = line.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
        yield data
