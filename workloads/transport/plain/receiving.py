"""Packets in: see native/receive.c."""

from __future__ import annotations

from collections import deque

import numpy as np

from lossbench.contract import HEADER_BYTES, Header
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.wire import Array, Bytes
from lossbench.workloads.transport.plain.books import Books
from lossbench.workloads.transport.plain.flows import Flow, Open, now_s, together
from lossbench.workloads.transport.plain.state import NACK_PAUSE_S, RING

DRAIN, LEAST_PACKETS = 32, 2


class Receiving(Books):
    def receive_some(self) -> bool:
        for count in range(DRAIN):
            got = self.link.receive()
            if got is None:
                return count > 0
            rows, more = got
            self._sort(rows)
            if more:
                self._sort(self.link.leftover())
        return True

    def _sort(self, rows: Bytes) -> None:
        if not len(rows):
            self.counts["strangers"] += 1
            return
        at = 0
        while at < len(rows):
            first = bytes(rows[at])
            header = Header.unpack(first)
            if not self._known(header):
                self.counts["strangers"] += 1
                at += 1
                continue
            assert header is not None
            if self.failed:
                if self.tags.genuine(first):
                    self.hear_failed(header, first)
                at += 1
                continue
            if header.kind in (wire.DATA, wire.RELIABLE):
                end = at + self._run_length(rows[at:])
                self._hear_data(header, rows[at:end])
                at = end
            else:
                if header.kind in (wire.MARKER, wire.ACK) and self.tags.genuine(first):
                    self.hear_control(header, first)
                else:
                    self.counts["strangers"] += 1
                at += 1

    def _known(self, header: Header | None) -> bool:
        if header is None or header.destination != self.rank or header.source not in self.peers:
            return False
        return self.peers[header.source].address == self.link.sender

    def _run_length(self, rows: Bytes) -> int:
        """Rows at the front that belong to one flow."""
        if len(rows) == 1:
            return 1
        differ = rows[:, : wire.PREFIX_BYTES] != rows[0, : wire.PREFIX_BYTES]
        if self.tags.whole:
            differ[:, 8:16] = False
        odd = np.flatnonzero(differ.any(axis=1))
        return int(odd[0]) if len(odd) else len(rows)

    def _hear_data(self, header: Header, rows: Bytes, *, again: bool = False) -> None:
        if self.tags.whole and not again and not len(rows := self._genuine(rows)):
            return
        sequence, rank = self.full(header.sequence), header.source
        one = self.halves.get(sequence)
        listened = one is not None and one.listening
        if listened:
            assert one is not None
            flow = one.ins.get(rank)
            if not self._expected(one, flow, header, bytes(rows[0])):
                return
        elif not self.tags.genuine(bytes(rows[0])):
            self.counts["strangers"] += len(rows)
            return
        if not again:
            self.peers[rank].received += len(rows)
            if header.behind != wire.NO_WORD:
                self.note_passed(rank, sequence - header.behind)
        if listened:
            assert one is not None and flow is not None
            heard = self._take(one, flow, rows) and not again
        elif sequence >= self.opened:
            last = (sequence, int.from_bytes(bytes(rows[-1, wire.PREFIX_BYTES : HEADER_BYTES]), "little"))
            heard = last > self.peers[rank].early
            self.peers[rank].early = max(last, self.peers[rank].early)
            self.keep_early(sequence, rank, rows.copy())
        else:
            heard = False  # of what is over: it may be a recording
            self.hear_late(sequence, rank, rows, reliable=header.kind == wire.RELIABLE)
        if heard:
            self.peers[rank].heard = now_s()

    def _genuine(self, rows: Bytes) -> Bytes:
        """Where whole packets are tagged, each speaks for itself."""
        good = np.zeros(len(rows), np.bool_)
        if rows.shape[1] > HEADER_BYTES:
            good = rows[:, 8:16].copy().view(np.uint64)[:, 0] == self.tags.of_rows(rows)
        self.counts["strangers"] += int((~good).sum())
        return rows[good]

    def _expected(self, one: Open, flow: Flow | None, header: Header, first: bytes) -> bool:
        known = first[: wire.PREFIX_BYTES]
        if self.tags.whole:
            known = known[:8] + bytes(8) + known[16:]
        if flow is not None and flow.prefix == known:
            return True
        if not self.tags.genuine(first):
            self.counts["strangers"] += 1
            return False
        if flow is None or self.differs(one, flow, header):
            self.disagree(one, flow, header, 0)
            return False
        flow.prefix = known
        return True

    @staticmethod
    def differs(one: Open, flow: Flow, theirs: Header, kind: int | None = None) -> bool:
        mine = one.header(flow, source=0, destination=0)
        names = ("step", "half", "dtype", "size", "block")
        same = all(getattr(mine, name) == getattr(theirs, name) for name in names)
        return not same or mine.kind != (theirs.kind if kind is None else kind)

    def _take(self, one: Open, flow: Flow, rows: Bytes) -> bool:
        """Whether any of them was new: what came before proves nothing (anybody can repeat it)."""
        now = now_s()
        numbers = rows[:, wire.PREFIX_BYTES : HEADER_BYTES].copy().view(np.uint32)[:, 0].astype(np.int64)
        good = self._sound(flow, numbers, rows)
        if len(good):
            before = flow.top
            taken = together(good)
            numbers = numbers[taken]
            flow.arrived[together(numbers)] = 1
            flow.count += len(numbers)
            one.put(flow, numbers, rows[taken])
            flow.top = max(flow.top, int(numbers.max()) + 1)
            flow.highest = max(flow.highest, flow.top)
            self._watch_order(one, flow, numbers, before, now)
            self._after(one, flow, now)
        return len(good) > 0

    def _sound(self, flow: Flow, numbers: Array, rows: Bytes) -> Array:
        """Which of these rows are new and right, by index."""
        right = numbers < flow.packets
        lengths = np.minimum(flow.payload, flow.size - np.where(right, numbers, 0) * flow.payload)
        right &= lengths == rows.shape[1] - HEADER_BYTES
        self.counts["strangers"] += int((~right).sum())
        index = np.flatnonzero(right)
        fresh = index[flow.arrived[numbers[index]] == 0]
        _, once = np.unique(numbers[fresh], return_index=True)
        flow.duplicates += len(index) - len(once)
        out: Array = fresh[np.sort(once)]
        return out

    def _watch_order(self, one: Open, flow: Flow, numbers: Array, before: int, now: float) -> None:
        tops = np.maximum.accumulate(np.concatenate([[before - 1], numbers[:-1]]))
        inverted = int((numbers < tops).sum())
        if inverted and not one.reliable:
            behind = (now - flow.highest_at) * 1.5 + self.reorder_least_s
            self.reorder_s = min(max(self.reorder_s, behind), self.reorder_most_s)
            self.counts["reordered"] += inverted
            self.since_inversion = 0
        else:
            self.since_inversion += len(numbers)
        if flow.top > before:
            flow.highest_at = now

    def _after(self, one: Open, flow: Flow, now: float) -> None:
        flow.heard_at = one.progress = now
        one.first = one.first or now
        if flow.done:
            return
        if one.enough(flow):
            one.complete(flow)
            if one.reliable:
                self.acknowledge(one, flow, wire.FINISHED)
            return
        if not one.reliable and flow.highest == flow.packets:
            self.flow_ended(one, flow)
        holes = one.reliable and one.to_repair(flow) and now - flow.nacked_at > NACK_PAUSE_S
        if holes or self._credit_due(one, flow):
            flow.nacked_at = now if holes else flow.nacked_at
            self.acknowledge(one, flow, wire.GOING_ON)

    def window_for(self, one: Open) -> int:
        waiting = [peer for peer in one.in_left if not one.ins[peer].ended]
        return min(self.window // max(len(waiting), 1), 1 << 30)

    def limit_for(self, one: Open, flow: Flow) -> int:
        limit = flow.highest + max(self.window_for(one) // flow.segment, LEAST_PACKETS)
        return max(min(limit, flow.packets), flow.limit)

    def _credit_due(self, one: Open, flow: Flow) -> bool:
        if flow.limit >= flow.packets:
            return False
        fresh = self.limit_for(one, flow) - flow.limit
        return fresh > self.window_for(one) // flow.segment // 4 or (fresh > 0 and flow.limit <= flow.highest)

    # --- early and late ---------------------------------------------------------------------------------------------

    def keep_early(self, sequence: int, rank: int, rows: bytes | Bytes) -> None:
        size, room = _size(rows), (self.pipeline + 1) * self.room_bytes
        keep = sequence - self.closed_below < RING and size <= room
        before = self.early_markers.get(sequence, {}).get(rank)
        if isinstance(rows, bytes) and keep and before is not None:  # a marker: the latest says all
            self.early_markers[sequence][rank] = (now_s(), rows)  # how long it was held is asked of the latest
            self.early_bytes += size - len(before[1])
            return
        while keep and self.early_bytes + size > room:
            keep = self._forget_beyond(sequence)
        if not keep:
            self.counts["early"] += _packets(rows)
            return
        self.early_bytes += size
        if isinstance(rows, bytes):
            self.early_markers.setdefault(sequence, {})[rank] = (now_s(), rows)
        else:
            self.early.setdefault(sequence, deque()).append((rank, rows))

    def _forget_beyond(self, sequence: int) -> bool:
        """Nearer halves go first: whoever runs wild far ahead must not take the room of what is needed next."""
        farthest = max((*self.early, *self.early_markers), default=sequence)
        if farthest <= sequence:
            return False
        rows: bytes | Bytes
        if farthest in self.early:
            _, rows = self.early[farthest].popleft()
        else:
            _, (_, rows) = self.early_markers[farthest].popitem()
        for kept in (self.early, self.early_markers):
            if not kept.get(farthest, True):
                del kept[farthest]
        self.early_bytes -= _size(rows)
        self.counts["early"] += _packets(rows)
        return True

    def replay_early(self, one: Open) -> None:
        """What was sent, before what is said of it."""
        for _, rows in self.early.pop(one.sequence, ()):
            self.early_bytes -= _size(rows)
            header = Header.unpack(bytes(rows[0]))
            assert header is not None
            if not self.failed:
                self._hear_data(header, rows, again=True)
        for rank, (arrived, marker) in self.early_markers.pop(one.sequence, {}).items():
            self.early_bytes -= len(marker)
            header = Header.unpack(marker)
            assert header is not None
            if not self.failed:
                self.hear_marker(rank, header, wire.Control.unpack(marker[HEADER_BYTES:]), marker, arrived)

    # --- what control.py does ---------------------------------------------------------------------------------------

    def acknowledge(self, one: Open, flow: Flow, state: int) -> None:
        raise NotImplementedError

    def hear_control(self, header: Header, packet: bytes) -> None:
        raise NotImplementedError

    def hear_marker(self, rank: int, header: Header, c: wire.Control, packet: bytes, arrived: float) -> None:
        raise NotImplementedError

    def note_passed(self, rank: int, passed: int) -> None:
        raise NotImplementedError

    def disagree(self, one: Open, flow: Flow | None, theirs: Header, their_bytes: int) -> None:
        raise NotImplementedError

    def hear_failed(self, header: Header, packet: bytes) -> None:
        raise NotImplementedError


def _size(rows: bytes | Bytes) -> int:
    return len(rows) if isinstance(rows, bytes) else rows.size


def _packets(rows: bytes | Bytes) -> int:
    return 1 if isinstance(rows, bytes) else len(rows)
