"""What the kernel says beside a packet that it hands over: how many did not fit the socket, and when this one came."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress

SO_RXQ_OVFL, SO_TIMESTAMPNS = 40, 35
ANCILLARY_BYTES = 128

Ancillary = list[tuple[int, int, bytes]]


def ask(one: socket.socket) -> None:
    for option in (SO_RXQ_OVFL, SO_TIMESTAMPNS):
        with suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, option, 1)


def overflowed(ancillary: Ancillary) -> int | None:
    """Packets so far that found no room in this socket; None if nothing is said of it."""
    value = _found(ancillary, SO_RXQ_OVFL)
    return None if value is None else int.from_bytes(value[:4], "little")


def came_ns(ancillary: Ancillary) -> int:
    """When a packet that was just read came to its socket, on the monotonic clock, by the kernel's stamp: on a busy
    machine nobody reads at once, and that is no delay of the network's. The stamp is of the wall clock, which is read
    first: what comes between the two readings makes a packet later, and none comes before it was sent. It may have been
    set meanwhile, too: nobody reads a packet before it came."""
    wall, now = time.time_ns(), time.monotonic_ns()
    value = _found(ancillary, SO_TIMESTAMPNS)
    if value is None:
        return now
    seconds, nanoseconds = struct.unpack("<qq", value[:16])
    return now - max(0, wall - (int(seconds) * 10**9 + int(nanoseconds)))


def _found(ancillary: Ancillary, wanted: int) -> bytes | None:
    return next((v for level, kind, v in ancillary if (level, kind) == (socket.SOL_SOCKET, wanted)), None)
