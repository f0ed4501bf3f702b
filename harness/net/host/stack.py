"""What the kernel counts inside one host: its UDP sockets, packets that it cut and put together, what it threw away or
turned away."""

from __future__ import annotations

import os
from contextlib import suppress

from lossbench.net.counters import Sockets
from lossbench.net.host.place import Place

_DATAGRAMS, _PACKETS = ("Udp", "Udp6", "UdpLite", "UdpLite6"), ("Ip", "Ip6", "IpExt")
# Our words -> the kernel's, in /proc/net/snmp (IPv4), netstat (more of it) and snmp6.
_NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "received": (_DATAGRAMS, ("InDatagrams",)),
    "overflowed": (_DATAGRAMS, ("RcvbufErrors", "MemErrors")),
    "damaged": (_DATAGRAMS, ("InCsumErrors",)),
    "unwanted": (_DATAGRAMS, ("NoPorts",)),
    "answered": (("Icmp", "Icmp6"), ("OutDestUnreachs",)),
    "refused": (_DATAGRAMS, ("SndbufErrors",)),
    "discarded": (_PACKETS, ("InDiscards",)),
    "misled": (_PACKETS, ("InAddrErrors",)),
    "unfit": (_PACKETS, ("InHdrErrors", "InTruncatedPkts", "InNoRoutes")),
    "from_elsewhere": (("TcpExt",), ("IPReversePathFilter",)),
    "tcp_held": (("TcpExt",), ("TCPBacklogDrop",)),
    "tcp_full": (("TcpExt",), ("TCPRcvQDrop",)),
    "tcp_ahead": (("TcpExt",), ("TCPOFODrop",)),
    "tcp_unaccepted": (("TcpExt",), ("ListenDrops",)),
    "no_memory": (("TcpExt",), ("PFMemallocDrop",)),
}
_FILES = ("snmp", "netstat", "snmp6", "xfrm_stat")
_SHOWN = ("packet", "raw", "raw6")  # tables of sockets whose losses nobody counts


class Stack:
    """Its files, opened once."""

    def __init__(self, place: Place) -> None:
        self._files: dict[str, int] = {}
        with place.inside():
            for name in (*_FILES, *_SHOWN):
                with suppress(FileNotFoundError):  # a kernel without IPv6 or IPsec
                    self._files[name] = os.open(f"/proc/thread-self/net/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def _text(self, name: str) -> str:
        return os.pread(self._files[name], 1 << 16, 0).decode("ascii", "replace") if name in self._files else ""

    def read(self) -> Sockets:
        found: dict[str, int] = {}
        for file in _FILES:
            found |= _numbers(self._text(file))

        def of(kind: str, *names: str) -> int:
            return sum(found.get(f"{kind}{name}", 0) for name in names)

        both = {ours: sum(of(kind, *names) for kind in kinds) for ours, (kinds, names) in _NAMES.items()}
        refused = sum(of(kind, "InErrors") for kind in _DATAGRAMS) - both["overflowed"] - both["damaged"]
        return Sockets(
            **both,
            turned_away=refused,
            by_ipsec=sum(count for name, count in found.items() if name.startswith("Xfrm")),
            # What lost a fragment on its way times out, and is lost by who lost that; the rest found no room here.
            unassembled=sum(of(ip, "ReasmFails") - of(ip, "ReasmTimeout") for ip in ("Ip", "Ip6")),
            cut=of("Ip", "FragCreates"),
            cut_6=of("Ip6", "FragCreates"),
            pieces=of("Ip", "ReasmReqds"),
            pieces_6=of("Ip6", "ReasmReqds"),
        )

    def bare(self) -> bool:
        """Is a socket open that takes whole packets (AF_PACKET, raw)?"""
        return any(len(self._text(name).splitlines()) > 1 for name in _SHOWN)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)


def _numbers(text: str) -> dict[str, int]:
    """Name -> number, of either file: a line of names and a line of numbers, or one of each to a line."""
    out: dict[str, int] = {}
    lines = text.splitlines()
    for names, numbers in zip(lines, lines[1:], strict=False):
        kind, _, rest = names.partition(":")
        if rest and numbers.startswith(f"{kind}:") and not rest.split()[0].lstrip("-").isdigit():
            values = numbers.partition(":")[2].split()
            out |= {f"{kind}{name}": int(value) for name, value in zip(rest.split(), values, strict=False)}
    for line in lines:
        words = line.split()
        if len(words) == 2 and words[0].startswith(("Udp6", "UdpLite6", "Ip6", "Icmp6", "Xfrm")):
            out[words[0]] = int(words[1])
    return out
