"""A rank's end of the group: one thread that owns the socket, runs halves one after the other, always answers peers.

A half is driven here: send what may be sent, take in what came, repeat end markers until they are acknowledged, stop by
the half's rule. Between halves the thread sleeps in select, keeps packets of halves that peers began already, and tells
late markers that all is well. Jobs (workloads/collective) are functions that open halves and drive them, in order."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from lossbench.workloads.errors import TransportError
from lossbench.workloads.transport import patience
from lossbench.workloads.transport.counters import Counters
from lossbench.workloads.transport.flow import Outgoing
from lossbench.workloads.transport.half import Account, Half
from lossbench.workloads.transport.mailbox import Mailbox
from lossbench.workloads.transport.native import native
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.layout import Buffers
from lossbench.workloads.transport.policy import Deadlines, Membership
from lossbench.workloads.transport.pump.pump import make
from lossbench.workloads.transport.pump.sender import Sender
from lossbench.workloads.transport.udp.link import Link

T = TypeVar("T")
TICK_S = 0.0005
LINGER_QUIET_S, LINGER_MAX_S = 0.25, 3.0  # markers are repeated at least every 50 ms


class Endpoint:
    """`submit` runs a job in the endpoint's thread and returns its future; `close` ends it."""

    def __init__(self, member: Membership, *, link: Link, send_thread: bool) -> None:
        rank, peers, policy = member.rank, member.peers, member.policy
        self.rank, self.peers, self.policy = rank, peers, policy
        self.world = len(peers) + 1
        self.datagram_bytes = member.datagram_bytes
        self.step = 0
        self.counters = Counters(sorted({rank, *peers}))
        self.buffers = Buffers()
        self._link, self._token = link, member.token
        self._deadlines = Deadlines(policy)
        self._mail = Mailbox(member, counters=self.counters, send=self._send_control)
        self._next = 0
        self._ticked = 0.0
        self._woken = False
        self._closing = False
        self._aborting = False
        self._opened = False  # by the job that runs
        self._broken: BaseException | None = None
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        self._pump = make(
            native.load(), member, link=link, mail=self._mail, counters=self.counters, wake=self._wake_out
        )
        self._mail.pump = self._pump
        self._sender = Sender(self._pump.send) if send_thread else None
        self._thread = threading.Thread(target=self._main, name=f"lossy-{rank}", daemon=True)
        self._thread.start()

    # --- jobs --------------------------------------------------------------------------------------------------------

    def submit(self, job: Callable[[], T]) -> Future[T]:
        if self._closing:
            raise TransportError(f"rank {self.rank}: this group is closed")
        if self._broken is not None:
            raise self._broken_error()
        future: Future[T] = Future()
        self._jobs.put((job, future))
        os.write(self._wake_in, b"j")
        self._woken = True  # after the byte: whoever clears the flag finds it
        return future

    def close(self, patience_s: float = 30.0) -> None:
        """Waits for what was submitted, then answers peers until they are quiet. May be called twice."""
        if self._closing or os.getpid() != self._pid:  # a fork has no thread to end
            return
        self._closing = True
        self._jobs.put(None)
        os.write(self._wake_in, b"q")
        self._woken = True
        self._thread.join(patience_s)
        self._aborting = True
        self._thread.join()
        if self._sender is not None:
            self._sender.stop()
        self._link.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _main(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - nobody may wait for a thread that is gone
            self._broken = error
            while not self._jobs.empty():
                if (entry := self._jobs.get()) is not None:
                    entry[1].set_exception(self._broken_error())

    def _broken_error(self) -> TransportError:
        return TransportError(f"rank {self.rank}: this group broke in an earlier call: {self._broken}")

    def _serve(self) -> None:
        while True:
            try:
                entry = self._jobs.get_nowait()
            except queue.Empty:
                self._idle()
                continue
            if entry is None:
                self._linger()
                return
            self._run(*entry)
            del entry  # and with it the caller's tensors

    def _run(self, job: Callable[[], Any], future: Future[Any]) -> None:
        """After a failure in the middle of halves the ranks no longer agree which comes next: the group is broken."""
        if self._broken is not None:
            future.set_exception(self._broken_error())
            return
        self._opened = False
        try:
            with np.errstate(all="ignore"):  # infinities and NaN are the model's business
                result = job()
        except BaseException as error:  # noqa: BLE001 - the caller's thread is where it belongs
            self._mail.abandon()
            if self._sender is not None:
                self._sender.idle.wait()
            self._broken = error if self._opened else None
            future.set_exception(error)
        else:
            future.set_result(result)

    def answer_until(self, done: Callable[[], bool]) -> None:
        """Within a job: wait for something else (a copy from a GPU), and tell peers meanwhile that this rank lives."""
        while not done():
            self._pump.work(None, sends=False, wait_s=TICK_S)
            self._tick(time.perf_counter())

    def _linger(self) -> None:
        """The last acknowledgement may get lost: a peer that repeats its marker must still find somebody."""
        if not self.peers:
            return
        until = time.perf_counter() + LINGER_MAX_S
        while (now := time.perf_counter()) < until and now - max(self._mail.heard.values()) < LINGER_QUIET_S:
            self._clear_wake()
            self._pump.work(None, sends=False, wait_s=LINGER_QUIET_S / 4)
            self._tick(now)

    def _idle(self) -> None:
        """Nobody calls: answer peers, repeat what they did not acknowledge."""
        pause = self._mail.next_marker_s(time.perf_counter())
        self._pump.work(None, sends=False, wait_s=5.0 if pause is None else max(pause, TICK_S))
        self._clear_wake()
        self._tick(time.perf_counter())

    # --- halves ------------------------------------------------------------------------------------------------------

    def open(self, *, half: int, reliable: bool = False) -> Half:
        """The next half in order; flows are added to it, then `listen`, then `drive`."""
        self._opened = True
        out = Half(sequence=self._next, step=self.step, half=half, reliable=reliable)
        self._next += 1
        return out

    def send_to(
        self,
        half: Half,
        peer: int,
        data: wire.Bytes,
        *,
        segment: int,
        block: int,
        code: int,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        """`data` must stay as it is until the half ends."""
        if len(data):
            prefix = self._prefix(half, kind=wire.RELIABLE if half.reliable else wire.DATA, to=peer, code=code)
            half.outgoing[peer] = Outgoing(
                peer=peer, data=data, segment=segment, prefix=prefix, block=block, ready=ready
            )

    def listen(self, half: Half, *, code: int) -> None:
        """From now on packets of this half go where they belong; those that came early are taken in."""
        half.deadline_s = self._deadlines.now_s(half.size)
        keys = {
            peer: self._prefix(
                half, kind=wire.RELIABLE if half.reliable else wire.DATA, to=self.rank, code=code, source=peer
            )
            for peer in half.incoming
        }
        self._mail.listen(half, keys)

    def drive(self, half: Half) -> Account:
        """Until the half's rule ends it."""
        half.entered = time.perf_counter()
        if half.first_packet is not None:  # faster peers began this half while we were still in the one before it
            half.first_packet = half.entered
        half.absent = frozenset() if half.reliable else self._mail.absent()
        if half.absent >= self.peers.keys() and self.peers:
            patience.check_alive(
                sorted(self.peers),
                rank=self.rank,
                heard=self._mail.heard,
                timeout_s=self.policy.timeout_s,
                now=half.entered,
            )
        self._mail.sending(half)
        self._pump.prepare(half)
        half.sending = True
        threaded = self._sender is not None and not half.reliable
        if threaded and self._sender is not None:
            self._sender.start(half)
        pause = 0.0
        while True:
            self._pump.work(half, sends=not threaded, wait_s=pause)
            self._pump.allow()
            now = time.perf_counter()
            self._tick(now, after_sending=half)
            if half.first_packet is None and now - max((half.entered, *self._mail.heard.values())) > half.deadline_s:
                half.first_packet = now - half.deadline_s  # cut off: not even our markers are answered
            reason = half.ending(now, self.policy, self._mail.allowance_s)
            if reason:
                return self._closed(half, reason, now)
            self._give_up(half, now)
            pause = self._pause_s(half, now)

    def _pause_s(self, half: Half, now: float) -> float:
        """Until something can have changed without a packet."""
        if self._woken:
            self._clear_wake()
        pause = min(half.wait_s(now, self._mail.allowance_s), 0.05)
        marker = self._mail.next_marker_s(now)
        if marker is not None:
            pause = min(pause, max(marker, TICK_S))
        if not half.sends_done():
            pause = min(pause, max(self._pump.pace_at - now, TICK_S))
        return pause

    def _clear_wake(self) -> None:
        self._woken = False
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_out, 4096)

    def _closed(self, half: Half, reason: str, now: float) -> Account:
        half.closed, half.closed_at = reason, now
        half.sending = False
        if self._sender is not None:
            self._sender.idle.wait()
        self._mail.closed(half)
        account = half.account()
        if half.first_packet is not None:
            self._deadlines.took(half.size, account.seconds)
        self.counters.closed(account, reliable=half.reliable)
        return account

    def _give_up(self, half: Half, now: float) -> None:
        if self._aborting:
            raise TransportError(f"rank {self.rank}: aborted")
        if half.error is not None:
            raise half.error
        patience.check(half, rank=self.rank, heard=self._mail.heard, timeout_s=self.policy.timeout_s, now=now)

    def _prefix(self, half: Half, *, kind: int, to: int, code: int, source: int | None = None) -> bytes:
        origin = self.rank if source is None else source
        return wire.Prefix(kind, self._token, origin, to, half.step, half.half, code, half.sequence).pack()

    # --- the wire ----------------------------------------------------------------------------------------------------

    def _tick(self, now: float, after_sending: Half | None = None) -> None:
        """Markers that are due; at once when a half has just been sent."""
        if now - self._ticked < TICK_S and not (after_sending is not None and after_sending.just_sent()):
            return
        self._ticked = now
        self._mail.send_markers(now)

    def _send_control(self, peer: int, packet: bytes) -> None:
        """Whatever goes wrong here is a lost packet: it is repeated anyway."""
        with contextlib.suppress(OSError):
            if self._link.send(packet, self.peers[peer]):
                self.counters.sent[peer] += 1

    def overflow(self) -> int:
        return self._link.dropped()

    def strangers(self) -> int:
        """Packets of nobody in this group: kept out by the kernel, or sorted out here."""
        return self.counters.strangers + self._link.turned_away()
