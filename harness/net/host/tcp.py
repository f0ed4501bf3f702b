"""What the kernel knows of the TCP connections of a program, whatever program it is: how long a packet and its answer
take, how much was sent again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONNECTED = 0xB37  # neither listening, closed, waiting for stragglers nor half begun (bits of TCP's states)
MAPPED = "::ffff:"  # before an IPv4 address, in a socket of both families
INFO = 1 << 1  # of a connection: struct tcp_info
SNMP = Path("/proc/thread-self/net/snmp")


@dataclass(kw_only=True)
class Connections:
    """Of this network stack, from one address. `alone`: the stack is this program's, and its own totals are exact;
    else what connections said when they were last looked at."""

    address: str
    alone: bool
    rtt_ms: list[float] = field(default_factory=list)
    _socket: Any = None
    _last: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Before the program starts; loads next to nothing."""
        self._before = totals()

    def open(self) -> None:
        """A kernel without sock_diag: an OSError."""
        from pyroute2 import DiagSocket

        self._socket = DiagSocket()
        self._socket.bind()

    def sample(self) -> None:
        """As the kernel's estimate stands now, of every connection that has sent something."""
        for one in self._connected():
            info = one.get_attr("INET_DIAG_INFO")
            if one["idiag_src"].removeprefix(MAPPED) != self.address or not info or not info["tcpi_data_segs_out"]:
                continue
            self.rtt_ms.append(info["tcpi_rtt"] / 1000)
            ends = (one["idiag_sport"], one["idiag_dst"], one["idiag_dport"])
            self._last[ends] = (info["tcpi_segs_out"], info["tcpi_total_retrans"])

    def _connected(self) -> Iterator[Any]:
        """Of both families where the address is IPv4: a server that serves both has it as a part of IPv6's."""
        families = (socket.AF_INET6,) if ":" in self.address else (socket.AF_INET, socket.AF_INET6)
        for family in families if self._socket is not None else ():
            yield from self._socket.get_sock_stats(family=family, states=CONNECTED, extensions=INFO)

    def resent(self) -> float | None:
        """Share of its segments that were sent again; None if it sent none."""
        if self.alone:
            first, again = (now - before for now, before in zip(totals(), self._before, strict=True))
            sent = first + again
        else:
            sent, again = (sum(one[n] for one in self._last.values()) for n in (0, 1))
        return again / sent if sent else None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def totals() -> tuple[int, int]:
    """Of the whole stack: (segments sent for the first time, sent again). Linux counts no segment in both; of a
    connection it does."""
    names, numbers = (line.split() for line in SNMP.read_text(encoding="ascii").splitlines() if line.startswith("Tcp:"))
    found = dict(zip(names[1:], numbers[1:], strict=True))
    return int(found["OutSegs"]), int(found["RetransSegs"])
