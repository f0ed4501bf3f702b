"""Offers the bursts of a recorded exchange to every other host, open loop: nothing waits for what was lost.

Options: mbit (offered by all hosts together; the paper's 2400 by the factor), recording (name or file), model_mb
(0: the recording's), seconds (0: until told to end), send_kb (send buffer of a host), saturate (a burst follows as
soon as the one before has left: links are never idle, and what was offered is what was sent).

    lossbench run colocation
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import signal
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from lossbench.contract import HALVES, HEADER_FIELDS, KINDS, Door, Header, derive_seed
from lossbench.workloads.errors import OptionError, status_of
from lossbench.workloads.replay.recording import Recording, load, period_s
from lossbench.workloads.transport.udp.link import Link

PAYLOAD = 1432  # bytes of a datagram: a packet of 1460, less what IPv6 takes more
TRAIN = 8  # packets a system call: more would hold a slow link for tens of milliseconds
QUIET_S = 1.0  # nothing for so long after the last burst: nothing more will come
LATE_S = 0.5
IDLE = 0.02  # of the time
TICK_S = 0.005
SAY_S = 0.25  # how often it says what it has sent and received so far
NEVER_S = 1e9


class Train(NamedTuple):
    """Packets to one peer, at most TRAIN of them."""

    rank: int
    packets: int
    step: int
    half: int
    due: float  # on the monotonic clock


def asked(offered: int, waiting: Iterable[Train], *, since: float) -> int:
    """Packets that the recording asked to send, but for those that still wait and were due only since then: a burst
    that an end comes between is no fault of anybody."""
    return offered - sum(train.packets for train in waiting if train.due > since)


class Replay:
    def __init__(self, door: Door) -> None:
        self.door = door
        options = door.options
        recording = load(str(options.get("recording", "resnet110")))
        size = float(options.get("model_mb", 0.0)) * 1e6
        self.recording: Recording = recording.scaled(model_bytes=int(size)) if size else recording
        offered = float(options.get("mbit", 100.0))
        if offered < 0 or door.world_size < 2:
            raise OptionError("replay: mbit can't be below 0, and there must be two hosts")
        self.seconds = float(options.get("seconds", 0.0))
        model_bytes, hosts = self.recording.model_bytes, door.world_size
        self.peer_bytes = 2 * model_bytes / hosts  # of a step, to each of the others
        self.period_s, self.tick_s = NEVER_S, SAY_S  # nothing is offered, by nobody: cores are left to others
        if offered:
            self.period_s, self.tick_s = period_s(model_bytes=model_bytes, hosts=hosts, mbit=offered), TICK_S
        self.saturate = bool(options.get("saturate", False)) and offered > 0
        self.link = Link(door.addresses[door.rank], door.port, dscp=door.dscp)
        room = round(float(options.get("send_kb", 212)) * 512)  # the kernel doubles it
        self.link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        others = [rank for rank in range(door.world_size) if rank != door.rank]
        self.others = others[door.rank % len(others) :] + others[: door.rank % len(others)]
        self.link.admit_only([(door.addresses[rank], door.port) for rank in self.others])
        self.rank_of = {address: rank for rank, address in enumerate(door.addresses)}
        self.sent, self.received = [0] * door.world_size, [0] * door.world_size
        self.rows = {rank: self._rows(rank) for rank in self.others}
        self.to_send: deque[Train] = deque()  # in the order of their turns
        self.aside: dict[int, deque[Train]] = {}  # of peers that this host has no way to now
        self.late_s = 0.0  # a burst began so much later than it should have
        self.idle_s = 0.0  # the link had nothing, though there was something to send
        self.looked_s, self.refused = 0.0, False
        self.packets = self.recording.packets(self.peer_bytes / PAYLOAD)  # of each burst, to each of the others
        self.offered = 0  # packets
        self.ended = False
        signal.signal(signal.SIGTERM, self._told)

    def _told(self, *_: Any) -> None:
        self.ended = True

    def _rows(self, peer: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A train of packets to one peer, each with our header; bytes behind it are noise."""
        noise = np.random.default_rng(derive_seed(self.door.seed, "replay", self.door.rank, peer))
        rows = noise.integers(0, 256, (TRAIN, PAYLOAD), dtype=np.uint8)
        header = Header(kind=KINDS["data"], tag=self.door.token, source=self.door.rank, destination=peer)
        packed = np.frombuffer(header.pack(), dtype=np.uint8)
        rows[:, : len(packed)] = packed
        return rows

    def run(self) -> None:
        recorded = {"recording": self.recording.name, "model_bytes": self.recording.model_bytes}
        self.door.record("replays", **recorded, period_s=self.period_s, saturate=self.saturate)
        self.door.ready()
        begin, step, burst = time.monotonic(), 0, 0
        said = begin
        while not self.ended and (not self.seconds or time.monotonic() < begin + self.seconds):
            at, _ = self.recording.bursts[burst]
            due, moment = begin + (step + at) * self.period_s + NEVER_S * (self.period_s == NEVER_S), time.monotonic()
            if self.saturate:
                due = moment if len(self.to_send) < len(self.others) else NEVER_S + moment
            if moment >= due:
                self.late_s = max(self.late_s, moment - due if not self.to_send else 0.0)
                self._offer(step, burst, due)
                burst = (burst + 1) % len(self.recording.bursts)
                step += burst == 0
                continue
            self._turn(min(due - moment, 0.2))
            if moment - said > SAY_S:
                said = moment
                self._say(complete=False)
        waiting = itertools.chain(self.to_send, *self.aside.values())
        left = asked(self.offered, waiting, since=time.monotonic() - self.period_s)
        self.offered = sum(self.sent) if self.saturate else left
        self._until_quiet()
        self._say(complete=True)
        if self.late_s > LATE_S:
            self._doubt(f"a burst of host {self.door.rank} began {self.late_s:.2f} s late")
        sent = sum(self.sent)
        if self.idle_s > max(LATE_S, IDLE * (time.monotonic() - begin)):
            self._doubt(f"host {self.door.rank} did not come to send: for {self.idle_s:.1f} s its link waited for it")
        self.door.record("summary", sent=sent, received=sum(self.received), offered=self.offered)

    def _offer(self, step: int, burst: int, due: float) -> None:
        """A burst: packets for all others in turns."""
        packets = self.packets[burst]
        self.offered += packets * len(self.others)
        half = HALVES["reduce_scatter"] if burst < len(self.recording.bursts) / 2 else HALVES["all_gather"]
        for first in range(0, packets, TRAIN):
            count = min(TRAIN, packets - first)
            self.to_send += [Train(rank, count, step, half, due) for rank in self.others]

    def _numbered(self, train: Train) -> np.ndarray[Any, np.dtype[np.uint8]]:
        at, size = HEADER_FIELDS["step"]
        rows = self.rows[train.rank][: train.packets]
        rows[:, at : at + size] = np.frombuffer(train.step.to_bytes(size, "little"), dtype=np.uint8)
        rows[:, HEADER_FIELDS["half"][0]] = train.half
        return rows

    def _turn(self, seconds: float) -> None:
        """Send what the link takes, take what has come, and look again after a moment: buffers hold more than comes or
        goes meanwhile, and being woken for every packet would cost the cores that the network itself needs."""
        moment = time.monotonic()
        if self.to_send and self.refused and not self._waiting_bytes():
            self.idle_s += moment - self.looked_s  # at most: it ran dry some time since then
        self.looked_s, self.refused = moment, False
        for rank in list(self.aside):
            self._ask_again(rank)
        while self.to_send and not self.refused:
            train = self.to_send.popleft()
            left = train if train.rank in self.aside else self._send(train)
            if left is None:
                continue
            if left.rank in self.aside:
                self.aside[left.rank].append(left)
            else:
                self.to_send.appendleft(left)
                self.refused = True  # a link that is slow, or serves others first, is no fault of ours
        self._receive()
        time.sleep(min(self.tick_s, seconds))

    def _send(self, train: Train) -> Train | None:
        """What is left of it: all or a part where a queue is full. Where this host has no way to a peer, all of what is
        for it goes `aside`: that is no reason to keep others waiting."""
        try:
            went = self.link.send_rows(self._numbered(train), (self.door.addresses[train.rank], self.door.port))
        except OSError as error:
            if error.errno in (errno.EMSGSIZE, errno.EBADF):
                raise
            self.aside.setdefault(train.rank, deque())
            return train
        self.sent[train.rank] += went
        return train._replace(packets=train.packets - went) if went < train.packets else None

    def _ask_again(self, rank: int) -> None:
        """Is there a way again? Then what waited goes before all others: it was due before."""
        trains = self.aside.pop(rank)
        left = self._send(trains.popleft())
        if left is not None:
            trains.appendleft(left)
        if rank in self.aside:
            self.aside[rank] = trains
        else:
            self.to_send.extendleft(reversed(trains))

    def _waiting_bytes(self) -> int:
        """In the socket's buffer and in the host's queue."""
        return int(struct.unpack("i", fcntl.ioctl(self.link.socket, termios.TIOCOUTQ, bytes(4)))[0])

    def _receive(self) -> int:
        """How many packets were there."""
        taken = 0
        while (found := self.link.receive()) is not None:
            rows, _ = found
            rank = self.rank_of.get(self.link.sender[0])
            if rank is not None and rows.shape[1] == PAYLOAD:
                self.received[rank] += len(rows)
                taken += len(rows)
        return taken

    def _until_quiet(self) -> None:
        self.to_send.clear()
        self.aside.clear()
        heard = time.monotonic()
        while time.monotonic() < heard + QUIET_S:
            heard = time.monotonic() if self._receive() else heard
            time.sleep(TICK_S)

    def _doubt(self, text: str) -> None:
        """It is about what others met here, whose times and losses it voids."""
        self.door.record("doubt", text=text, load=True)

    def _say(self, *, complete: bool) -> None:
        self.door.record("traffic", sent=self.sent, received=self.received, complete=complete)


def main() -> int:
    return status_of(lambda: Replay(Door.from_environment()).run())


if __name__ == "__main__":
    raise SystemExit(main())
