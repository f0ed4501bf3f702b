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

from workloads.transport import native, wire
from workloads.transport.counters import Counters
from workloads.transport.flow import Outgoing
from workloads.transport.half import Account, Half
from workloads.transport.layout import Buffers
from workloads.transport.link import Address, Link
from workloads.transport.mailbox import Mailbox
from workloads.transport.policy import Deadlines, Policy
from workloads.transport.pump import make

T = TypeVar("T")
TICK_S = 0.0005
LINGER_QUIET_S, LINGER_MAX_S = 0.25, 3.0  # markers are repeated at least every 50 ms


class TransportError(RuntimeError):
    """A collective can't be finished; one sentence that names the peers."""


class Endpoint:
    """`submit` runs a job in the endpoint's thread and returns its future; `close` ends it."""

    def __init__(
        self, *, rank: int, link: Link, peers: dict[int, Address], token: int, policy: Policy, datagram_bytes: int,
        window_bytes: int, send_thread: bool,
    ) -> None:  # fmt: skip
        self.rank, self.peers, self.policy = rank, peers, policy
        self.world = len(peers) + 1
        self.datagram_bytes = datagram_bytes
        self.step = 0
        self.counters = Counters(sorted({rank, *peers}))
        self.buffers = Buffers()
        self._link, self._token = link, token
        self._deadlines = Deadlines(policy)
        self._mail = Mailbox(
            rank=rank, token=token, peers=peers, counters=self.counters, policy=policy, send=self._send_control,
            window_bytes=window_bytes,
        )  # fmt: skip
        self._next = 0
        self._ticked = 0.0
        self._woken = False
        self._closing = False
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        library = native.load()
        self.native = "" if isinstance(library, str) else "pump.c"
        self._pump = make(
            library, link=link, mail=self._mail, peers=peers, counters=self.counters, window_bytes=window_bytes,
            pace_mbit=policy.pace_mbit, wake=self._wake_out,
            order=[(rank + n) % self.world for n in range(1, self.world)],
        )  # fmt: skip
        self._mail.pump = self._pump
        self._sender = Sender(self._pump.send) if send_thread else None
        self._thread = threading.Thread(target=self._main, name=f"lossy-{rank}", daemon=True)
        self._thread.start()

    # --- jobs --------------------------------------------------------------------------------------------------------

    def submit(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put((job, future))
        os.write(self._wake_in, b"j")
        self._woken = True  # after the byte: whoever clears the flag finds it
        return future

    def close(self) -> None:
        """Waits for what was submitted, then answers peers until they are quiet. May be called twice."""
        if self._closing:
            return
        self._closing = True
        self._jobs.put(None)
        os.write(self._wake_in, b"q")
        self._thread.join()
        if self._sender is not None:
            self._sender.stop()
        self._link.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _main(self) -> None:
        while True:
            try:
                entry = self._jobs.get_nowait()
            except queue.Empty:
                self._idle()
                continue
            if entry is None:
                self._linger()
                return
            job, future = entry
            try:
                with np.errstate(all="ignore"):  # infinities and NaN are the model's business
                    future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - the caller's thread is where it belongs
                self._mail.abandon()
                future.set_exception(error)

    def _linger(self) -> None:
        """The last acknowledgement may get lost: a peer that repeats its marker must still find somebody."""
        if not self.peers:
            return
        until = time.perf_counter() + LINGER_MAX_S
        while (now := time.perf_counter()) < until and now - max(self._mail.heard.values()) < LINGER_QUIET_S:
            self._pump.work(None, sends=False, wait_s=LINGER_QUIET_S / 4)
            self._tick(now)

    def _idle(self) -> None:
        """Nobody calls: answer peers, repeat what they did not acknowledge."""
        pause = self._mail.next_marker_s(time.perf_counter())
        self._pump.work(None, sends=False, wait_s=5.0 if pause is None else pause)
        self._clear_wake()
        self._tick(time.perf_counter())

    # --- halves ------------------------------------------------------------------------------------------------------

    def open(self, *, half: int, reliable: bool = False) -> Half:
        """The next half in order; flows are added to it, then `listen`, then `drive`."""
        out = Half(sequence=self._next, step=self.step, half=half, reliable=reliable)
        self._next += 1
        return out

    def send_to(
        self, half: Half, peer: int, data: wire.Bytes, *, segment: int, block: int, code: int,
        ready: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
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
        half.absent = self._mail.absent()
        if half.absent >= self.peers.keys() and self.peers:
            self._check_alive(sorted(self.peers), half.entered)
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
        """Slow peers say that they live; those that say nothing at all for `timeout_s` are gone."""
        limit = now - self.policy.timeout_s
        if half.entered > limit:
            return
        waited = {f.peer for f in half.incoming.values() if not f.complete}
        if half.reliable:
            waited |= {f.peer for f in half.outgoing.values() if not f.finished}
        gone = sorted(peer for peer in waited if self._mail.heard[peer] < limit)
        if gone and (half.reliable or len(gone) == len(waited)):
            self._check_alive(gone, now)

    def _check_alive(self, peers: list[int], now: float) -> None:
        if all(self._mail.heard[peer] < now - self.policy.timeout_s for peer in peers):
            raise TransportError(
                f"rank {self.rank}: no sign of life from rank {', '.join(map(str, peers))} for "
                f"{self.policy.timeout_s:g} s (timeout_s): did it end?"
            )

    def _prefix(self, half: Half, *, kind: int, to: int, code: int, source: int | None = None) -> bytes:
        return wire.Prefix(
            kind=kind, token=self._token, source=self.rank if source is None else source, destination=to,
            step=half.step, half=half.half, dtype=code, sequence=half.sequence,
        ).pack()  # fmt: skip

    # --- the wire ----------------------------------------------------------------------------------------------------

    def _tick(self, now: float, after_sending: Half | None = None) -> None:
        """Markers that are due; at once when a half has just been sent."""
        if now - self._ticked < TICK_S and not (after_sending is not None and after_sending.just_sent()):
            return
        self._ticked = now
        self._mail.send_markers(now)

    def _send_control(self, peer: int, packet: bytes) -> None:
        """A full queue loses it: it is repeated anyway."""
        if self._link.send(packet, self.peers[peer]):
            self.counters.sent[peer] += 1

    def overflow(self) -> int:
        return self._link.dropped()


class Sender:
    """A second thread that only sends, where there are cores for it: the first one is free to take in and to add."""

    def __init__(self, send_round: Callable[[Half], bool]) -> None:
        self._send_round = send_round
        self._halves: queue.SimpleQueue[Half | None] = queue.SimpleQueue()
        self.idle = threading.Event()
        self.idle.set()
        self._thread = threading.Thread(target=self._main, name="lossy-send", daemon=True)
        self._thread.start()

    def start(self, half: Half) -> None:
        self.idle.clear()
        self._halves.put(half)

    def stop(self) -> None:
        self._halves.put(None)
        self._thread.join()

    def _main(self) -> None:
        while (half := self._halves.get()) is not None:
            try:
                while half.sending and not half.sends_done():
                    if not self._send_round(half):
                        time.sleep(0.0002)  # no room at the peer or in the queue
            finally:
                self.idle.set()
