"""A small HTTP/1.1 server: GET /N answers N bytes. For hosts without nginx."""

from __future__ import annotations

import os
import re
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass

from lossbench.workloads.web.http.connection import mark

LONGEST = 64 << 20  # bytes of a response
BACKLOG = 1024
_GET = re.compile(rb"GET /(\d+) HTTP/1\.[01]\r\n")


@dataclass
class _Peer:
    socket: socket.socket
    asked: bytes = b""
    head: bytes = b""
    offset: int = 0
    left: int = 0  # bytes of the body


class Builtin:
    def __init__(self, address: str, port: int, *, dscp: int = 0) -> None:
        """What it accepts is marked as its listening socket is."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        mark(self.listener, dscp)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((address, port))
        self.listener.listen(BACKLOG)
        self.listener.setblocking(False)
        self._body = os.memfd_create("lossbench-body")
        os.truncate(self._body, LONGEST)
        self._peers: dict[int, _Peer] = {}
        self._epoll = select.epoll()
        self._epoll.register(self.listener.fileno(), select.EPOLLIN)

    def serve(self, ended: Callable[[], bool]) -> None:
        while not ended():
            for fd, event in self._epoll.poll(0.2):
                if fd == self.listener.fileno():
                    self._accept()
                else:
                    self._turn(fd, event)

    def _accept(self) -> None:
        try:
            while True:
                peer, _ = self.listener.accept()
                peer.setblocking(False)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._peers[peer.fileno()] = _Peer(peer)
                self._epoll.register(peer.fileno(), select.EPOLLIN)
        except OSError:  # nobody waits any more, or whoever did is gone, or there are too many: the next look tells
            return

    def _turn(self, fd: int, event: int) -> None:
        peer = self._peers[fd]
        try:
            if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                data = peer.socket.recv(65536)
                if not data:
                    raise ConnectionError
                peer.asked += data
            busy = self._answer(peer)
            self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if busy else 0))
        except BlockingIOError:
            return
        except OSError:
            del self._peers[fd]
            self._epoll.unregister(fd)
            peer.socket.close()

    def _answer(self, peer: _Peer) -> bool:
        """True while there is more to send."""
        while True:
            if not peer.head and not peer.left and not self._next(peer):
                return False
            try:
                if peer.head:
                    more = socket.MSG_MORE if peer.left else 0
                    peer.head = peer.head[peer.socket.send(peer.head, more) :]
                while peer.left and not peer.head:
                    sent = os.sendfile(peer.socket.fileno(), self._body, peer.offset, peer.left)
                    peer.offset, peer.left = peer.offset + sent, peer.left - sent
            except BlockingIOError:
                return True

    def _next(self, peer: _Peer) -> bool:
        """The next request of this connection, if it is all here."""
        whole, end, rest = peer.asked.partition(b"\r\n\r\n")
        if not end:
            if len(peer.asked) > 65536:
                raise ConnectionError("a request without an end")
            return False
        found = _GET.match(whole + b"\r\n")
        size = int(found[1]) if found else 0
        status = b"200 OK" if found and size <= LONGEST else b"404 Not Found"
        size = size if status.startswith(b"200") else 0
        peer.asked, peer.offset, peer.left = rest, 0, size
        peer.head = b"HTTP/1.1 %s\r\nServer: lossbench\r\nContent-Length: %d\r\n\r\n" % (status, size)
        return True

    def close(self) -> None:
        for peer in self._peers.values():
            peer.socket.close()
        self.listener.close()
        os.close(self._body)
