"""The engine in C behind Python's interface: halves in, results out."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np

from lossbench.workloads.transport import structures
from lossbench.workloads.transport.half import Half, Kept
from lossbench.workloads.transport.plan import address
from lossbench.workloads.transport.policy import Membership
from lossbench.workloads.transport.structures import HalfRecord, Reading
from lossbench.workloads.transport.udp.link import Address, Link

# A short wait that is over by then never gives the interpreter away: to get it back takes 5 ms beside a busy thread.
HOLD_S = 0.01
SLICE_S = (
    0.25  # of a longer one: in between Python handles signals (Ctrl-C, a program that aborts when it is told to end)
)


OVER = 1  # of a half; more than that: and this host's device takes packets only one by one


class NativeEngine:
    name: ClassVar[str] = "native"
    build: str  # the library: a hash of its sources and flags
    _here: ClassVar[Counter[bytes]] = Counter()  # by group: ranks of one process must not keep it from each other

    def __init__(self, library: ctypes.CDLL, member: Membership, *, link: Link) -> None:
        policy, world = member.policy, member.world
        self._library, self._world, self._pid = library, world, os.getpid()
        self.build = Path(library._name).name
        self._holding = structures.typed(ctypes.PyDLL(library._name))  # the same, called without giving it away
        settings = structures.Settings(
            fd=link.fileno(),
            rank=member.rank,
            world=world,
            full_tags=policy.tag == "packet",
            pipeline=policy.pipeline,
            send_thread=member.send_thread,
            adaptive=policy.pace == "adaptive",
            ordered=policy.sum_order == "fixed",
            key=(ctypes.c_uint64 * 2)(*struct.unpack("<2Q", member.key)),
            room_bytes=member.window_bytes * max(len(member.peers), 1),
            pace_bytes_s=policy.pace_bytes_s,
            timeout_s=policy.timeout_s,
            reorder_s=policy.reorder_ms / 1000,
            reorder_most_s=policy.reorder_max_ms / 1000,
        )
        self.kept = Kept()
        self._link = link  # its socket goes after the engine that uses it
        self._engine = ctypes.c_void_p(library.lb_new(settings))
        if not self._engine:
            raise MemoryError("no memory for a transport engine")
        for rank, place in member.peers.items():
            packed = _sockaddr(link.family, place)
            library.lb_peer(self._engine, rank, packed, len(packed))
        error = library.lb_start(self._engine)
        if error:
            raise OSError(error, f"no thread for the transport: {os.strerror(error)}")
        self._key = member.key
        NativeEngine._here[self._key] += 1

    def submit(self, halves: list[Half], *, wake: bool) -> None:
        pointers = (ctypes.POINTER(HalfRecord) * len(halves))(*(half.pointer for half in halves))
        self._library.lb_submit(self._engine, pointers, len(halves), wake)

    def submit_pair(
        self, pair: tuple[Half, Half], data: int, mine_at: int, arrived: int, step: int, *, short: bool = False
    ) -> None:
        """The two halves of an all-reduce in place, in one call."""
        library = self._holding if short and NativeEngine._here[self._key] == 1 else self._library
        library.lb_submit_pair(
            self._engine, pair[0].pointer, pair[1].pointer, data, mine_at, arrived, step & 0xFFFFFFFF
        )

    def wait(self, half: Half, timeout_s: float, *, short: bool = False) -> bool:
        """False if the time was over first. `short`: it will be over very soon."""
        if short and NativeEngine._here[self._key] == 1:
            how = self._holding.lb_wait(self._engine, half.pointer, HOLD_S if timeout_s > HOLD_S else timeout_s)
            if how == OVER:
                return True
        else:
            how = OVER if self.over(half) else 0
        until = time.monotonic() + timeout_s
        while not how:
            how = self._library.lb_wait(self._engine, half.pointer, min(SLICE_S, max(timeout_s, 0.0)))
            if not how and (timeout_s := until - time.monotonic()) <= 0:
                return False
        if how != OVER:
            self._link.one_by_one()
        return True

    def over(self, half: Half) -> bool:
        return bool(self._holding.lb_over(half.pointer))

    def release(self, half: Half, number: int) -> None:
        self._library.lb_release(self._engine, half.pointer, number)

    def read(self) -> Reading:
        counts, failure = structures.Counted(), structures.Failure()
        sent, received = np.zeros(self._world, np.uint64), np.zeros(self._world, np.uint64)
        if self._holding.lb_one_by_one(self._engine):
            self._link.one_by_one()
        self._library.lb_read(self._engine, counts, failure, address(sent), address(received))
        return Reading(
            counts={name: getattr(counts, name) for name in structures.COUNTED},
            failure=failure,
            sent=sent.tolist(),
            received=received.tolist(),
        )

    def give_up(self) -> None:
        """A job failed between its halves: nothing more will come from here."""
        self._library.lb_break(self._engine)

    def close(self, patience_s: float) -> None:
        """Whoever is inside is woken and waited for; what comes later is refused, and may still read."""
        NativeEngine._here[self._key] -= 1
        self._library.lb_close(self._engine, patience_s)

    def __del__(self) -> None:
        """Memory goes when nobody can come any more; a fork has a copy, with locks that nobody will open."""
        engine = getattr(self, "_engine", None)
        if engine and os.getpid() == self._pid:
            self._library.lb_free(engine)


def _sockaddr(family: int, place: Address) -> bytes:
    """struct sockaddr_in or sockaddr_in6."""
    packed = socket.inet_pton(family, place[0])
    if family == socket.AF_INET:
        return struct.pack("=H", family) + struct.pack("!H", place[1]) + packed + bytes(8)
    return struct.pack("=H", family) + struct.pack("!HI", place[1], 0) + packed + bytes(4)
