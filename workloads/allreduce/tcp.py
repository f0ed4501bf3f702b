"""Our own exchange over TCP, with the schedule of the lossy one."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from typing import Any

import numpy as np

from lossbench.workloads.transport.packet.layout import even
from lossbench.workloads.transport.packet.wire import Array

SLICE = 1 << 18


class Mesh:
    """One connection per pair of ranks."""

    def __init__(self, rank: int, addresses: tuple[str, ...], store: Any) -> None:
        self.rank, self.world = rank, len(addresses)
        family = socket.AF_INET6 if ":" in addresses[0] else socket.AF_INET
        self.peers: dict[int, socket.socket] = {}
        with socket.create_server((addresses[rank], 0), family=family, backlog=self.world) as server:
            store.set(f"tcp{rank}", str(server.getsockname()[1]))
            for peer in range(rank):
                one = socket.create_connection((addresses[peer], int(store.get(f"tcp{peer}"))), timeout=30)
                one.sendall(struct.pack("<I", rank))
                self.peers[peer] = one
            for _ in range(rank + 1, self.world):
                one, _ = server.accept()
                self.peers[struct.unpack("<I", one.recv(4, socket.MSG_WAITALL))[0]] = one
        for one in self.peers.values():
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.settimeout(None)

    def close(self) -> None:
        for one in self.peers.values():
            one.close()

    def all_reduce(self, flat: Array, timeout_s: float) -> None:
        """In place, float32 sums: direct reduce-scatter, then all-gather, nothing lost."""
        counts = even(len(flat), self.world)
        starts = [0, *np.cumsum(counts).tolist()]
        blocks = [flat[starts[n] : starts[n + 1]] for n in range(self.world)]
        rooms = {peer: np.empty(counts[self.rank], np.float32) for peer in self.peers}
        self._exchange({peer: blocks[peer] for peer in self.peers}, rooms, timeout_s)
        for room in rooms.values():
            blocks[self.rank] += room
        self._exchange(
            dict.fromkeys(self.peers, blocks[self.rank]), {peer: blocks[peer] for peer in self.peers}, timeout_s
        )

    def _exchange(self, send: dict[int, Array], receive: dict[int, Array], timeout_s: float) -> None:
        sender = threading.Thread(target=self._send, args=(send,), daemon=True)
        sender.start()
        self._receive(receive, timeout_s)
        sender.join()

    def _send(self, send: dict[int, Array]) -> None:
        views = {peer: part.view(np.uint8).data for peer, part in send.items()}
        at = 0
        while any(at < len(view) for view in views.values()):
            for step in range(1, self.world):
                peer = (self.rank + step) % self.world
                if at < len(views[peer]):
                    self.peers[peer].sendall(views[peer][at : at + SLICE])
            at += SLICE

    def _receive(self, receive: dict[int, Array], timeout_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            left = {}
            for peer, room in receive.items():
                if room.nbytes:
                    selector.register(self.peers[peer], selectors.EVENT_READ, peer)
                    left[peer] = room.view(np.uint8).data
            while left:
                ready = selector.select(timeout_s)
                if not ready:
                    raise TimeoutError(f"nothing from ranks {sorted(left)} for {timeout_s:g} s")
                for key, _ in ready:
                    got = self.peers[key.data].recv_into(left[key.data])
                    if not got:
                        raise ConnectionError(f"rank {key.data} closed its connection")
                    left[key.data] = left[key.data][got:]
                    if not len(left[key.data]):
                        del left[key.data]
                        selector.unregister(self.peers[key.data])
