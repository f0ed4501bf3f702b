"""One HTTP/1.1 connection of a client: a request out, a response in, and what is wrong with it."""

from __future__ import annotations

import re
import socket

SOL_TCP_NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
RECEIVE_BYTES = 1 << 20
WAKE_BYTES = 1 << 17  # a reader is woken once a response, or once in so many bytes of a long one
IPV6_TCLASS = 67
_HEAD = re.compile(rb"HTTP/1\.[01] (\d{3})")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_BUFFER = bytearray(RECEIVE_BYTES)  # one process reads one socket at a time


class BrokenError(Exception):
    """This response will not come to a good end."""


def mark(one: socket.socket, dscp: int) -> None:
    """Every packet of it; of a listening socket, of what it accepts too."""
    if dscp:
        v6 = one.family == socket.AF_INET6
        level, name = (socket.IPPROTO_IPV6, IPV6_TCLASS) if v6 else (socket.IPPROTO_IP, socket.IP_TOS)
        one.setsockopt(level, name, dscp << 2)


class Connection:
    """Not blocking; whoever owns it asks epoll."""

    def __init__(self, address: str, port: int, *, dscp: int = 0) -> None:
        v6 = ":" in address
        self.socket = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(*SOL_TCP_NODELAY)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)  # no reader's pause closes it
        mark(self.socket, dscp)
        self.host, self.fd = address, self.socket.fileno()
        self.reusable = True
        self.used = False  # it has brought a response before
        self._out = b""
        self._left = -1  # of the body; -1: its head has not come yet
        self._head = b""
        code = self.socket.connect_ex((address, port))
        if code not in (0, 115):  # EINPROGRESS
            raise BrokenError(f"connect: error {code}")

    def ask(self, size: int, path: str) -> None:
        self._out = f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode()
        self._left, self._head = -1, b""
        self._wake_after(size)
        if self.used:
            self.send()

    @property
    def sending(self) -> bool:
        """A part of the request is still here: its owner must be told when there is room for it."""
        return bool(self._out)

    @property
    def untouched(self) -> bool:
        """No byte of this response has come: a connection that was kept may have been closed while nobody used it."""
        return self.used and self._left < 0 and not self._head

    @property
    def unanswered(self) -> bool:
        """Asked, and no head has come: what is shorter than the response that is waited for wakes nobody."""
        return self._left < 0 and not self._out

    def send(self) -> None:
        """What is left to send; connecting is over."""
        if not self._out:
            return
        error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise BrokenError(f"connect: error {error}")
        try:
            self._out = self._out[self.socket.send(self._out) :]
        except BlockingIOError:
            return
        except OSError as error_said:
            raise BrokenError(str(error_said)) from None

    def receive(self) -> bool:
        """True once the whole response is here."""
        while True:
            try:
                count = self.socket.recv_into(_BUFFER)
            except BlockingIOError:
                return False
            except OSError as error:
                raise BrokenError(str(error)) from None
            if not count:
                raise BrokenError("the server closed the connection")
            self._take(count)
            if self._left == 0:
                self.used = True
                return True
            if count < RECEIVE_BYTES:
                self._wake_after(max(self._left, 1))
                return False

    def _take(self, count: int) -> None:
        if self._left >= 0:
            self._left -= count
        else:
            self._head += bytes(_BUFFER[: min(count, 4096)])
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if len(self._head) > 65536:
                    raise BrokenError("a response without an end of its head")
                return
            before = len(self._head) - min(count, 4096)
            self._left = self._length(self._head[:end]) - (count - (end + 4 - before))
        if self._left < 0:
            raise BrokenError("more bytes than the response says")

    def _length(self, head: bytes) -> int:
        status, length = _HEAD.match(head), _LENGTH.search(head)
        if status is None or status[1] != b"200":
            raise BrokenError(f"answered {status[1].decode() if status else repr(head[:40])}")
        if length is None:
            raise BrokenError("a response that does not say its length")
        self.reusable = _CLOSE.search(head) is None
        return int(length[1])

    def _wake_after(self, size: int) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(size, WAKE_BYTES))

    def close(self) -> None:
        self.socket.close()
