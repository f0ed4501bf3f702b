"""Time passes: markers are repeated, silent peers asked. See the end of native/control.c."""

from __future__ import annotations

from dataclasses import replace

from lossbench.contract import HEADER_BYTES, Header
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.plain.books import REMEMBERED
from lossbench.workloads.transport.plain.control import Control
from lossbench.workloads.transport.plain.flows import Flow, Open
from lossbench.workloads.transport.plain.state import ASK_PAUSE_S, LONGEST_PAUSE_S, PATIENCE_S, TAILS, Tail, between

LOSSY_FROM = 0.002  # share of lost packets from which the end of a flow is said at once


class Ticking(Control):
    def keep_tail(self, one: Open, flow: Flow, now: float) -> None:
        """Of every flow, live or not: see `revive_tails`."""
        p, waits = self.peers[flow.peer], not flow.done and self.peers[flow.peer].passed <= one.sequence
        due = flow.due or now + PATIENCE_S + p.first_pause()
        if len(p.tails) >= TAILS:  # one that is not live goes, if there is any
            del p.tails[next((n for n, tail in p.tails.items() if not tail.live), next(iter(p.tails)))]
        tail = p.tails[one.sequence] = Tail(
            flow.prefix, flow.packets, flow.cursor, flow.size, due, flow.pause, now + self.timeout_s, flow.repeats
        )
        tail.live = waits or p.must_hear(one.sequence, tail)
        if tail.sent < tail.packets:  # before any packet of a later half, which would say that all of this was sent
            self._send_tail(tail)
            tail.due = now + p.first_pause()
        if tail.live:
            self.sooner(tail.due)

    def revive_tails(self, rank: int, below: int, now: float) -> None:
        """Less was sent of a half, and from now on that those before it are over will not say that all of them was
        sent. Whether the peer has heard so before nobody knows: it is told of each that it may remember."""
        for sequence, tail in self.peers[rank].tails.items():
            if not tail.live and below - REMEMBERED <= sequence < below:
                tail.live, tail.repeats, tail.pause, tail.due, tail.until = True, 0, 0.0, now, now + self.timeout_s
        self.sooner(now)

    def hurry_tails(self, now: float) -> None:
        """There is little time left to say it."""
        for tail in [tail for p in self.peers.values() for tail in p.tails.values()]:
            tail.due, tail.pause, tail.repeats = now, 0.0, 0
        self.sooner(now)

    def tick_markers(self, now: float) -> None:
        for one in list(self.halves.values()):
            if one.sending:
                for flow in one.outs.values():
                    self._tick_out(flow, now)
                for flow in one.ins.values():
                    self._tick_in(one, flow, now)
        for p in self.peers.values():
            for tail in p.tails.values():
                if tail.live:
                    self._tick_tail(tail, now)

    def _tick_out(self, flow: Flow, now: float) -> None:
        p = self.peers[flow.peer]
        sent = flow.cursor >= flow.packets and not flow.repair
        stalled = flow.cursor < flow.packets and flow.cursor >= flow.limit
        if flow.done or flow.held or not (sent or stalled):
            return
        if not flow.due:
            flow.pause = p.first_pause()
            at_once = p.loss > LOSSY_FROM or flow.repaired_some
            if stalled:  # without any room nobody there knows that there is something to send
                flow.due = now + 2 * flow.pause if flow.limit else now
            else:
                flow.due = now if at_once else now + PATIENCE_S + p.answer
            self.counts["stalls"] += stalled
        if flow.due <= now:
            self.marker_of(flow)
            flow.marker, flow.asked_at = p.control_out, now
            flow.repeats += 1
            flow.pause = between(p, flow.pause, flow.repeats, now)
            flow.due = now + flow.pause
        self.sooner(flow.due)

    def _tick_in(self, one: Open, flow: Flow, now: float) -> None:
        if flow.done or flow.ended:
            return
        flow.pause = flow.pause or ASK_PAUSE_S
        since = max(flow.heard_at, one.began, flow.asked_at)
        if now - since >= flow.pause:
            like = one.header(flow, source=self.rank, destination=flow.peer)
            like = replace(like, sequence=one.sequence % wire.SEQUENCES)
            self.send_marker(like, packets=0, sent=0, size=0)
            flow.asked_at = since = now
            flow.pause = min(flow.pause * 1.5, LONGEST_PAUSE_S)
        self.sooner(since + flow.pause)

    def _tick_tail(self, tail: Tail, now: float) -> None:
        if tail.until < now:
            tail.live = False
            return
        if tail.due <= now:
            destination = self._send_tail(tail)
            tail.repeats += 1
            tail.pause = between(self.peers[destination], tail.pause, tail.repeats, now)
            tail.due = now + tail.pause
        self.sooner(tail.due)

    def _send_tail(self, tail: Tail) -> int:
        """Whom it went to."""
        like = Header.unpack(tail.prefix.ljust(HEADER_BYTES, b"\0"))
        assert like is not None
        state = wire.ASKS if tail.sent >= tail.packets else wire.ENDS
        self.send_marker(like, packets=tail.packets, sent=tail.sent, size=tail.size, state=state)
        return like.destination
