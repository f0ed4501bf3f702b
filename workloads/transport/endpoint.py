"""A rank's end of the group: an engine that moves packets (in C, or in numpy), and the order of jobs.

The engine answers peers all the while, whatever Python does. Read jobs.py for how a call becomes halves."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from lossbench.workloads.errors import AbsentError, PolicyError, TransportError
from lossbench.workloads.transport.failure import absent, sentence
from lossbench.workloads.transport.half import Engine, Half, Result
from lossbench.workloads.transport.jobs import CLOSED, Call, Job, Worker
from lossbench.workloads.transport.native import build
from lossbench.workloads.transport.native.engine import NativeEngine
from lossbench.workloads.transport.packet.layout import among, even
from lossbench.workloads.transport.plain.engine import PlainEngine
from lossbench.workloads.transport.policy import LONGEST_S, Membership
from lossbench.workloads.transport.structures import FAILED, IN_ORDER, Failure
from lossbench.workloads.transport.udp.link import Link

FOREVER_S = 1e9
LOOK_S = 0.005  # whether the one who closes has done so
LEFT_S = 1.0  # what is given up ends at once, but for jobs that wait for something else (a GPU)


class MakeEngine(Protocol):
    def __call__(self, member: Membership, *, link: Link) -> Engine: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class _Asks:
    """Somebody who closes a group."""

    thread: threading.Thread


class Endpoint:
    forks: ClassVar[int] = 0  # of this process since it began, by its parents: what Python tells it of

    def __init__(self, member: Membership, *, link: Link, make: MakeEngine) -> None:
        self.rank, self.peers, self.policy = member.rank, member.peers, member.policy
        self.world = member.world  # numbers of ranks; who is here:
        self.present = tuple(sorted([member.rank, *member.peers]))
        self.datagram_bytes = member.datagram_bytes
        self.limit_s = FOREVER_S  # for a call
        self.set_deadline(None)
        self.deadline_s = self.asked_deadline_s  # of the call that begins now
        self.step = 0
        self.key = member.key
        self.link = link
        self._pid, self.born = os.getpid(), Endpoint.forks
        self._closers: dict[str, _Asks] = {}  # of all who ask, the first
        self._closed, self._hurried = threading.Event(), False
        self._look = threading.RLock()  # at the socket, which is closed in between
        self._at_end: tuple[int, int] | None = None  # what the socket had dropped and turned away
        self._broken: BaseException | None = None
        self.asked = 0  # halves, so far, by jobs
        self._turn = threading.RLock()  # whose job begins
        self._worker: Worker | None = None
        self._flying: deque[Call] = deque()  # begun, and perhaps not waited for by anybody
        self.engine = make(member, link=link)

    # --- jobs --------------------------------------------------------------------------------------------------------

    def begin(self, job: Job, *, queued: bool = False) -> Call:
        """Now, in this thread, if nothing waits for its turn and it is not to be `queued`."""
        self.here()
        with self._turn:
            self._check()
            while self._flying and self._flying[0].done():
                self._flying.popleft()
            if queued or (self._worker is not None and self._worker.pending):
                if self._worker is None:
                    self._worker = Worker(self, depth=self.policy.pipeline, name=f"lossy-{self.rank}")
                    if self._closing:  # since it was looked at: nobody else may know of this one
                        self._worker.stop(0.0)
                return Call(endpoint=self, queued=self._worker.put(job))
            before = self.asked
            try:
                call = Call(endpoint=self, asked=job())
                if not call.done():
                    self._flying.append(call)
            except BaseException as error:  # also a signal, before anybody holds the call
                if self.asked > before:
                    self.failed(error)
                raise
            return call

    def failed(self, error: BaseException) -> None:
        """After a failure in the middle of halves the ranks no longer agree which comes next: the group is broken."""
        if self._broken is None:
            self._broken = error
            if not self.forked:  # it has no engine, and its lock may be held for ever
                self.engine.give_up()

    def here(self) -> None:
        """Before any lock: in a fork another thread may hold it for ever."""
        if self.forked:
            raise TransportError(f"rank {self.rank}: this group belongs to the process that was forked: make one here")

    @property
    def forked(self) -> bool:
        """Whether this is a copy in another process, by the kernel; short calls look whether `born` is `forks`."""
        return os.getpid() != self._pid

    def _check(self) -> None:
        self.here()
        if self._closing:
            raise TransportError(f"rank {self.rank}: {CLOSED}")
        if self._broken is not None:
            said = f"rank {self.rank}: this group broke in an earlier call: {self._broken}"
            raise (
                AbsentError(said, self._broken.ranks) if isinstance(self._broken, AbsentError) else TransportError(said)
            )

    def close(self, patience_s: float = 30.0) -> None:
        """Waits for what was submitted, then answers peers until they are quiet. May be called twice, by any thread at
        any moment: the first one closes, the others wait for it; one without patience ends its patience, too."""
        if self.forked:  # it has no thread to end
            return
        asks = _Asks(thread=threading.current_thread())
        self._hurried = self._hurried or patience_s <= 0
        first = self._closers.setdefault("first", asks)  # in one step: a signal's handler may come in between
        if first is asks:
            try:
                self._close(patience_s)
            finally:
                self._closed.set()
            return
        if patience_s <= 0 and not self._closed.is_set():
            self.engine.give_up()
        while first.thread is not asks.thread and not self._closed.is_set():  # else it was such a handler
            time.sleep(LOOK_S)  # no lock: it could be one that this thread holds further down

    @property
    def _closing(self) -> bool:
        return bool(self._closers)

    def _close(self, patience_s: float) -> None:
        try:
            if self._worker is not None and not self._worker.stop(patience_s, hurried=lambda: self._hurried):
                self._hurried = True
                self.engine.give_up()
                self._worker.stop(LEFT_S)
        except BaseException:  # an interruption ends patience, and the engine all the same
            patience_s = 0.0
            raise
        finally:
            self.engine.close(0.0 if self._hurried else patience_s)
        if self._worker is not None:
            self._worker.stop(LEFT_S)  # it may have been made meanwhile; its jobs have failed
        with self._look:
            self._at_end = self.link.dropped(), self.link.turned_away()
            self.link.close()

    # --- halves ------------------------------------------------------------------------------------------------------

    def start(self, *halves: Half) -> None:
        self.here()
        self.prepare(*halves)
        for half in halves:
            half.record.step = self.step & 0xFFFFFFFF
        self.asked += len(halves)
        self.engine.submit(list(halves), wake=True)

    def prepare(self, *halves: Half) -> None:
        """As the policy says."""
        for half in halves:
            record, policy = half.record, self.policy
            record.traffic = policy.traffic
            repaired = (IN_ORDER if policy.repair_order == "first" else 1) if policy.repair else 0
            record.reliable = 1 if half.must_all else repaired
            record.close_fraction = 1.0 if half.must_all else policy.repair or policy.close_fraction
            half.set_deadline(self.deadline_s)

    def set_deadline(self, seconds: float | None) -> None:
        """Of lossy halves that are asked for from now on, without progress, 0: none; None: as the policy says."""
        if seconds is not None and not 0 <= seconds <= LONGEST_S:
            raise PolicyError(f"a deadline of {seconds:g} s: it lies between 0 and {LONGEST_S:g}")
        self.asked_deadline_s = self.policy.deadline_ms / 1000 if seconds is None else seconds

    def over(self, half: Half) -> bool:
        return self.engine.over(half)

    def finish(self, halves: Sequence[Half], timeout_s: float | None = None) -> list[Result]:
        """TimeoutError if `timeout_s` are over before, and the call goes on; where none is given the group's own time
        is the limit, and breaks it."""
        self.here()
        for half in halves:
            if not self.engine.wait(half, self.limit_s if timeout_s is None else timeout_s):
                raise self.overdue(timeout_s)
        return self.results(halves)

    def still(self, halves: Sequence[Half]) -> None:
        """Raises if the group was given up with one of them under way: then nobody has to be waited for. In a fork that
        Python was not told of nobody will let go of what is waited for."""
        self.here()
        if self._hurried and any(self.over(half) and half.record.ended == FAILED for half in halves):
            raise self._error(self.engine.read().failure)

    def overdue(self, timeout_s: float | None) -> Exception:
        """What to raise when a call has not ended in time."""
        if timeout_s is not None:
            return TimeoutError(f"rank {self.rank}: the call has not ended after {timeout_s:g} s")
        error = TransportError(
            f"rank {self.rank}: the group's timeout of {self.limit_s:g} s is over: who did not call?"
        )
        self.failed(error)
        return error

    def even(self, total: int) -> tuple[int, ...]:
        """So many elements for each number: as good as equal among those who are here."""
        return among(even(total, len(self.present)), self.present, self.world)

    def results(self, halves: Sequence[Half]) -> list[Result]:
        """Of halves that are over; why, if the group broke."""
        for half in halves:
            half.holds = None
            if half.record.ended == FAILED:
                self.here()  # a fork that Python was not told of
                failure = self.engine.read().failure
                error = self._error(failure)
                self.failed(error)
                raise error
        return [Result(half) for half in halves]

    def _error(self, failure: Failure) -> TransportError:
        said = sentence(failure, rank=self.rank, timeout_s=self.policy.timeout_s)
        gone = absent(failure)
        if self.policy.absent == "continue" and gone is not None:
            return AbsentError(said, (gone,))
        return TransportError(said)

    def idle(self) -> bool:
        """Whether a call may begin here and now."""
        if self._closers or self._broken is not None or self.born != Endpoint.forks:
            self._check()
        return self._worker is None or not self._worker.pending

    def run(self, *halves: Half) -> list[Result]:
        """Within a job: ask for them, wait for all."""
        self.start(*halves)
        return self.finish(halves)

    # --- what was seen ------------------------------------------------------------------------------------------------

    def read(self) -> dict[str, Any]:
        """All counters, by name; also of a group that is closed, or being closed."""
        self.here()
        dropped, turned_away = self._turned_away()
        reading = self.engine.read()
        return {
            **reading.counts,
            "strangers": reading.counts["strangers"] + turned_away,
            "sent": reading.sent,
            "received": reading.received,
            "overflow": dropped,
        }

    def _turned_away(self) -> tuple[int, int]:
        """What the socket dropped, and what its filter did."""
        with self._look:
            try:
                return self._at_end or (self.link.dropped(), self.link.turned_away())
            except OSError:  # a signal's handler came in between, and closed it
                if self._at_end is None:
                    raise
                return self._at_end


def _forked() -> None:
    Endpoint.forks += 1


os.register_at_fork(after_in_child=_forked)


def best_engine(member: Membership, *, link: Link) -> Engine:
    """In C, or in numpy where there is no compiler; that is said, unless it was asked for."""
    library = build.load()
    if isinstance(library, str):
        if not library.startswith(build.SWITCHED_OFF):
            warnings.warn(
                f"no compiled transport ({library}): numpy moves every packet, many times slower", stacklevel=2
            )
        return PlainEngine(member, link=link)
    return NativeEngine(library, member, link=link)
