"""The two ends of one peer's packets in one half: what was sent and is allowed to be sent, what arrived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lossbench.contract import HEADER_BYTES
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.sink import Sink

Index = NDArray[np.uint32]

MARKER_FIRST_S, MARKER_MAX_S = 0.001, 0.05
QUICK_REPEATS, BUSY_PAUSE_S = 24, 0.02
PATIENCE_S = 0.0007
ANSWER_FACTOR, MARKERS_KNOWN = 1.5, 64
_COUNT_UP = np.arange(1 << 16, dtype=np.uint32)


@dataclass(kw_only=True)
class Outgoing:
    """Packets for one peer, cut from `data` when they are sent."""

    peer: int
    data: wire.Bytes
    segment: int
    prefix: bytes
    block: int
    ready: Callable[[], bool] | None = None  # False while `data` is still being copied here
    total: int = field(init=False)
    cursor: int = 0  # packets sent so far
    taken: int = 0  # packets the peer says it took in
    finished: bool = False  # the peer wants nothing more
    resend: Index | None = None  # reliable: what the peer misses
    marker_at: float = 0.0  # when to send the next marker
    answer_s: float = 0.0  # how long this peer takes to answer a marker: no use in asking again before
    marker_pause_s: float = MARKER_FIRST_S
    repeats: int = 0
    markers: int = 0  # number of the latest one, from 1
    marked: dict[int, float] = field(default_factory=dict)  # when each of the latest markers went
    expires: float | None = None  # its half is closed: markers are repeated until then
    patient: bool = False  # nothing was lost lately: the peer will say by itself that all has come
    stalled: bool = False  # there is more to send, but the peer has no room for it

    def __post_init__(self) -> None:
        self.total = -(-len(self.data) // (self.segment - HEADER_BYTES))

    @property
    def sent_all(self) -> bool:
        return self.cursor >= self.total

    def next_batch(self, batch: int, window: int) -> Index | None:
        """Numbers of the packets that may go next; None if there are none, or no more may be under way."""
        allowed = min(batch, self.total - self.cursor, window - (self.cursor - self.taken))
        if self.ready is not None and not self.ready():
            return None
        self.stalled = allowed <= 0 and not self.sent_all
        return None if allowed <= 0 else np.arange(self.cursor, self.cursor + allowed, dtype=np.uint32)

    def resend_batch(self, batch: int) -> Index | None:
        if self.resend is None or not len(self.resend):
            return None
        some, self.resend = self.resend[:batch], self.resend[batch:]
        return some

    def put_back(self, numbers: Index) -> None:
        """The network did not take what `resend_batch` gave."""
        assert self.resend is not None
        self.resend = np.concatenate([numbers, self.resend])

    def frame(self, numbers: Index, room: wire.Bytes) -> wire.Bytes:
        """These packets in `room`, ready to be sent; the last one of a block is filled up with zeros."""
        size = self.segment - HEADER_BYTES
        rows = room[: len(numbers) * self.segment].reshape(len(numbers), self.segment)
        rows[:, : wire.PREFIX_BYTES] = np.frombuffer(self.prefix, dtype=np.uint8)
        wire.column(rows, wire.BLOCK_AT)[:] = self.block
        wire.column(rows, wire.CHUNK_AT)[:] = numbers
        whole = len(self.data) // size
        payload = rows[:, HEADER_BYTES:]
        if int(numbers[-1]) < whole:
            cut = self.data[: whole * size].reshape(whole, size)
            first, last = int(numbers[0]), int(numbers[-1]) + 1
            payload[:] = cut[first:last] if last - first == len(numbers) else cut[numbers]
            return rows
        for row, number in zip(payload, numbers.tolist(), strict=True):  # a block's last batch
            part = self.data[number * size : (number + 1) * size]
            row[: len(part)] = part
            row[len(part) :] = 0
        return rows

    def acknowledged(self, *, taken: int, finished: bool, missing: Index | None, now: float) -> None:
        if taken > self.taken or missing is not None:
            self.marker_pause_s, self.repeats = MARKER_FIRST_S, 0
        self.taken = max(self.taken, min(taken, self.total))
        self.finished = self.finished or finished
        if missing is not None and not self.finished and (self.resend is None or not len(self.resend)):
            self.resend = missing
            self.marker_at = now  # ask again as soon as these are sent

    def answered(self, marker: int, now: float) -> float | None:
        """The time from this marker to its answer; None if it is not known any more."""
        sent = self.marked.pop(marker, None)
        return None if sent is None else now - sent

    def marker_due(self, now: float) -> bool:
        """Spaced in time until acknowledged; quickly at first, since a burst of losses may take many in a row."""
        if self.finished or now < self.marker_at or (self.resend is not None and len(self.resend)):
            return False
        if self.patient:
            self.patient, self.marker_at = False, now + PATIENCE_S
            return False
        self.marker_at = now + max(self.marker_pause_s, ANSWER_FACTOR * self.answer_s)
        self.repeats += 1
        self.markers = self.markers % MARKERS_KNOWN + 1
        self.marked[self.markers] = now
        if self.repeats > QUICK_REPEATS:
            self.marker_pause_s = min(2 * self.marker_pause_s, MARKER_MAX_S)
        return True


@dataclass(kw_only=True)
class Incoming:
    """Packets from one peer."""

    peer: int
    total: int
    segment: int
    sink: Sink
    arrived: wire.Bits = field(init=False)
    count: int = 0
    duplicates: int = 0
    highest: int = 0  # one past the highest number seen, or said by a marker
    acknowledged: int = 0  # what the peer was last told
    ended_at: float | None = None  # when its end marker (or a packet of a later half) came

    def __post_init__(self) -> None:
        self.arrived = np.zeros(self.total, dtype=np.bool_)

    @property
    def complete(self) -> bool:
        return self.count >= self.total

    def take(self, rows: wire.Bytes) -> None:
        """New packets among these rows go to where they belong."""
        index = wire.column(rows, wire.CHUNK_AT)
        many, first = len(index), int(index[0])
        if first + many <= self.total and (index - np.uint32(first) == _COUNT_UP[:many]).all():
            part = self.arrived[first : first + many]
            if not part.any():
                part[:] = True
                self.sink.run(first, rows)
                self._counted(many, first + many)
                return
        self._take_odd(index, rows)

    def _take_odd(self, index: Index, rows: wire.Bytes) -> None:
        """With gaps, out of order, twice, or numbers that can't be."""
        good = index < self.total
        good[good] = ~self.arrived[index[good]]
        if len(index) > 1 and not (index[1:] > index[:-1]).all():
            first_of_its_number = np.zeros(len(index), dtype=np.bool_)
            first_of_its_number[np.unique(index, return_index=True)[1]] = True
            good &= first_of_its_number
        if not good.all():
            self.duplicates += int(len(good) - good.sum())
            index, rows = index[good], rows[good]
            if not len(index):
                return
        self.arrived[index] = True
        self.sink.some(index, rows)
        self._counted(len(index), int(index.max()) + 1)

    def _counted(self, many: int, end: int) -> None:
        self.count += many
        self.highest = max(self.highest, end)

    def missing(self) -> Index:
        return np.flatnonzero(~self.arrived).astype(np.uint32)
