"""Who gets which packet: sorts what the socket brings, keeps what is early, answers markers, hears acknowledgements."""

from __future__ import annotations

import time
from collections.abc import Callable

from lossbench.contract import HEADER, HEADER_BYTES, MAGIC, VERSION
from lossbench.workloads.transport.counters import Counters
from lossbench.workloads.transport.flow import BUSY_PAUSE_S, Incoming, Outgoing
from lossbench.workloads.transport.half import Half, Pump, bitmap, from_bitmap
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.patience import Answers
from lossbench.workloads.transport.policy import Membership

SendControl = Callable[[int, bytes], None]
BITMAP_BYTES = 1024
GOING_ON, FINISHED, BUSY = 0, 1, 2  # an acknowledgement's state: want more, want nothing more, not here yet
REMEMBERED = 8  # closed halves whose late packets can still be told from double ones
EARLY_HALVES = 1024  # whose markers are kept
EARLY_FACTOR = 2  # early packets kept, in windows; more can't come from peers that keep to theirs


class Mailbox:
    def __init__(self, member: Membership, *, counters: Counters, send: SendControl) -> None:
        self._rank, self._token, self._peers = member.rank, member.token, member.peers
        peers, self._policy = member.peers, member.policy
        self._counters, self._send = counters, send
        self._window_bytes, self.allowance_s = member.window_bytes, member.policy.reorder_ms / 1000
        self._expected: dict[bytes, tuple[Half, Incoming]] = {}
        self._open: dict[int, Half] = {}  # by 16-bit sequence
        self._next = 0  # first sequence that was not listened to yet
        self._early: dict[int, list[tuple[int, wire.Bytes]]] = {}
        self._early_bytes = 0
        self._early_markers: dict[int, dict[int, tuple[int, int]]] = {}
        self._out: dict[int, dict[int, Outgoing]] = {peer: {} for peer in peers}  # by peer, by sequence
        self._remembered: dict[int, Half] = {}
        self.heard = dict.fromkeys(peers, time.perf_counter())  # when each peer last gave a sign of life
        self._all_came = True  # in the latest half
        self._silent = dict.fromkeys(peers, 0)  # halves in a row without a sign of it
        self._answers = Answers(peers)
        self.pump: Pump  # set by the endpoint: the two need each other

    # --- halves come and go ------------------------------------------------------------------------------------------

    def listen(self, half: Half, keys: dict[int, bytes]) -> None:
        number = half.sequence % wire.SEQUENCES
        self._open[number] = half
        self._next = half.sequence + 1
        for peer, key in keys.items():
            self._expected[key] = (half, half.incoming[peer])
        for peer, rows in self._early.pop(number, ()):
            self._early_bytes -= rows.size
            self._sort(rows, peer, counted=True)
        for peer, key in keys.items():
            self.pump.expect(key, half, half.incoming[peer])
        for peer, (total, sent) in self._early_markers.pop(number, {}).items():
            self._marker(half, peer, total, sent)

    def sending(self, half: Half) -> None:
        for peer, flow in half.outgoing.items():
            flow.patient, flow.answer_s = self._all_came, self._answers.seconds[peer]
            flow.stalled = peer in half.absent  # it gets markers, so that it can be heard again, but no data
            self._out[peer][half.sequence] = flow

    def closed(self, half: Half) -> None:
        """No longer listened to; its markers are still repeated for a while."""
        self._forget(half)
        half.let_go()
        for peer, flow in half.incoming.items():
            heard = flow.count or flow.ended_at is not None or flow.total == 0
            self._silent[peer] = 0 if heard else self._silent[peer] + 1
            self._counters.duplicates += flow.duplicates
        self._all_came = all(flow.complete for flow in half.incoming.values())
        until = time.perf_counter() + 2 * self._policy.deadline_max_ms / 1000
        for peer, out in half.outgoing.items():
            out.expires = until
            if out.finished:
                self._out[peer].pop(half.sequence, None)

    def _forget(self, half: Half) -> None:
        number = half.sequence % wire.SEQUENCES
        self._open.pop(number, None)
        self.pump.forget(half)
        self._expected = {key: entry for key, entry in self._expected.items() if entry[0] is not half}
        self._remembered[number] = half
        if len(self._remembered) > REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def abandon(self) -> None:
        """A job failed: nothing of it is waited for any more."""
        for half in list(self._open.values()):
            half.sending = False
            self._forget(half)
            half.let_go()
        for flows in self._out.values():
            flows.clear()

    def absent(self) -> frozenset[int]:
        return frozenset(peer for peer, halves in self._silent.items() if halves >= self._policy.absent_after)

    def under_way(self, flow: Outgoing) -> int:
        """Bytes of other halves that this peer has not taken in yet."""
        flows = self._out[flow.peer]
        if len(flows) <= 1:
            return 0
        others = [other for other in list(flows.values()) if other is not flow]
        return sum((other.cursor - other.taken) * other.segment for other in others)

    # --- packets -----------------------------------------------------------------------------------------------------

    def take(self, rows: wire.Bytes, peer: int) -> None:
        """Rows of one system call, from this peer's address: nearly always packets of one flow of an open half."""
        if rows.shape[1] < HEADER_BYTES:
            self._counters.strangers += len(rows)
            return
        found = self._expected.get(rows[0, : wire.PREFIX_BYTES].tobytes())
        if found is not None and found[1].peer == peer and rows.shape[1] == found[1].segment and wire.one_flow(rows):
            self._counters.received[found[1].peer] += len(rows)
            self._data(found[0], found[1], rows)
            return
        for part in wire.flows_of(rows):
            self._sort(part, peer, counted=False)

    def _sort(self, rows: wire.Bytes, peer: int, *, counted: bool) -> None:
        """Rows of one prefix, whatever it is. Nobody speaks for somebody else."""
        magic, version, kind, token, source, destination, marker, _, state, sequence, block, chunk = HEADER.unpack_from(
            rows[0]
        )
        known = (magic, version, token, destination) == (MAGIC, VERSION, self._token, self._rank)
        if not known or source != peer:
            self._counters.strangers += len(rows)
            return
        if not counted:
            self._counters.received[source] += len(rows)
        self._silent[source] = 0
        self.heard[source] = time.perf_counter()
        if kind != wire.ACK:
            self._passed(sequence, source)
        half = self._open.get(sequence)
        if kind in (wire.DATA, wire.RELIABLE):
            self._sort_data(rows, source, sequence)
        elif kind == wire.MARKER:
            if half is not None:
                self._marker(half, source, block, chunk, marker)
            elif wire.ahead(sequence, self._next) >= 0:
                if sequence in self._early_markers or len(self._early_markers) < EARLY_HALVES:
                    self._early_markers.setdefault(sequence, {})[source] = (block, chunk)  # else it comes again
                self._acknowledge(source, sequence, taken=0, state=BUSY, marker=marker)
            else:
                self._acknowledge(source, sequence, taken=block, state=FINISHED, marker=marker)
        elif kind == wire.ACK:
            if state == BUSY:
                self._still_busy(half, source, sequence)
            self._acknowledged(
                source, sequence, bytes(rows[-1]), finished=state == FINISHED, base=block, taken=chunk, marker=marker
            )
        else:
            self._counters.strangers += len(rows)

    def _sort_data(self, rows: wire.Bytes, source: int, sequence: int) -> None:
        found = self._expected.get(rows[0, : wire.PREFIX_BYTES].tobytes())
        if found is not None and rows.shape[1] == found[1].segment:
            self._data(found[0], found[1], rows)
        elif sequence in self._open:
            self._counters.mismatched += len(rows)
        elif wire.ahead(sequence, self._next) >= 0:
            if self._early_bytes + rows.size > EARLY_FACTOR * self._window_bytes * len(self._peers):
                self._counters.strangers += len(rows)
                return
            self._early.setdefault(sequence, []).append((source, rows.copy()))
            self._early_bytes += rows.size
        else:
            self._late(rows, source, sequence)

    def _data(self, half: Half, flow: Incoming, rows: wire.Bytes) -> None:
        first = flow.count == 0
        flow.take(rows)
        self.noticed(half, flow, first=first)

    def noticed(self, half: Half, flow: Incoming, *, first: bool) -> None:
        """A flow took packets in: what follows from it."""
        now = time.perf_counter()
        self.heard[flow.peer] = now
        self._silent[flow.peer] = 0
        if half.first_packet is None:
            half.first_packet = now
        if first:
            self._passed(half.sequence, flow.peer)
        if flow.complete:
            self._acknowledge(flow.peer, half.sequence, taken=flow.total, state=FINISHED)
        elif (flow.highest - flow.acknowledged) * flow.segment * 4 > self._window_bytes:
            flow.acknowledged = flow.highest
            self._acknowledge(flow.peer, half.sequence, taken=flow.highest, state=GOING_ON)

    def _passed(self, sequence: int, peer: int) -> None:
        """A packet of a half says that its sender has ended the halves before it."""
        for half in self._open.values():
            flow = half.incoming.get(peer)
            if flow is None or wire.ahead(sequence, half.sequence) <= 0:
                continue
            if flow.ended_at is None:
                flow.ended_at = time.perf_counter()
                half.first_packet = half.first_packet or flow.ended_at
            if half.reliable and not flow.complete:
                half.given_up_by = peer  # nobody leaves a reliable half that others still need, unless it failed

    def _late(self, rows: wire.Bytes, source: int, sequence: int) -> None:
        """Of a closed half: counted; if an end marker overtook it, the next halves wait a little longer."""
        half = self._remembered.get(sequence)
        if half is None or (flow := half.incoming.get(source)) is None:
            self._counters.late += len(rows)
            return
        index = wire.column(rows, wire.CHUNK_AT)
        index = index[index < flow.total]
        double = int(flow.arrived[index].sum())
        self._counters.duplicates += double
        self._counters.late += len(rows) - double
        if half.closed == "markers" and len(rows) > double:
            behind = time.perf_counter() - half.closed_at + self.allowance_s
            self.allowance_s = min(max(self.allowance_s, 1.5 * behind), self._policy.reorder_max_ms / 1000)

    # --- markers and acknowledgements --------------------------------------------------------------------------------

    def _marker(self, half: Half, peer: int, total: int, sent: int, marker: int = 0) -> None:
        flow = half.incoming.get(peer)
        if flow is None or flow.total != total:
            self._counters.mismatched += 1
            return
        now = time.perf_counter()
        if half.first_packet is None:
            half.first_packet = now
        flow.highest, all_sent = max(flow.highest, min(sent, total)), sent >= total
        if all_sent and flow.ended_at is None:
            flow.ended_at = now
        done = flow.complete if half.reliable else all_sent
        self._acknowledge(
            peer,
            half.sequence,
            taken=flow.highest,
            state=FINISHED if done else GOING_ON,
            missing=flow if half.reliable else None,
            marker=marker,
        )

    def _acknowledge(
        self, peer: int, sequence: int, *, taken: int, state: int, missing: Incoming | None = None, marker: int = 0
    ) -> None:
        """`marker`: the one this answers; 0 if nobody asked."""
        prefix = self._control_prefix(wire.ACK, peer, sequence, state=state, marker=marker)
        base, body = 0, b""
        if missing is not None and state != FINISHED:
            gone = missing.missing()
            base, body = bitmap(gone[gone < missing.highest], BITMAP_BYTES)
        self._send(peer, wire.control(prefix, block=base, chunk=taken, body=body))

    def _still_busy(self, half: Half | None, peer: int, sequence: int) -> None:
        """A peer that has not come to this half yet is slow, not lost: the deadline begins anew."""
        for out in (one for number, one in self._out[peer].items() if number % wire.SEQUENCES == sequence):
            out.marker_at = time.perf_counter() + BUSY_PAUSE_S
        if half is not None and half.first_packet is not None and peer in half.incoming:
            flow = half.incoming[peer]
            if not flow.count and flow.ended_at is None:
                half.first_packet = time.perf_counter()

    def _acknowledged(
        self, peer: int, sequence: int, packet: bytes, *, finished: bool, base: int, taken: int, marker: int
    ) -> None:
        now = time.perf_counter()
        for number, flow in list(self._out[peer].items()):
            if number % wire.SEQUENCES == sequence:
                body = packet[HEADER_BYTES:]
                missing = from_bitmap(base, body, flow.total) if body else None
                self._answers.took(peer, flow.answered(marker, now))
                flow.acknowledged(taken=taken, finished=finished, missing=missing, now=now)
                if finished:
                    del self._out[peer][number]
            elif wire.ahead(sequence, number) > 0 and flow.expires is not None:
                del self._out[peer][number]  # the peer is in a later half
                flow.finished = True

    def next_marker_s(self, now: float) -> float | None:
        """Until the next marker is due; None if none is."""
        flows = [f for flows in self._out.values() for f in flows.values()]
        times = [f.marker_at for f in flows if not f.finished and (f.sent_all or f.stalled)]
        return max(min(times) - now, 0.0) if times else None

    def send_markers(self, now: float) -> None:
        for peer, flows in self._out.items():
            for number, flow in list(flows.items()):
                if flow.expires is not None and flow.expires < now:
                    del flows[number]
                elif (flow.sent_all or flow.stalled) and flow.marker_due(now):
                    prefix = self._control_prefix(wire.MARKER, peer, number, state=0, marker=flow.markers)
                    self._send(peer, wire.control(prefix, block=flow.total, chunk=flow.cursor))
                    self._counters.markers += 1

    def _control_prefix(self, kind: int, peer: int, sequence: int, *, state: int, marker: int) -> bytes:
        return wire.Prefix(kind, self._token, self._rank, peer, marker, 0, state, sequence).pack()
