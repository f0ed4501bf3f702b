"""Datagrams with our header from every rank to every other, counted at both ends: the run's own proof of loss.

Steps, halves and blocks are numbered as a training step would, so that loss asked by header can be seen to act on
exactly what was asked. Options: steps, blocks (per half), chunks (per block), spacing_ms.

    lossbench run chatter
"""

from __future__ import annotations

import select
import socket
import time

from lossbench.contract import HALVES, HEADER_BYTES, KINDS, Door, Header
from lossbench.workloads.transport.udp.admission import admit_only

PAYLOAD = bytes(64)
SO_RCVBUFFORCE = 33
MOST_AT_ONCE = 200_000  # datagrams taken in before something else is done
QUIET_S = 0.5  # nothing for this long after the last step: nothing more will come


class Chatter:
    def __init__(self, door: Door) -> None:
        self.door = door
        address = door.addresses[door.rank]
        self.family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket = socket.socket(self.family, socket.SOCK_DGRAM)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        except PermissionError:  # rootless: as much as the system allows
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.socket.bind((address, door.port))
        self.socket.setblocking(False)
        others = [one for rank, one in enumerate(door.addresses) if rank != door.rank]
        admit_only(self.socket, [(one, door.port) for one in others])  # a flood of strangers does not keep us busy
        self.sent = [0] * door.world_size
        self.received = [0] * door.world_size
        self.by_step_and_half: dict[str, int] = {}
        self.pieces: set[tuple[int, ...]] = set()
        self.duplicates = 0
        self.strangers = 0

    def run(self) -> None:
        door = self.door
        door.ready()
        steps = int(door.options.get("steps", 20))
        for step in range(steps):
            for half in HALVES.values():
                self._send_half(step, half)
            door.record("step", step=step)
            self._hear(float(door.options.get("spacing_ms", 20)) / 1000)
        self._hear_until_quiet()
        door.record("traffic", sent=self.sent, received=self.received, complete=True)
        sent, received = sum(self.sent), sum(self.received)
        door.record("received", by_step_and_half=self.by_step_and_half)
        door.record("summary", sent=sent, received=received, duplicates=self.duplicates, strangers=self.strangers)

    def _send_half(self, step: int, half: int) -> None:
        blocks, chunks = int(self.door.options.get("blocks", 4)), int(self.door.options.get("chunks", 8))
        for peer in range(self.door.world_size):
            if peer == self.door.rank:
                continue
            for block in range(blocks):
                for chunk in range(chunks):
                    header = Header(
                        kind=KINDS["data"],
                        tag=self.door.token,
                        source=self.door.rank,
                        destination=peer,
                        step=step,
                        half=half,
                        block=block,
                        chunk=chunk,
                    )
                    self.socket.sendto(header.pack() + PAYLOAD, (self.door.addresses[peer], self.door.port))
                    self.sent[peer] += 1
            self._hear(0)

    def _hear(self, seconds: float) -> int:
        """Take in what comes during this time; at least what is there."""
        heard, until = 0, time.monotonic() + seconds
        for _ in range(MOST_AT_ONCE):
            if select.select([self.socket], [], [], max(until - time.monotonic(), 0))[0]:
                try:
                    data, sender = self.socket.recvfrom(2048)
                except BlockingIOError:  # it was damaged, and its checksum said so only now
                    continue
                header = Header.unpack(data[:HEADER_BYTES])
                if header is None or not self._is_ours(header, sender):
                    self.strangers += 1
                    continue
                piece = (header.source, header.step, header.half, header.block, header.chunk)
                if piece in self.pieces:
                    self.duplicates += 1
                    continue
                self.pieces.add(piece)
                self.received[header.source] += 1
                key = f"{header.step}/{header.half}"
                self.by_step_and_half[key] = self.by_step_and_half.get(key, 0) + 1
                heard += 1
            elif time.monotonic() >= until:
                break
        return heard

    def _is_ours(self, header: Header, sender: tuple[str, int]) -> bool:
        """Of this run, to us, and from where its rank is."""
        known = (header.tag, header.destination) == (self.door.token, self.door.rank)
        if not known or header.source >= self.door.world_size:
            return False
        return sender[:2] == (self.door.addresses[header.source], self.door.port)

    def _hear_until_quiet(self) -> None:
        while self._hear(QUIET_S):
            pass


def main() -> None:
    Chatter(Door.from_environment()).run()


if __name__ == "__main__":
    main()
