"""Which sockets of a host are open from one of its addresses, read as the kernel shows them to any program. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator
from typing import TypeAlias

End: TypeAlias = tuple[str, int]  # address and port
TABLES = ("tcp", "tcp6", "udp", "udp6")
ANY = ("0.0.0.0", "::")


def open_from(address: str, tables: Iterable[tuple[str, str]], *, besides: Collection[End] = ()) -> list[str]:
    """`tables`: protocol and text of /proc/net/PROTOCOL. In words, those that lead somewhere, and those that datagrams
    to anybody may leave from. `besides`: what TCP connections with these places are."""
    return [
        f"{protocol.removesuffix('6')} {local[1]} to {f'{remote[0]}:{remote[1]}' if remote[1] else 'anybody'}"
        for protocol, text in tables
        for local, remote in _ends(text)
        if local[0] == address and remote[1] or protocol.startswith("udp") and local[0] in (address, *ANY) and local[1]
        if protocol.startswith("udp") or not {local, remote} & set(besides)
    ]


def _ends(text: str) -> Iterator[tuple[End, End]]:
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) > 2:
            yield _end(words[1]), _end(words[2])


def _end(text: str) -> End:
    """Four bytes at a time stand there in the machine's order."""
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    found = ipaddress.ip_address(b"".join(words))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found), int(port, 16)
