"""The engine's loop and doors, in a thread of its own: see native/engine.c for the steps."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import ClassVar

import numpy as np

from lossbench.workloads.transport import structures
from lossbench.workloads.transport.half import Half, Kept
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.plain.ending import DEADLINE, FAILED, LIFE_CHECK_S, Ending
from lossbench.workloads.transport.plain.errands import LONGEST_S, Errands
from lossbench.workloads.transport.plain.flows import Open, now_s
from lossbench.workloads.transport.policy import Membership
from lossbench.workloads.transport.structures import Reading
from lossbench.workloads.transport.udp.link import Link


class PlainEngine(Ending):
    name: ClassVar[str] = "plain"
    build = f"numpy {np.__version__}"

    def __init__(self, member: Membership, *, link: Link) -> None:
        super().__init__(member, link=link)
        self.kept, self._pid = Kept(), os.getpid()
        self._closing = self.aborting = False
        self._errands = Errands()
        self._thread = threading.Thread(target=self._main, name=f"lossy-plain-{self.rank}", daemon=True)
        self._thread.start()

    # --- doors ------------------------------------------------------------------------------------------------------

    def submit(self, halves: list[Half], *, wake: bool) -> None:
        del wake
        for half in halves:
            half.record.over = 0
        if not self._is_copy(*halves):
            self._errands.leave(partial(self._submitted, [Open(half, ordered=self.ordered) for half in halves]))

    def submit_pair(
        self, pair: tuple[Half, Half], data: int, mine_at: int, arrived: int, step: int, *, short: bool = False
    ) -> None:
        del short
        first, second = (half.record for half in pair)
        mine, cut = data + mine_at, pair[0].plan[1].packets
        first.sums = first.room or mine
        first.own_part = first.rounded = second.base_out = mine
        first.base_in, first.base_out, second.base_in = first.sums, data, data
        first.arrived, second.arrived = arrived, arrived + cut
        first.step = second.step = step & 0xFFFFFFFF
        self.submit(list(pair), wake=True)

    def wait(self, half: Half, timeout_s: float, *, short: bool = False) -> bool:
        del short  # here nobody can keep the interpreter and let others work
        return self._is_copy(half) or self._errands.until(lambda: self.over(half), timeout_s)

    def _is_copy(self, *halves: Half) -> bool:
        """In a fork, also one that Python was not told of, nobody ends them."""
        if os.getpid() == self._pid:
            return False
        for half in halves:
            if not half.record.over:
                half.record.ended, half.record.over = FAILED, 1
        return True

    def over(self, half: Half) -> bool:
        return bool(half.record.over)

    def release(self, half: Half, number: int) -> None:
        self._errands.leave(partial(self._release, half, number))

    def read(self) -> Reading:
        found: list[Reading] = []
        self._errands.done(lambda: found.append(self._reading()))
        return found[0]

    def give_up(self) -> None:
        if not self._errands.ended:
            self._errands.done(self._give_up)

    def close(self, patience_s: float) -> None:
        self._errands.leave(self._closes)
        self._errands.until(lambda: self._closing and not self.halves, patience_s)
        self._errands.leave(partial(self._aborts, patience_s))
        self._errands.until(lambda: self._errands.ended, LONGEST_S)
        self._thread.join(1.0)  # not for ever: it takes a lock of Python that a handler may be inside of

    # --- what was asked for at the doors ------------------------------------------------------------------------------

    def _submitted(self, opened: list[Open]) -> None:
        for one in opened:
            if self.failed or self._closing or self._errands.ended:
                one.record.ended, one.record.over = FAILED, 1
                self._errands.changed()
                continue
            one.sequence = self.next
            self.halves[self.next] = one
            self.next += 1
        self.tick_at = 0.0

    def _release(self, half: Half, number: int) -> None:
        for one in self.halves.values():
            if one.half is half:
                list(one.outs.values())[number].held = False
                one.progress = now_s()  # what it waited for was its own
        self.tick_at = 0.0

    def _reading(self) -> Reading:
        peers = [self.peers.get(rank) for rank in range(self.world)]
        return Reading(
            counts={name: self.counts.get(name, 0) for name in structures.COUNTED} | {"refused": self.link.refused},
            failure=self.failed or structures.Failure(),
            sent=[p.sent if p else 0 for p in peers],
            received=[p.received if p else 0 for p in peers],
        )

    def _give_up(self) -> None:
        self.break_group(structures.ABORTED, self.rank, self.rank)
        self._fail_all()
        self.aborting = self._closing

    def _closes(self) -> None:
        self._closing = True
        self._errands.changed()

    def _aborts(self, patience_s: float) -> None:
        self.aborting = self.aborting or bool(self.halves) or patience_s <= 0

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._serve()
        finally:
            self._errands.end()

    def _serve(self) -> None:
        while not self._closing or (self.halves and not self.aborting):
            try:
                moved = self.step()
            except OSError as error:
                self.break_group(structures.SOCKET_ERROR, self.rank, self.rank, error.errno or 0)
                self._fail_all()
                moved = False
            if not moved:
                self.nap(3600.0)
        if self.halves:  # they are given up
            self.break_group(structures.ABORTED, self.rank, self.rank)
        self._fail_all()
        if self.failed:
            self.linger_failed(self.failed)
        else:
            self.linger()

    def step(self) -> bool:
        moved = self.receive_some()
        now = now_s()
        if moved or now >= self.tick_at:
            self.tick_at = now + 3600
            self._check_halves(now)
            moved = self.send_round() or moved
            self.tick_markers(now)
        else:
            moved = self.send_round()
        if moved:  # else before it naps: whoever calls this looks what has changed
            self._errands.run()
        return moved

    def nap(self, most_s: float) -> None:
        if self._errands.run():
            return
        left = min(self.tick_at - now_s(), most_s)
        if self.blocked:
            left = min(left, 0.0005)
        left = min(left, max(self.pace_at - now_s(), 0)) if self.pace and self.halves else left
        if left <= 0:
            return
        self.link.wait(left, self._errands.wake_out)
        self._errands.woken()

    # --- halves -----------------------------------------------------------------------------------------------------

    def _check_halves(self, now: float) -> None:
        next_look, again = now + LIFE_CHECK_S, True
        self.forgive_own_sleep(now)
        while again and not self.failed:
            again, sending, moved = False, 0, 0.0
            for one in list(self.halves.values()):
                if not one.listening and not self._open(one):
                    break
                if not one.sending and sending < self.pipeline and self._may_send(one):
                    self.begin_sending(one)
                moved = self.in_turn(one, moved)
                why, look = self.ending(one, now)
                next_look = min(next_look, look)
                if why:
                    self._close_half(one, why, now)
                    again = True
                else:
                    sending += one.sending
        for one in list(self.halves.values()):
            if one.sending and not self.failed:
                self.check_alive(one, now)
        self.sooner(next_look)
        if self.failed:
            self._fail_all()
        self.checked_at = now if self.halves else 0.0

    def _open(self, one: Open) -> bool:
        if one.sequence - self.closed_below >= wire.NO_WORD:
            return False
        one.listening = True
        self.opened = one.sequence + 1
        for peer, flow in one.ins.items():
            flow.limit = min(flow.packets, 2)
            if not one.reliable and self.peers[peer].passed > one.sequence:
                self.flow_over_there(one, flow)
        self.replay_early(one)
        return True

    def _may_send(self, one: Open) -> bool:
        return not (one.record.after and one.sequence - 1 in self.halves)

    def _close_half(self, one: Open, why: int, now: float) -> None:
        counts = self.counts
        for peer, flow in one.ins.items():
            gone = self.book(one, flow, deadline=why == DEADLINE)
            if why == DEADLINE and not flow.done and not flow.ended:
                self.peers[peer].cut_next = one.sequence + 1
            counts["duplicates"] += flow.duplicates
            if not one.must_all:
                self.peers[peer].loss += 0.1 * (gone / flow.packets - self.peers[peer].loss)
                short = flow.payload - flow.length(flow.packets - 1) if flow.arrived[-1] else 0
                counts["payload_bytes"] += flow.count * flow.payload - short
                counts["data_expected"] += flow.packets
                counts["data_arrived"] += flow.count
        for flow in one.outs.values() if not one.must_all else ():
            counts["withheld"] += flow.packets - flow.cursor
            self.note_withheld(one, flow)
            self.note_unread(one, flow)
            if not one.reliable:
                self.keep_tail(one, flow, now)
            if flow.cursor < flow.packets:
                self.revive_tails(flow.peer, one.sequence, now)
        counts["halves"] += 1
        counts["reliable_halves"] += one.must_all
        counts["by_deadline"] += why == DEADLINE
        self.remember(one, deadline=why == DEADLINE)
        one.finish_numbers()
        self._let_go(one, why, now)

    def _let_go(self, one: Open, why: int, now: float) -> None:
        del self.halves[one.sequence]
        one.give_back(why, now)
        self._errands.changed()

    def _fail_all(self) -> None:
        for one in list(self.halves.values()):
            self._let_go(one, FAILED, now_s())
        if self.failed:
            self.tell_again()
