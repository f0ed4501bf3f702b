"""Markers and acknowledgements: see native/control.c."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from lossbench.contract import HEADER_BYTES, Header
from lossbench.workloads.transport import structures
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.wire import Control as Body
from lossbench.workloads.transport.plain.flows import Flow, Open, now_s
from lossbench.workloads.transport.plain.receiving import Receiving
from lossbench.workloads.transport.plain.state import ASKED, BUSY_PAUSE_S, GAVE_UP_PAUSE_S

BITMAP_BYTES = 1024


class Control(Receiving):
    # --- what is sent -----------------------------------------------------------------------------------------------

    def _send(self, rank: int, header: Header, bits: bytes = b"", **fields: Any) -> bool:
        """Whether it left; what did not is repeated anyway."""
        p, left = self.peers[rank], False
        p.control_out += 1
        passed, whole = (number % wire.SEQUENCES for number in (self.closed_below, p.withheld_until))
        body = Body(number=p.control_out, passed=passed, whole=whole, **fields)
        packet = self.tags.stamped(replace(header, tag=0).pack() + body.pack() + bits)
        with suppress(OSError):
            left = self.link.send(packet, p.address)
        p.sent += left
        return left

    def send_marker(self, like: Header, *, packets: int, sent: int, size: int, state: int = wire.ASKS) -> None:
        header = replace(like, kind=wire.MARKER, chunk=sent)
        peer = self.peers[like.destination]
        left = self._send(
            like.destination,
            header,
            packets=packets,
            sent=sent,
            size=size,
            state=state,
            base=peer.control_in,
            extra=like.kind,
            time_ns=time.time_ns(),
        )
        peer.asked[peer.control_out % ASKED] = (peer.control_out, now_s())
        self.counts["markers"] += left

    def _reply(self, rank: int, like: Header, bits: bytes = b"", **fields: Any) -> None:
        header = replace(like, kind=wire.ACK, source=self.rank, destination=rank)
        self.counts["acks"] += self._send(rank, header, bits, **fields)

    def acknowledge(self, one: Open, flow: Flow, state: int) -> None:
        flow.limit = self.limit_for(one, flow)
        window = self.peers[flow.peer].told = self.window_for(one)
        most = one.to_repair(flow) if one.reliable and state == wire.GOING_ON else 0
        base, bits = _missing(flow, most, 0 if one.in_order else one.sequence) if most else (0, b"")
        header = one.header(flow, source=flow.peer, destination=self.rank)
        self._reply(
            flow.peer,
            replace(header, sequence=one.sequence % wire.SEQUENCES),
            bits,
            answers=flow.marker,
            held_us=int((now_s() - flow.marker_at) * 1e6) if flow.marker_at else 0,
            packets=flow.packets,
            sent=flow.count,
            state=state,
            size=flow.size,
            limit=flow.limit,
            extra=window,
            base=base,
        )

    def _answer(self, rank: int, marker: Header, m: Body, state: int) -> None:
        sent = m.packets if state == wire.FINISHED else 0
        self._reply(
            rank, marker, answers=m.number, packets=m.packets, sent=sent, state=state, extra=self.peers[rank].told
        )

    def tell(self, rank: int, state: int, about: int, reason: int) -> None:
        header = Header(kind=wire.ACK, tag=0, source=0, destination=0, sequence=self.next % wire.SEQUENCES)
        self._reply(rank, header, state=state, about=about, base=reason)

    def tell_gave_up(self, rank: int) -> None:
        now, p, failed = now_s(), self.peers[rank], self.failed
        if failed is None or now - p.gave_up_told < GAVE_UP_PAUSE_S:
            return
        p.gave_up_told = now
        p.gave_up_times += 1
        if failed.code == structures.DISAGREE and failed.rank == rank:
            mine = Header.unpack(bytes(failed.mine))
            if mine is not None:
                self._reply(rank, mine, state=wire.REFUSED, size=failed.my_bytes)
        self.tell(rank, wire.GAVE_UP, failed.about, first_cause(failed))

    def marker_of(self, flow: Flow) -> None:
        like = Header.unpack(flow.prefix.ljust(HEADER_BYTES, b"\0"))
        assert like is not None
        self.send_marker(like, packets=flow.packets, sent=flow.cursor, size=flow.size)

    # --- breaking ---------------------------------------------------------------------------------------------------

    def break_group(self, code: int, rank: int, about: int, error: int = 0) -> None:
        if self.failed is None:
            self.failed = structures.Failure(code=code, rank=rank, about=about, error=error)
            self.sooner(0)

    def disagree(self, one: Open, flow: Flow | None, theirs: Header, their_bytes: int) -> None:
        if self.failed is not None:
            return
        rank = theirs.source
        nothing = np.zeros(0, np.uint8)
        blank = Flow(peer=rank, block=0, segment=HEADER_BYTES + 8, packets=0, size=0, data=nothing, arrived=nothing)
        mine = one.header(flow or blank, source=rank, destination=self.rank)
        self.counts["mismatched"] += 1
        self._disagreed(rank, mine, theirs, flow.size if flow else 0, their_bytes)

    def _disagreed(self, rank: int, mine: Header | None, theirs: Header, my_bytes: int, their_bytes: int) -> None:
        self.break_group(structures.DISAGREE, rank, rank)
        assert self.failed is not None
        for name, header in (("mine", mine), ("theirs", theirs)):
            if header is not None:
                setattr(self.failed, name, structures.HeaderRecord.from_buffer_copy(header.pack()))
        self.failed.my_bytes, self.failed.their_bytes = my_bytes, their_bytes

    # --- what is heard ----------------------------------------------------------------------------------------------

    def hear_control(self, header: Header, packet: bytes) -> None:
        rank, least, p = header.source, HEADER_BYTES + wire.CONTROL_BYTES, self.peers[header.source]
        if not least <= len(packet) <= least + BITMAP_BYTES:
            self.counts["strangers"] += 1
            return
        p.received += 1
        c = Body.unpack(packet[HEADER_BYTES:])
        if p.heard_before(c.number):
            self.counts["duplicates"] += 1
            return
        p.heard = now_s()
        p.whole = max(p.whole, self.full(c.whole))
        if header.kind == wire.ACK and c.state == wire.GAVE_UP:
            p.gave_up_too = True
            self.break_group(structures.PEER_GAVE_UP, rank, c.about, c.base)
            self.tell_gave_up(rank)  # at once: it may wait for that before it ends
            return
        if header.kind == wire.ACK and c.state == wire.REFUSED:
            self._refused(rank, header, c)
            return
        self.note_passed(rank, self.full(c.passed))
        if header.kind == wire.ACK and c.state == wire.FINISHED and c.base == wire.GOODBYE and not c.packets:
            p.knows_goodbye = True
        if header.kind == wire.ACK and c.state == wire.GOODBYE:
            self.tell(rank, wire.FINISHED, rank, wire.GOODBYE)  # it need not say it again
            p.said_goodbye = True
            self.sooner(0)
        elif self.failed is None and header.kind == wire.MARKER:
            self.hear_marker(rank, header, c, packet, p.heard)
        elif self.failed is None:
            self._hear_ack(rank, header, c, packet[least:])

    def _refused(self, rank: int, header: Header, c: Body) -> None:
        if self.failed is None:
            one = self.halves.get(self.full(header.sequence))
            flow = one.outs.get(rank) if one is not None else None
            mine = one.header(flow, source=self.rank, destination=rank) if one and flow else None
            self._disagreed(rank, mine, header, flow.size if flow else 0, c.size)

    def note_passed(self, rank: int, passed: int) -> None:
        p = self.peers[rank]
        if passed <= p.passed:
            return
        p.move_on(passed)
        for one in [one for one in self.halves.values() if one.sequence < passed and one.listening]:
            flow, out = one.ins.get(rank), one.outs.get(rank)
            if flow is not None and not flow.done:
                if one.reliable:
                    self.break_group(structures.PEER_GAVE_UP, rank, rank)
                else:
                    self.flow_over_there(one, flow)
            if out is not None and one.sending:
                _finished(one, out)
        for sequence in [sequence for sequence in self._past if p.whole <= sequence < passed]:
            self.settle(rank, sequence, sent=wire.SEQUENCES)
        for sequence, tail in p.tails.items():  # that all was sent is of no use to it now; that less was it must hear
            tail.live = tail.live and (sequence >= passed or p.must_hear(sequence, tail))
        self.room_again(rank)

    def hear_marker(self, rank: int, header: Header, c: Body, packet: bytes, arrived: float) -> None:
        sequence = self.full(header.sequence)
        one = self.halves.get(sequence)
        if one is None and sequence < self.opened:
            if c.packets:
                self.settle(rank, sequence, sent=c.sent, packets=c.packets)
            self._answer(rank, header, c, wire.FINISHED)
        elif one is None or not one.listening:
            if c.packets:
                self.keep_early(sequence, rank, packet)
            self._answer(rank, header, c, wire.NOT_YET)
        elif not c.packets:
            out = one.outs.get(rank)
            if out is not None and one.sending and not out.done:
                self.marker_of(out)
            else:
                self._answer(rank, header, c, wire.NOT_YET)
        else:
            self._marker(one, one.ins.get(rank), header, c, arrived)

    def _marker(self, one: Open, flow: Flow | None, header: Header, c: Body, arrived: float) -> None:
        if flow is None or self.differs(one, flow, header, c.extra) or (flow.packets, flow.size) != (c.packets, c.size):
            self.disagree(one, flow, header, c.size)
            return
        flow.marker = c.number
        flow.heard_at, flow.marker_at = now_s(), arrived
        if flow.highest < c.sent <= flow.packets:
            flow.highest, one.progress = c.sent, flow.heard_at
        sent_all = c.sent >= flow.packets or c.state == wire.ENDS  # all that it will send
        if sent_all and not one.reliable:
            self.flow_ended(one, flow)
        answer = self.peers[flow.peer].control_out + 1
        if one.reliable and not flow.done and (one.enough(flow) or one.in_vain(flow, heard=c.base, answer=answer)):
            one.complete(flow)
            self.sooner(0)
        over = flow.done if one.reliable else sent_all
        self.acknowledge(one, flow, wire.FINISHED if over else wire.GOING_ON)

    def _hear_ack(self, rank: int, header: Header, c: Body, bits: bytes) -> None:
        p, now, sequence = self.peers[rank], now_s(), self.full(header.sequence)
        one = self.halves.get(sequence)
        flow = one.outs.get(rank) if one is not None and one.sending else None
        p.window = c.extra or p.window
        p.withheld_untold = p.withheld_untold and c.answers <= p.withheld_at
        if one is None or flow is None or flow.done:
            if c.state == wire.FINISHED and p.went.pop(sequence, 0):
                self.room_again(rank)
            tail = p.tails.get(sequence)
            if tail is not None and tail.live and c.state == wire.FINISHED:
                del p.tails[sequence]
            elif tail is not None and c.state == wire.NOT_YET:
                tail.due = now + BUSY_PAUSE_S
            return
        if c.state == wire.NOT_YET:
            flow.pause = max(BUSY_PAUSE_S, min(flow.pause * 1.25, 10 * BUSY_PAUSE_S))
            flow.due = now + flow.pause
            return  # it is there, but no data moved: a deadline goes on
        number, at = p.asked.get(c.answers % ASKED, (0, 0.0))
        if c.answers and number == c.answers:  # on a long way several are asked before the first is answered
            took = max(now - at - c.held_us / 1e6, 0.0)
            p.answer = p.answer + (took - p.answer) / 4 if p.answer else took
        if c.sent > flow.count:
            flow.count, flow.repeats, flow.pause, one.progress = c.sent, 0, 0.0, now
        if c.limit > flow.limit:
            flow.limit, flow.due = c.limit, 0.0
        if c.state == wire.FINISHED:
            if not one.must_all:
                p.loss += 0.1 * (1 - c.sent / flow.packets - p.loss)
            _finished(one, flow)
        elif one.reliable and bits:
            self._plan_repairs(flow, c, bits)
        self.sooner(0)

    def _plan_repairs(self, flow: Flow, c: Body, bits: bytes) -> None:
        if flow.repair or c.answers < flow.repair_after:
            return
        missing = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")) + c.base
        flow.repair = missing[missing < flow.cursor].tolist()
        flow.repaired_some = True
        flow.repair_after = self.peers[flow.peer].control_out + 1


def first_cause(failed: structures.Failure) -> int:
    """Whoever told it."""
    return int(failed.error if failed.code == structures.PEER_GAVE_UP else failed.code)


def _finished(one: Open, flow: Flow) -> None:
    """The peer wants nothing more of it."""
    if not flow.done:
        flow.done = True
        one.out_left.discard(flow.peer)


def _missing(flow: Flow, most: int, sequence: int) -> tuple[int, bytes]:
    """(first packet it speaks of, bits): which packets below the highest known are missing, `most` of them, others at
    every half, as many as fit."""
    gone = np.flatnonzero(flow.arrived[flow.solid : flow.highest] == 0) + flow.solid
    flow.solid = int(gone[0]) if len(gone) else flow.highest
    skip = (sequence * 2654435761 % (1 << 32) >> 8) % (len(gone) - most + 1) if len(gone) > most else 0
    gone = gone[skip : skip + most]
    if not len(gone):
        return 0, b""
    base = int(gone[0])
    near = gone[gone < base + 8 * BITMAP_BYTES] - base
    bits = np.zeros(int(near[-1]) + 1, np.uint8)
    bits[near] = 1
    return base, np.packbits(bits, bitorder="little").tobytes()
