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


def waited_ns(ancillary: Ancillary) -> int:
    """How long a packet lay in its socket, by the kernel's stamp of its arrival: on a busy machine nobody hears at
    once, and that is no delay of the network's. The wall clock may have been set meanwhile: never before it came."""
    value = _found(ancillary, SO_TIMESTAMPNS)
    if value is None:
        return 0
    seconds, nanoseconds = struct.unpack("<qq", value[:16])
    return max(0, time.time_ns() - (int(seconds) * 10**9 + int(nanoseconds)))


def _found(ancillary: Ancillary, wanted: int) -> bytes | None:
    return next((v for level, kind, v in ancillary if (level, kind) == (socket.SOL_SOCKET, wanted)), None)
