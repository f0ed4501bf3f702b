"""Moves packets between socket and memory: `PythonPump` in numpy, `NativePump` by pump.c. Both do the same."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
import warnings
from typing import Any

import numpy as np

from lossbench.workloads.transport.counters import Counters
from lossbench.workloads.transport.flow import Incoming, Outgoing
from lossbench.workloads.transport.half import Half
from lossbench.workloads.transport.mailbox import Mailbox
from lossbench.workloads.transport.native import native
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.policy import Membership
from lossbench.workloads.transport.udp.link import Address, Link

DRAIN = 32  # system calls before the clock is looked at again
OTHERS_BYTES = 1 << 20
BUDGET_US = 5000  # of one call into pump.c


class PythonPump:
    """No compiler needed."""

    def __init__(self, member: Membership, *, link: Link, mail: Mailbox, counters: Counters, wake: int) -> None:
        world = len(member.peers) + 1
        self._link, self._mail, self._peers = link, mail, member.peers
        self._order = [(member.rank + n) % world for n in range(1, world)]
        self._counters, self._window_bytes, self._wake = counters, member.window_bytes, wake
        self._pace_mbit = member.policy.pace_mbit
        self.pace_at = 0.0
        self._blocked = False
        self._frame = np.zeros(1 << 16, dtype=np.uint8)
        self._rank_at = {address: rank for rank, address in member.peers.items()}

    def prepare(self, half: Half) -> None:
        """A half is about to be sent."""

    def allow(self) -> None:
        """Acknowledgements may have made room."""

    def window(self, flow: Outgoing) -> int:
        """Packets that may be under way to this peer."""
        return max((self._window_bytes - self._mail.under_way(flow)) // flow.segment, 0)

    def work(self, half: Half | None, *, sends: bool, wait_s: float) -> None:
        """Send, receive; with nothing to do, sleep until there is."""
        went = self.send(half) if sends and half is not None else False
        if self._drain() or went:
            return
        if self._blocked and sends:
            self._link.wait_either(min(wait_s, 0.001))
        else:
            self._link.wait(wait_s, self._wake)

    def send(self, half: Half) -> bool:
        """One batch to every peer that may have one, the next rank first: incast is spread. False if nothing went."""
        went = self._blocked = False
        for peer in self._order:
            flow = half.outgoing.get(peer)
            if flow is None or (peer in half.absent and not half.reliable):
                continue
            batch = self._link.batch(flow.segment)
            if self._pace_mbit and not self._paced(flow.segment * batch):
                break
            resent = flow.resend_batch(batch)
            numbers = resent if resent is not None else flow.next_batch(batch, self.window(flow))
            if numbers is None:
                continue
            if not self._link.send_rows(flow.frame(numbers, self._frame), self._peers[peer]):
                self._blocked = True
                if resent is not None:
                    flow.put_back(resent)
                break
            went = True
            self._counters.sent[peer] += len(numbers)
            if resent is None:
                flow.cursor += len(numbers)
            else:
                self._counters.resent += len(numbers)
        return went

    def _paced(self, size: int) -> bool:
        """A bucket of two milliseconds."""
        now = time.perf_counter()
        if now < self.pace_at:
            return False
        self.pace_at = max(self.pace_at, now - 0.002) + size * 8 / (self._pace_mbit * 1e6)
        return True

    def _drain(self) -> int:
        for count in range(DRAIN):
            got = self._link.receive()
            if got is None:
                return count
            rows, more = got
            self._sort(rows)
            if more:
                self._sort(self._link.leftover())
        return DRAIN

    def _sort(self, rows: wire.Bytes) -> None:
        """What does not come from where a peer said that it is does not count, whatever it holds."""
        peer = self._rank_at.get(self._link.sender)
        if peer is None:
            self._counters.strangers += max(len(rows), 1)
        else:
            self._mail.take(rows, peer)

    def expect(self, key: bytes, half: Half, flow: Incoming) -> None:
        """A flow is listened to."""

    def forget(self, half: Half) -> None:
        """A half is no longer listened to."""


class NativePump(PythonPump):
    """The same by pump.c; what must be sent again, paced or looked at stays in Python."""

    def __init__(self, library: ctypes.CDLL, member: Membership, **parts: Any) -> None:
        super().__init__(member, **parts)
        self._library = library
        peers = len(self._peers)
        self._in = (native.In * max(4 * peers, 1))()
        self._out = (native.Out * max(peers, 1))()
        self._room, self._others = np.zeros(1 << 16, np.uint8), np.zeros(OTHERS_BYTES, np.uint8)
        self._state = native.State(
            fd=self._link.fileno(),
            wake=self._wake,
            incomings=len(self._in),
            outgoings=len(self._out),
            in_=self._in,
            out=self._out,
            room=self._room.ctypes.data,
            others=self._others.ctypes.data,
            others_bytes=OTHERS_BYTES,
        )
        self._ranks = list(self._peers)
        self._endpoints = np.frombuffer(
            b"".join(_endpoint(self._link.family, self._peers[rank]) for rank in self._ranks) or bytes(1), np.uint8
        )
        self._state.peers, self._state.endpoints = len(self._ranks), self._endpoints.ctypes.data
        self._strangers = 0  # of those that C counted, how many Python knows of
        self._slots: list[tuple[Half, Incoming] | None] = [None] * len(self._in)
        table: Any = np.frombuffer(memoryview(self._in).cast("B"), dtype=np.dtype(native.In))
        self._received = table["received"]
        self._noticed = [(0, 0, 0)] * len(self._in)  # received, new, double: what Python knows of each slot
        self._before = self._received.copy()
        self._sending: list[tuple[Outgoing, native.Out]] = []

    def prepare(self, half: Half) -> None:
        self._sending = []
        for slot, peer in zip(self._out, self._order, strict=False):  # one rank alone has a slot and no peer
            flow = half.outgoing.get(peer)
            slot.used = 0
            if flow is None or half.reliable or peer in half.absent:
                continue
            slot.prefix[:] = flow.prefix
            slot.data, slot.data_bytes, slot.block = flow.data.ctypes.data, len(flow.data), flow.block
            slot.total, slot.segment, slot.batch = flow.total, flow.segment, self._link.batch(flow.segment)
            slot.cursor, slot.limit = flow.cursor, 0
            address = _sockaddr(self._link.family, self._peers[peer])
            ctypes.memmove(slot.address, address, len(address))
            slot.address_bytes = len(address)
            self._sending.append((flow, slot))
            slot.used = 1
        self.allow()

    def allow(self) -> None:
        """What C sent so far, and how far it may go."""
        for flow, slot in self._sending:
            self._counters.sent[flow.peer] += slot.cursor - flow.cursor
            flow.cursor = slot.cursor
            slot.limit = flow.taken + self.window(flow) if flow.ready is None or flow.ready() else 0
            flow.stalled = not flow.sent_all and slot.limit <= slot.cursor

    def _by_hand(self, half: Half) -> bool:
        return half.reliable or bool(self._pace_mbit) or not self._link.segments

    def send(self, half: Half) -> bool:
        if self._by_hand(half):
            return super().send(half)
        flags = ctypes.c_int(0)
        went: int = self._library.pump_send(self._state, 8, flags)
        self._check(flags.value)
        return went > 0

    def work(self, half: Half | None, *, sends: bool, wait_s: float) -> None:
        by_hand = sends and half is not None and self._by_hand(half)
        if by_hand and half is not None and super().send(half):
            wait_s = 0.0
        flags = ctypes.c_int(0)
        in_c = sends and half is not None and not by_hand
        self._library.pump_run(self._state, int(in_c), round(wait_s * 1e6), BUDGET_US, flags)
        self._notice()
        self._counters.strangers += self._state.strangers - self._strangers
        self._strangers = self._state.strangers
        if flags.value & native.OTHERS:
            self._look_at_others()
        self._check(flags.value)

    def _notice(self) -> None:
        """By differences: Python takes packets in, too."""
        for number in np.flatnonzero(self._received != self._before).tolist():
            entry, row = self._slots[number], self._in[number]
            assert entry is not None
            half, flow = entry
            first = flow.count == 0
            received, count, double = self._noticed[number]
            self._noticed[number] = (row.received, row.count, row.duplicates)
            self._before[number] = row.received
            self._counters.received[flow.peer] += row.received - received
            flow.count += row.count - count
            flow.duplicates += row.duplicates - double
            flow.highest = max(flow.highest, row.highest)
            self._mail.noticed(half, flow, first=first)

    def _look_at_others(self) -> None:
        at, end = 0, self._state.others_used
        while at < end:
            size, segment, peer, _ = self._others[at : at + 16].view(np.uint32).tolist()
            rows = self._others[at + 16 : at + 16 + size].reshape(-1, segment)
            self._mail.take(rows, self._ranks[peer])
            at += 16 + (size + 7) // 8 * 8
        self._state.others_used = 0

    def _check(self, flags: int) -> None:
        if flags & native.NO_GSO:
            self._link.segments = False
            warnings.warn("this device takes no UDP GSO: every packet is a system call", stacklevel=2)
        if flags & native.FAILED:
            raise OSError(self._state.error, os.strerror(self._state.error))

    def expect(self, key: bytes, half: Half, flow: Incoming) -> None:
        target = flow.sink.native()
        free = next((n for n, entry in enumerate(self._slots) if entry is None), None)
        if target is None or free is None:
            return
        row = self._in[free]
        row.prefix[:] = key
        row.mode, row.target, row.target_bytes = target
        row.arrived, row.total, row.segment = flow.arrived.ctypes.data, flow.total, flow.segment
        row.peer = self._ranks.index(flow.peer)
        row.count, row.highest = flow.count, flow.highest  # packets that came early were taken in by Python
        row.duplicates = row.received = 0
        self._before[free] = 0
        self._noticed[free] = (0, flow.count, 0)
        self._slots[free] = (half, flow)
        row.used = 1

    def forget(self, half: Half) -> None:
        for number, entry in enumerate(self._slots):
            if entry is not None and entry[0] is half:
                self._in[number].used = 0
                self._slots[number] = None
        for _, slot in self._sending:
            slot.used = 0
        self._sending = []


def _sockaddr(family: int, address: Address) -> bytes:
    """struct sockaddr_in or sockaddr_in6."""
    packed = socket.inet_pton(family, address[0])
    if family == socket.AF_INET:
        return struct.pack("=H", family) + struct.pack("!H", address[1]) + packed + bytes(8)
    return struct.pack("=H", family) + struct.pack("!HI", address[1], 0) + packed + bytes(4)


def _endpoint(family: int, address: Address) -> bytes:
    """Port and address, as pump.c compares them."""
    return (struct.pack("!H", address[1]) + socket.inet_pton(family, address[0])).ljust(native.ENDPOINT_BYTES, b"\0")


def make(library: ctypes.CDLL | str, member: Membership, **parts: Any) -> PythonPump:
    return PythonPump(member, **parts) if isinstance(library, str) else NativePump(library, member, **parts)
