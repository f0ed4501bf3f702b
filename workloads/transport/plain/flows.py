"""Flows and halves as Python objects, made from the rows and the record of a Half; results go back there."""

from __future__ import annotations

import ctypes
import math
import time
from dataclasses import dataclass, field

import numpy as np

from lossbench.contract import HEADER_BYTES, Header
from lossbench.workloads.transport import structures
from lossbench.workloads.transport.half import Half
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.codec import CODECS, Codec
from lossbench.workloads.transport.packet.wire import Array, Bytes
from lossbench.workloads.transport.structures import ADD_BF16, ADD_F16, ADD_F32, FLOW, IN_ORDER

CODEC_OF = {1: CODECS["float32"], 2: CODECS["bfloat16"], 3: CODECS["float16"]}
ROUNDS_IN_VAIN = 32
RESULTS = ("peer", "block", "segment", "packets", "cursor", "count", "highest", "duplicates", "ended")
ADDED = {ADD_F32: CODECS["float32"], ADD_BF16: CODECS["bfloat16"], ADD_F16: CODECS["float16"]}


def memory(at: int | None, size: int) -> Bytes:
    """Bytes at an address."""
    if not size or not at:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_uint8)), shape=(size,))


def together(numbers: Array) -> Array | slice:
    """Numbers as a slice where one follows the other, as they mostly do: what is taken by it is not copied."""
    first, last = (int(numbers[at]) for at in (0, -1))
    return slice(first, last + 1) if last - first == len(numbers) - 1 and (np.diff(numbers) == 1).all() else numbers


@dataclass(kw_only=True)
class Flow:
    peer: int
    block: int
    segment: int
    packets: int
    size: int  # bytes of payload
    data: Bytes
    arrived: Bytes
    weight: float = 1.0
    held: bool = False
    cursor: int = 0
    limit: int = 0
    count: int = 0
    highest: int = 0
    top: int = 0  # one past the highest number that came
    solid: int = 0  # below it nothing is missing, or more: where a look for holes begins
    duplicates: int = 0
    done: bool = False
    ended: bool = False
    prefix: bytes = b""
    marker: int = 0
    repair_after: int = 0
    repair: list[int] = field(default_factory=list)
    repaired_some: bool = False
    repeats: int = 0
    due: float = 0.0
    pause: float = 0.0
    asked_at: float = 0.0
    marker_at: float = 0.0
    highest_at: float = 0.0
    heard_at: float = 0.0
    nacked_at: float = 0.0
    seen: int = 0  # packets at the last look, and looks since
    looks: int = 0
    answered: int = 0  # the number of our answer to the last look

    @property
    def payload(self) -> int:
        return self.segment - HEADER_BYTES

    def length(self, number: int) -> int:
        return min(self.payload, self.size - number * self.payload)

    def rows(self, numbers: Array, room: Bytes) -> Bytes:
        """These packets (all of full length) in `room`, ready to be sent."""
        out = room[: len(numbers) * self.segment].reshape(len(numbers), self.segment)
        out[:, :HEADER_BYTES] = np.frombuffer(self.prefix, np.uint8)
        out[:, wire.PREFIX_BYTES : HEADER_BYTES].view(np.uint32)[:, 0] = numbers
        whole = self.size // self.payload
        out[:, HEADER_BYTES:] = self.data[: whole * self.payload].reshape(whole, self.payload)[together(numbers)]
        return out

    def single(self, number: int) -> bytes:
        start = number * self.payload
        head = self.prefix[: wire.PREFIX_BYTES] + int(number).to_bytes(4, "little")
        return head + self.data[start : start + self.length(number)].tobytes()


