"""What the kernel counts for all UDP sockets of one host."""

from __future__ import annotations

import os

from lossbench.net.counters import Sockets
from lossbench.net.host.place import Place

_UDP = {  # our words -> the kernel's, in /proc/net/snmp (IPv4) and /proc/net/snmp6
    "received": ("InDatagrams",),
    "overflowed": ("RcvbufErrors", "MemErrors"),
    "damaged": ("InCsumErrors",),
    "unwanted": ("NoPorts",),
    "refused": ("SndbufErrors",),
}


class Udp:
    """Its files, opened once."""

    def __init__(self, place: Place) -> None:
        self._files = []
        with place.inside():
            for name in ("snmp", "snmp6"):
                try:
                    self._files.append(os.open(f"/proc/thread-self/net/{name}", os.O_RDONLY | os.O_CLOEXEC))
                except FileNotFoundError:  # a kernel without IPv6
                    continue

    def read(self) -> Sockets:
        found: dict[str, int] = {}
        for file in self._files:
            found |= _numbers(os.pread(file, 1 << 16, 0).decode("ascii", "replace"))
        return Sockets(
            **{
                ours: sum(found.get(f"{family}{name}", 0) for family in ("Udp", "Udp6") for name in names)
                for ours, names in _UDP.items()
            }
        )

    def close(self) -> None:
        for file in self._files:
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
        if len(words) == 2 and words[0].startswith("Udp6"):
            out[words[0]] = int(words[1])
    return out
