"""Packets out: see native/send.c."""

from __future__ import annotations

import errno

import numpy as np

from lossbench.contract import Header
from lossbench.workloads.transport import structures
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.plain.flows import Flow, Open, now_s
from lossbench.workloads.transport.plain.state import RING, State

PACE_BUCKET_S = 0.002
FIRST_REFUSED_S, MOST_REFUSED_S = 0.0005, 0.02  # until a host that takes nothing for a peer is asked again


class Sending(State):
    def begin_sending(self, one: Open) -> None:
        for peer, flow in one.outs.items():
            # There is no room to say that less was sent: until the peer knows, no word.
            behind = wire.NO_WORD if self.peers[peer].withheld_untold else one.sequence - self.closed_below
            header = one.header(flow, source=self.rank, destination=peer)
            bare = Header(**{**header.__dict__, "behind": behind, "sequence": one.sequence % wire.SEQUENCES}).pack()
            flow.prefix = self.tags.stamped(bare) if not self.tags.whole else bare
            flow.limit = self._first_room(one, flow)
            p = self.peers[peer]
            if not one.must_all and p.passed > one.sequence:  # it is through, and takes nothing more of it
                flow.done = True
                one.out_left.discard(peer)
            if p.refused_since:  # it was not asked all the time
                p.refused_since += max(now_s() - p.refused_until - self.counts_at_most, 0.0)
        one.sending = True
        one.began = one.progress = now_s()

    def _under_way(self, rank: int, below: int) -> int:
        """What may be under way to this peer of lossy halves below this one that it has not passed."""
        p = self.peers[rank]
        flows = [self.halves[n].outs.get(rank) for n in range(p.passed, below) if self._sends_lossy(n)]
        under = sum(max(min(flow.limit, flow.packets) - flow.count, 0) * flow.segment for flow in flows if flow)
        return under + sum(size for sequence, size in p.went.items() if p.passed <= sequence < below)

    def _sends_lossy(self, sequence: int) -> bool:
        one = self.halves.get(sequence)
        return one is not None and one.sending and not one.reliable

    def _first_room(self, one: Open, flow: Flow) -> int:
        """Packets that may be sent before the peer has said anything of it: a window for all halves together that it is
        behind, but for the one just before: where all keep step, no word of that has come yet."""
        p = self.peers[flow.peer]
        room, behind = max(p.window // flow.segment, 2), one.sequence - p.passed
        if one.reliable or behind <= 1:
            return room
        if behind >= RING:  # what comes so early is not kept
            return 0
        return max(room - self._under_way(flow.peer, one.sequence - 1) // flow.segment, 0)

    def room_again(self, rank: int) -> None:
        """The peer is through with some of what went before."""
        p = self.peers[rank]
        p.went = {sequence: size for sequence, size in p.went.items() if sequence >= p.passed}
        for one in self.halves.values():
            flow = one.outs.get(rank) if one.sending and not one.reliable else None
            if flow is None or flow.done or flow.limit >= flow.packets:
                continue
            room = self._first_room(one, flow)
            if room > flow.limit:
                flow.limit, flow.due = room, 0.0
        self.sooner(0)

    def note_unread(self, one: Open, flow: Flow) -> None:
        """Of a half that is over here."""
        if not one.reliable and not flow.done and flow.cursor > flow.count:
            self.peers[flow.peer].went[one.sequence] = (flow.cursor - flow.count) * flow.segment

    def send_round(self) -> bool:
        went = self.blocked = False
        for one in list(self.halves.values()):
            if not one.sending or not one.out_left:
                continue
            for flow in one.outs.values():
                if flow.done or self.blocked or not self._taken(flow):
                    continue
                if self._send_some(one, flow):
                    went = True
        return went

    def _send_some(self, one: Open, flow: Flow) -> bool:
        batch = self.link.batch(flow.segment)
        if flow.repair:
            numbers = flow.repair[:batch]
        elif not flow.held and flow.cursor < (end := min(flow.limit, flow.packets)):
            numbers = list(range(flow.cursor, min(end, flow.cursor + batch)))
        else:
            return False
        if not self._paced(len(numbers) * flow.segment):
            one.progress = max(one.progress, self.pace_at)  # it waits for nobody but its own pace
            return False
        went = self._send_numbers(flow, numbers)
        if flow.repair:
            flow.repair = flow.repair[went:]
            self.counts["resent"] += went
            if not flow.repair:
                flow.due = 0.0
        else:
            flow.cursor += went
            one.progress = now_s() if went else one.progress
            if flow.cursor >= flow.packets and not one.reliable:
                one.out_left.discard(flow.peer)
        if flow.cursor >= flow.packets and not flow.repair:
            self.sooner(0)
        return went > 0

    def _taken(self, flow: Flow) -> bool:
        """Whether the host may be asked again to take something for this peer."""
        p = self.peers[flow.peer]
        if not p.refused_since or now_s() >= p.refused_until:
            return True
        self.sooner(p.refused_until)
        return False

    def _send_numbers(self, flow: Flow, numbers: list[int]) -> int:
        """How many went."""
        p = self.peers[flow.peer]
        try:
            went = self._put_out(flow, numbers)
        except OSError as error:
            self._not_taken(flow.peer, error)
            return 0
        if went:
            p.refused_since = 0.0
        else:
            p.refused_until = now_s()
            if not p.refused_since:
                p.refused_since, p.refused_error = p.refused_until, errno.ENOBUFS
        p.sent += went
        self.blocked = went < len(numbers)
        return went

    def _not_taken(self, rank: int, error: OSError) -> None:
        """It was not sent, and nothing is lost. For how long is watched in engine.py."""
        if error.errno in (errno.EBADF, errno.ENOTSOCK):
            raise error
        p, now = self.peers[rank], now_s()
        p.refused_since, p.refused_error = p.refused_since or now, error.errno or 0
        p.refused_until = now + min(max((now - p.refused_since) / 4, FIRST_REFUSED_S), MOST_REFUSED_S)
        self.sooner(p.refused_until)
        if error.errno == errno.EMSGSIZE:
            self.break_group(structures.UNSENDABLE, self.rank, rank, errno.EMSGSIZE)

    def _put_out(self, flow: Flow, numbers: list[int]) -> int:
        short = flow.packets - 1 if flow.length(flow.packets - 1) < flow.payload else flow.packets
        whole = [number for number in numbers if number < short]
        p, went = self.peers[flow.peer], 0
        if whole:
            rows = flow.rows(np.array(whole, np.uint32), self._room)
            if self.tags.whole:
                rows[:, 8:16].view(np.uint64)[:, 0] = self.tags.of_rows(rows)
            went = self.link.send_rows(rows, p.address)
        if len(whole) < len(numbers) and went == len(whole):
            packet = flow.single(short)
            try:
                went += self.link.send(self.tags.stamped(packet) if self.tags.whole else packet, p.address)
            except OSError:
                if not went:
                    raise
        return went

    def _paced(self, size: int) -> bool:
        now = now_s()
        if not self.pace:
            return True
        if now < self.pace_at:
            return False
        self.pace_at = max(self.pace_at, now - PACE_BUCKET_S) + size / self.pace
        return True

    # --- what control.py does ---------------------------------------------------------------------------------------

    def break_group(self, code: int, rank: int, about: int, error: int = 0) -> None:
        raise NotImplementedError
