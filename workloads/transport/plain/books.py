"""What became of packets whose half is over: late or double, lost or never sent. See `settle` in native/receive.c."""

from __future__ import annotations

import numpy as np

from lossbench.contract import HEADER_BYTES
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.wire import Bytes
from lossbench.workloads.transport.plain.flows import Flow, Open, now_s
from lossbench.workloads.transport.plain.sending import Sending
from lossbench.workloads.transport.plain.state import Past

REMEMBERED = 8  # halves


class Books(Sending):
    def note_withheld(self, one: Open, flow: Flow) -> None:
        """It is said with the first word that the half is over."""
        p = self.peers[flow.peer]
        if flow.cursor < flow.packets and one.sequence >= p.withheld_until:
            p.withheld_until, p.withheld_at, p.withheld_untold = one.sequence + 1, p.control_out, True

    def book(self, one: Open, flow: Flow, *, deadline: bool) -> int:
        """How many did not come, lost or cut."""
        gone, lost = flow.packets - flow.count, max(one.known_sent(flow, deadline=deadline) - flow.count, 0)
        self.counts["lost"] += lost
        self.counts["cut"] += gone - lost
        self.lost_at = now_s() if lost else self.lost_at
        return gone

    def remember(self, one: Open, *, deadline: bool) -> None:
        """What came of it, for what comes late; how far packets stray is forgotten, until it is seen again."""
        self.reorder_s -= self.reorder_s / 16
        if one.must_all:
            return
        self._past[one.sequence] = {
            peer: Past(flow.arrived.copy(), one.known_sent(flow, deadline=deadline)) for peer, flow in one.ins.items()
        }
        while len(self._past) > REMEMBERED:
            del self._past[next(iter(self._past))]

    def settle(self, rank: int, sequence: int, *, sent: int, packets: int | None = None) -> None:
        """The books of a half that is over here: its peer had sent so much of it. What was called cut of that, and is
        not here, was lost."""
        past = self._past.get(sequence, {}).get(rank)
        if past is None or packets not in (None, len(past.arrived)) or (packets is not None and sent > packets):
            return
        lost = int((past.arrived[past.sent : sent] == 0).sum())
        past.sent = max(past.sent, min(sent, len(past.arrived)))
        self.counts["lost"] += lost
        self.counts["cut"] -= lost

    def hear_late(self, sequence: int, rank: int, rows: Bytes, *, reliable: bool) -> None:
        if reliable:  # all of it had come, or it would not be over
            self.counts["duplicates"] += len(rows)
            return
        past = self._past.get(sequence, {}).get(rank)
        numbers, double = rows[:, wire.PREFIX_BYTES : HEADER_BYTES].copy().view(np.uint32)[:, 0], 0
        if past is not None:
            known = np.unique(numbers[numbers < len(past.arrived)])
            new = known[past.arrived[known] == 0]
            double = int((numbers < len(past.arrived)).sum()) - len(new)
            past.arrived[new] = 1
            not_lost = int((new < past.sent).sum())
            self.counts["lost"] -= not_lost
            self.counts["cut"] += not_lost
        self.counts["duplicates"] += double
        self.counts["late"] += len(rows) - double
        if past is not None and len(rows) > double:
            self.reorder_s = min(2 * max(self.reorder_s, self.reorder_least_s), self.reorder_most_s)
            self.since_inversion = 0
