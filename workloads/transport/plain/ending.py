"""When a half is over, and who is waited for too long: see native/half.c."""

from __future__ import annotations

from lossbench.workloads.transport import structures
from lossbench.workloads.transport.plain.flows import Flow, Open
from lossbench.workloads.transport.plain.leaving import Leaving

LIFE_CHECK_S, A_MOMENT_S = 0.05, 0.0005
ALL, MARKERS, FRACTION, DEADLINE, FAILED = 1, 2, 3, 4, 5


class Ending(Leaving):
    def ending(self, one: Open, now: float) -> tuple[int, float]:
        """(why it is over now, when to look again)."""
        later = now + LIFE_CHECK_S
        if not one.sending:
            return 0, later
        if not one.out_left and not one.in_left:
            whole = one.must_all or all(flow.count == flow.packets for flow in one.ins.values())
            return ALL if whole else FRACTION, later
        if one.reliable:
            return 0, later
        if not one.out_left and all(one.ins[peer].ended for peer in one.in_left):
            at = one.last_ended + self.allowance(now)
            if now >= at:
                return MARKERS, later
            later = min(later, at)
        fraction = one.record.close_fraction
        if fraction < 1 and not one.out_left:
            total = sum(f.packets for f in one.ins.values())
            if total and sum(f.count for f in one.ins.values()) >= fraction * total:
                return FRACTION, later
        waits_for_its_own = any(flow.held and not flow.done for flow in one.outs.values())
        if one.record.deadline and not waits_for_its_own:
            at = self._deadline_of(one, now)
            return (DEADLINE if now >= at else 0), min(later, at)
        return 0, later

    def _deadline_of(self, one: Open, now: float) -> float:
        """From the last that came of it, went or was acknowledged; also if nothing has yet: whoever is not here is
        late. In the second half of a call whose first one went on without somebody that one is not waited for again;
        what there is room for is sent all the same."""
        at: float = one.progress + one.record.deadline / 1e9
        if not one.record.after:
            return at
        left = [flow for flow in one.ins.values() if not flow.done and not flow.ended]
        out = [flow for flow in one.outs.values() if not flow.done and flow.cursor < flow.packets]
        back = any(one.ins[flow.peer].count for flow in left + out if flow.peer in one.ins)
        if back or not left + out or any(self.peers[flow.peer].cut_next != one.sequence for flow in left + out):
            return at
        if any(flow.cursor < flow.limit for flow in out):
            return min(at, now + A_MOMENT_S)
        return one.last_ended + self.allowance(now) if any(one.ins[peer].ended for peer in one.in_left) else now

    def check_alive(self, one: Open, now: float) -> None:
        """Of whoever is waited for: not of one that has sent all, whatever was lost, nor of one that has got all."""
        ins, outs = ([one.ins[peer] for peer in one.in_left], [one.outs[peer] for peer in one.out_left])
        needed: list[tuple[Flow, bool]] = [(flow, False) for flow in ins if one.reliable or not flow.ended]
        needed += [(flow, True) for flow in outs if one.reliable or flow.cursor < flow.packets]
        for flow, sends in needed:
            p = self.peers[flow.peer]
            if p.heard >= p.needed_since:
                p.needed_since = max(p.heard, one.began)
            if p.said_goodbye and p.passed <= one.sequence:
                self.break_group(structures.PEER_LEFT, flow.peer, flow.peer)
            elif now - p.needed_since >= self.timeout_s:
                self.break_group(structures.SILENT, self.rank, flow.peer)
            elif sends and p.refused_since and p.heard > p.refused_since and now - p.refused_since >= self.timeout_s:
                self.break_group(structures.UNSENDABLE, self.rank, flow.peer, p.refused_error)
            else:
                self.sooner(p.needed_since + self.timeout_s)

    def forgive_own_sleep(self, now: float) -> None:
        """This rank slept (it was stopped, perhaps with all the others; or it had no core): what did not come meanwhile
        is not the others' silence."""
        slept = now - self.checked_at if self.checked_at else 0.0
        more = slept - self.counts_at_most
        if more <= 0:
            return
        for p in self.peers.values():
            p.needed_since += more
            p.refused_since += more if p.refused_since else 0.0
        for one in self.halves.values():
            one.progress += slept if one.sending else 0.0

    def in_turn(self, one: Open, moved: float) -> float:
        """Of a half of which nothing has come yet the deadline is not over while those before it move (`moved`: when
        they did). When this one did, or one of them."""
        if one.record.deadline and one.sending and not one.first:
            one.progress = max(one.progress, moved)
        return max(moved, one.progress) if one.first else moved
