"""What the ports can carry, in the same run: the same bytes with nothing added, and the least that two halves take."""

from __future__ import annotations

import errno
import select
import socket
import time
from typing import Any

import numpy as np
import torch

from lossbench.contract import Door
from lossbench.workloads.allreduce.operation import Operation
from lossbench.workloads.transport.udp.link import Link

BLAST_PORT, FLOOR_PORT = 29390, 29391
QUIET_S = 0.02
SHORT = 1400  # bytes of a packet of the floor, at most


class Quiet(Exception):  # noqa: N818 - not an error: how long the end was waited for
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Blast:
    """The same bytes from all to all, nothing added, nothing waited for."""

    only: tuple[str, ...] = ("all_reduce", "reduce_scatter", "all_gather")

    def __init__(self, door: Door, store: Any, limit_s: float, operation: Operation) -> None:
        del store
        self._link = Link(door.addresses[door.rank], BLAST_PORT)
        self._peers = [
            (door.addresses[(door.rank + n) % door.world_size], BLAST_PORT) for n in range(1, door.world_size)
        ]
        self._segment = self._link.datagram_bytes(self._peers[0])
        self._limit_s, self._per_peer = limit_s, int(operation.sent_by(door.rank)) // len(self._peers)
        self._room = bytearray(1 << 16)
        self.shares: list[float] = []  # that arrived, of each call

    @property
    def overflow(self) -> int:
        """Packets that this rank's own socket had no room for."""
        return self._link.dropped()

    def call(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        del whole, part
        batch = min(self._link.batch(self._segment), -(-self._per_peer // self._segment))
        rows = np.zeros((batch, self._segment), np.uint8)
        rounds = -(-self._per_peer // rows.size)
        expected, got = rounds * rows.size * len(self._peers), 0
        start = time.perf_counter()
        for _ in range(rounds):
            for peer in self._peers:
                went = 0
                while (went := went + self._sent(rows[went:], peer)) < len(rows):
                    if time.perf_counter() - start > self._limit_s:
                        raise TimeoutError(f"this host takes no packets for {peer[0]}")
                    self._link.wait_writable(0.01)
            got += self._drain()
        while got < expected and time.perf_counter() - start < self._limit_s:
            if not select.select([self._link.socket], [], [], QUIET_S)[0]:
                self.shares.append(got / expected)
                raise Quiet(QUIET_S)  # the rest is lost: this wait is not the network's time
            got += self._drain()
        self.shares.append(got / expected)

    def _sent(self, rows: np.ndarray[Any, np.dtype[np.uint8]], peer: tuple[str, int]) -> int:
        """How many went. A host that takes nothing now (a peer that ended first, no way there) is asked again."""
        try:
            return self._link.send_rows(rows, peer)
        except OSError as error:
            if error.errno in (errno.EMSGSIZE, errno.EBADF):
                raise
            return 0

    def _drain(self) -> int:
        total = 0
        while True:
            try:
                total += self._link.socket.recv_into(self._room)
            except BlockingIOError:
                return total

    def close(self) -> None:
        self._link.close()


class Floor:
    """Two halves of one packet from every rank to every rank, by plain sockets: no protocol, nothing to add up. What
    calls of a few packets are measured against. A lost packet ends it."""

    only: tuple[str, ...] = ("all_reduce",)

    def __init__(self, door: Door, store: Any, limit_s: float, operation: Operation) -> None:
        del store
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((door.addresses[door.rank], FLOOR_PORT))
        self._socket.settimeout(min(limit_s, 1.0))
        self._peers = [(address, FLOOR_PORT) for n, address in enumerate(door.addresses) if n != door.rank]
        self._filling = b"x" * min(SHORT, operation.bytes // door.world_size)
        self.least_bytes = 2 * len(self._peers) * (len(self._filling) + 4)  # of a call, on this rank's link
        self._early: dict[int, int] = {}
        self._number = 0

    def call(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        del whole, part
        for _ in range(2):
            self._half()

    def _half(self) -> None:
        self._number += 1
        packet = self._number.to_bytes(4, "little") + self._filling
        for peer in self._peers:
            self._socket.sendto(packet, peer)
        got = self._early.pop(self._number, 0)
        while got < len(self._peers):
            number = int.from_bytes(self._socket.recv(2048)[:4], "little")
            if number == self._number:
                got += 1
            elif number > self._number:
                self._early[number] = self._early.get(number, 0) + 1

    def close(self) -> None:
        self._socket.close()