class Open:
    """A half that was asked for."""

    sequence: int  # when it is its turn

    def __init__(self, half: Half, *, ordered: bool = True) -> None:
        self.half, self.record = half, half.record
        record = self.record
        self.reliable, self.mode = bool(record.reliable), record.mode
        self.in_order = record.reliable == IN_ORDER
        self.must_all = self.reliable and record.close_fraction >= 1  # else lossy, or repaired in part
        plans = (
            memory(at, n * FLOW.itemsize).view(FLOW)
            for at, n in ((record.plan_in, record.ins), (record.plan_out, record.outs))
        )
        scale = 2 if self.mode in (ADD_BF16, ADD_F16) else 1  # sums are twice as wide as what comes
        incoming, outgoing = plans
        self.ins = {f.peer: f for f in (self._in(row, scale) for row in incoming)}
        self.outs = {f.peer: f for f in (self._out(row) for row in outgoing)}
        self.in_left = set(self.ins)
        self.out_left = set(self.outs)
        self.sending = self.listening = False
        self.began = self.first = self.progress = self.last_ended = 0.0
        # Floats are added in the order of `ins`, where all of them come: the same bits at every call.
        ordered = ordered and self.must_all and self.mode in ADDED and len(self.ins) > 1
        later = list(self.ins.values())[1:] if ordered else []
        self._waiting = {flow.peer: np.empty(flow.size, np.uint8) for flow in later}
        self._begin_numbers()

    def _in(self, row: Array, scale: int) -> Flow:
        record = self.record
        arrived = memory((record.arrived or 0) + int(row["arrived"]), int(row["packets"]))
        arrived[:] = 0
        at, size = (record.base_in or 0) + int(row["data"]), int(row["bytes"])
        return _flow(row, data=memory(at, scale * size), arrived=arrived)

    def _out(self, row: Array) -> Flow:
        at, size = (self.record.base_out or 0) + int(row["data"]), int(row["bytes"])
        return _flow(row, data=memory(at, size), arrived=np.zeros(0, np.uint8), held=bool(self.record.hold))

    def wanted(self, flow: Flow) -> int:
        """Packets that must arrive."""
        if self.must_all:
            return flow.packets
        return min(math.ceil(np.float32(self.record.close_fraction) * np.float32(flow.packets)), flow.packets)

    def enough(self, flow: Flow) -> bool:
        """Nothing of it is asked for again."""
        ended = self.reliable and flow.highest == flow.packets
        return flow.count == flow.packets or (ended and flow.count >= self.wanted(flow))

    def to_repair(self, flow: Flow) -> int:
        """Of those that are missing now."""
        return max(flow.highest - flow.count - (flow.packets - self.wanted(flow)), 0)

    def in_vain(self, flow: Flow, *, heard: int, answer: int) -> bool:
        """Of a flow that is repaired in part: so many rounds that brought nothing are enough. Some losses are for ever
        (a block, by its number). A round is an answer that was heard: of a rank that slept, many markers wait that knew
        of none. `heard`: the latest, by the marker; `answer`: the number of the one to come."""
        if self.must_all or flow.highest < flow.packets:
            return False
        flow.looks = 0 if flow.seen != flow.count else flow.looks
        flow.seen = flow.count
        if flow.looks and heard < flow.answered:
            return False
        flow.looks, flow.answered = flow.looks + 1, answer
        return flow.looks > ROUNDS_IN_VAIN

    def known_sent(self, flow: Flow, *, deadline: bool) -> int:
        """What did not come of it was lost: nothing else can. A deadline is silence: what was sent would be here."""
        if flow.count == flow.packets:
            return flow.packets
        return flow.highest if flow.ended or deadline else 0

    def complete(self, flow: Flow) -> None:
        flow.done = True
        flow.ended = flow.ended or flow.count < flow.packets  # what is missing the network took
        self.in_left.discard(flow.peer)

    def header(self, flow: Flow, *, source: int, destination: int) -> Header:
        record = self.record
        return Header(
            kind=wire.RELIABLE if self.must_all else wire.DATA,
            tag=0,
            source=source,
            destination=destination,
            sequence=self.sequence,
            step=record.step,
            half=record.half,
            dtype=record.dtype,
            traffic=record.traffic,
            size=record.size,
            block=flow.block,
        )

    # --- numbers --------------------------------------------------------------------------------------------------

    @property
    def _sums(self) -> Array:
        return memory(self.record.sums, 4 * self.record.elements).view(np.float32)

    @property
    def _codec(self) -> Codec:
        return CODEC_OF[self.record.kind]

    def _begin_numbers(self) -> None:
        record = self.record
        if not record.rounded or record.sums == record.own_part:
            return
        codec = self._codec
        if not record.own_part:
            self._sums[:] = 0
        else:
            own = memory(record.own_part, record.elements * codec.memory.itemsize).view(codec.memory)
            self._sums[:] = codec.widen(own)

    def put(self, flow: Flow, numbers: Array, rows: Bytes) -> None:
        """Payloads (all of one length) into sums or places."""
        payload = rows[:, HEADER_BYTES:]
        whole = flow.size // flow.payload
        if self.mode not in ADDED or flow.peer in self._waiting:
            data = self._waiting.get(flow.peer, flow.data)
            if payload.shape[1] == flow.payload:
                data[: whole * flow.payload].reshape(whole, flow.payload)[together(numbers)] = payload
            else:
                data[whole * flow.payload :] = payload[0]
            return
        codec = ADDED[self.mode]
        values = _weighed(codec.widen(payload.view(codec.memory)), flow)
        width, sums = flow.payload // codec.memory.itemsize, flow.data.view(np.float32)
        if payload.shape[1] == flow.payload:
            sums[: whole * width].reshape(whole, width)[together(numbers)] += values
        else:
            sums[whole * width :] += values[0]

    def finish_numbers(self) -> None:
        record, codec = self.record, self._codec
        for peer, data in self._waiting.items():
            self._sums[:] += _weighed(codec.widen(data.view(codec.memory)), self.ins[peer])
        if record.rounded:
            rounded = memory(record.rounded, record.elements * codec.memory.itemsize).view(codec.memory)
            factors = self._factors()
            same = len(factors) and (factors == factors[0]).all()
            by = factors[0] if same else np.repeat(factors, record.width)[: record.elements]
            rounded[:] = codec.narrow(self._sums * by)
        if record.missing == 1.0:
            return
        for flow in self.ins.values():
            for number in np.flatnonzero(flow.arrived == 0).tolist():
                at = number * flow.payload
                part = flow.data[at : at + flow.length(number)].view(codec.memory)
                part[:] = codec.narrow(codec.widen(part) * np.float32(record.missing)) if record.missing else 0

    def _factors(self) -> Array:
        record = self.record
        packets = -(-record.elements // record.width)
        if record.normaliser == structures.BY_WORLD:
            return np.full(packets, np.float32(record.times) / np.float32(record.world), np.float32)
        counts = np.full(packets, int(record.own_part is not None), np.int64)
        for flow in self.ins.values():
            counts += flow.arrived
        out: Array = np.float32(record.times) / np.maximum(counts, 1).astype(np.float32)
        return out

    def give_back(self, ended: int, now: float) -> None:
        """Results to where the asker reads them."""
        record = self.record
        record.ended, record.sequence = ended, self.sequence
        record.began, record.first, record.closed = (round(at * 1e9) for at in (self.began, self.first, now))
        record.expected = sum(flow.packets for flow in self.ins.values())
        record.came = sum(flow.count for flow in self.ins.values())
        for rows, flows in ((self.half.receives, self.ins), (self.half.sends, self.outs)):
            for row, flow in zip(rows, flows.values(), strict=True):
                for name in RESULTS:
                    row[name] = getattr(flow, name)
                row["bytes"] = flow.size
        record.over = 1


def _weighed(values: Array, flow: Flow) -> Array:
    return values if flow.weight == 1.0 else values * np.float32(flow.weight)


def _flow(row: Array, *, data: Bytes, arrived: Bytes, held: bool = False) -> Flow:
    return Flow(
        peer=int(row["peer"]),
        block=int(row["block"]),
        segment=int(row["segment"]),
        packets=int(row["packets"]),
        size=int(row["bytes"]),
        weight=float(row["weight"]),
        data=data,
        arrived=arrived,
        held=held,
    )


def now_s() -> float:
    return time.monotonic()
