"""What an agent sends and hears when a lab is checked: numbered datagrams between two machines."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
import termios
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

SO_RCVBUFFORCE, SO_RXQ_OVFL, IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_RECVTOS = 33, 40, 10, 2, 13
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # of UDP and below it, as they count for the MTU
MARKS = {(socket.IPPROTO_IP, socket.IP_TOS), (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)}
BUFFER_BYTES = 32 << 20
PAUSE_EVERY = 32
NUMBER_BYTES = 4
READ_S = 10.0  # a machine that is too busy to read what has arrived


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Traffic:
    """One listening socket at a time."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._seen: set[int] = set()
        self._tos: Counter[int] = Counter()
        self._bytes = self._overflow = 0
        self._span = (0.0, 0.0)

    def listen(self, address: str) -> int:
        """On a free port, which it returns; what was heard before is forgotten."""
        self.close()
        one = socket.socket(_family(address), socket.SOCK_DGRAM)
        with suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        one.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        if one.family == socket.AF_INET:
            one.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        else:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        one.bind((address, 0))
        self._seen, self._tos, self._bytes, self._overflow = set(), Counter(), 0, 0
        self._span = (0.0, 0.0)
        self._socket = one
        threading.Thread(target=self._collect, args=(one,), daemon=True).start()
        return int(one.getsockname()[1])

    def _collect(self, one: socket.socket) -> None:
        with suppress(OSError):
            while True:
                data, ancillary, _, _ = one.recvmsg(65536, 256)
                if len(data) < NUMBER_BYTES:
                    continue  # a stranger's; or the end, which the next call says
                now = time.monotonic()
                self._span = (self._span[0] or now, now)
                self._seen.add(struct.unpack_from("!I", data)[0])
                self._bytes += len(data) + HEADERS[one.family]
                for level, kind, value in ancillary:
                    if (level, kind) in MARKS:
                        self._tos[value[0] >> 2] += 1
                    elif (level, kind) == (socket.SOL_SOCKET, SO_RXQ_OVFL):
                        self._overflow = struct.unpack("<I", value[:4])[0]

    def heard(self) -> dict[str, Any]:
        """Once all that has arrived is read."""
        limit, before = time.monotonic() + READ_S, -1
        while (self._waiting() or len(self._seen) > before) and time.monotonic() < limit:
            before = len(self._seen)
            time.sleep(0.01)
        return {
            "packets": len(self._seen),
            "bytes": self._bytes,
            "overflow": self._overflow,
            "seconds": self._span[1] - self._span[0],
            "dscp": dict(self._tos),
        }

    def _waiting(self) -> bool:
        if self._socket is None:
            return False
        return any(fcntl.ioctl(self._socket, termios.FIONREAD, bytes(4)))  # bytes of the next datagram

    def send(
        self, *, source: str, to: str, port: int, count: int, size: int, dscp: int = 0, pause_s: float = 0.0
    ) -> dict[str, Any]:
        """`size`: of the IP packet, which must not be cut on the way. Returns how many the machine let go."""
        with socket.socket(_family(to), socket.SOCK_DGRAM) as one:
            one.bind((source, 0))
            if one.family == socket.AF_INET:
                one.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
                one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
            else:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DONTFRAG, 1)
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
            one.connect((to, port))
            body = bytes(max(NUMBER_BYTES, size - HEADERS[one.family]) - NUMBER_BYTES)
            sent = 0
            for number in range(count):
                try:
                    one.send(struct.pack("!I", number) + body)
                    sent += 1
                except OSError as error:
                    if error.errno == errno.EMSGSIZE:
                        return {"sent": sent, "too_long": True}
                    if error.errno not in (errno.ENOBUFS, errno.ECONNREFUSED):
                        raise
                if pause_s and number % PAUSE_EVERY == PAUSE_EVERY - 1:
                    time.sleep(pause_s)
            return {"sent": sent, "too_long": False}

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None
