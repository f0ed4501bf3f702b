"""One host's client: sends requests at their intended times, whatever has become of those before, and keeps the time
from there to the last byte."""

from __future__ import annotations

import math
import select
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from lossbench.contract import Door
from lossbench.workloads.web.http.clock import Alarm, now
from lossbench.workloads.web.http.connection import BrokenError, Connection
from lossbench.workloads.web.options import Options
from lossbench.workloads.web.schedule import Schedule

READ = select.EPOLLIN | select.EPOLLRDHUP
KEPT = 0.25  # seconds between two times that samples are written
REASONS_KEPT = 5
SAMPLES = {"at_s": "s", "completion_ms": "ms", "size_bytes": "B", "page": "", "lag_ms": "ms", "sent_s": "s"}
LOST = {"lost_s": "s", "lost_page": "", "lost_bytes": "B"}  # of requests that were never answered, why ever: intended


@dataclass
class Request:
    at: float  # intended, on the monotonic clock
    due_s: float  # intended, in seconds of the run
    server: int
    size: int
    page: int = -1
    user: int = -1  # of a closed loop
    again: bool = False  # once more, since a kept connection was closed under it


@dataclass
class Count:
    """What became of requests."""

    sent: int = 0
    completed: int = 0
    failed: int = 0
    timed_out: int = 0
    dropped: int = 0  # never sent: too many were under way
    missed: int = 0  # due for long and never sent when the client ended: it did not come to it
    unfinished: int = 0  # when the client was told to end
    connections: int = 0  # made
    again: int = 0  # sent once more, since a kept connection had been closed
    oldest_s: float = math.inf  # intended time of the oldest that was not finished
    reasons: dict[str, int] = field(default_factory=dict)

    def because(self, reason: str) -> None:
        if reason in self.reasons or len(self.reasons) < REASONS_KEPT:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1


class Client:
    def __init__(self, door: Door, options: Options) -> None:
        self.door, self.options = door, options
        self.count = Count()
        self.ended = False  # told to
        self.begin = 0.0
        self.answered: Callable[[Request], None] = lambda _: None  # for whoever asks again then
        self._epoll = select.epoll()
        self._alarm = Alarm()
        self._epoll.register(self._alarm.fd, select.EPOLLIN)
        self._idle: dict[int, list[Connection]] = {}
        self._open: dict[int, tuple[Connection, Request]] = {}
        self._resting: dict[int, tuple[Connection, int]] = {}
        self._deadlines: list[tuple[float, int, int]] = []
        self._number = 0
        self._numbers: dict[int, int] = {}
        self._new: dict[str, list[float]] = {name: [] for name in (*SAMPLES, *LOST)}
        self._written = 0.0
        self._apart = len(options.plan()) > 1  # completions at several rates are no distribution: each has its own row

    @property
    def under_way(self) -> int:
        return len(self._open)

    def run(self, schedule: Schedule, *, until_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Open loop: every request at its time; then wait until `until_s` of the run."""
        times, servers, sizes, pages = (
            one.tolist() for one in (schedule.at_s, schedule.server, schedule.size, schedule.page)
        )
        at, end = 0, self.begin + until_s
        while not self.ended and not stop():
            moment = now()
            while at < len(times) and self.begin + times[at] <= moment:
                self.start(Request(self.begin + times[at], times[at], servers[at], sizes[at], pages[at]))
                at += 1
            if moment >= end:
                break
            self.wait(min(self.begin + times[at] if at < len(times) else end, end))
        slept = KEPT  # at most, when it was told to end: what came due meanwhile is no fault of anybody
        self.count.missed += max(0, bisect_right(times, now() - self.begin - slept) - at)
        self._write()

    def drain(self) -> None:
        """What is under way may come to its end, each until its own timeout."""
        while self._open and not self.ended:
            self.wait(now() + 0.1)
        self.count.unfinished = len(self._open)
        self.count.oldest_s = min((request.due_s for _, request in self._open.values()), default=math.inf)
        for _, request in self._open.values():
            self._lost(request)
        self._write()

    def start(self, request: Request) -> None:
        if len(self._open) >= self.options.most_open:
            self.count.dropped += 1
            self._lost(request)
            return
        if not request.again:
            self.count.sent += 1
            late = now() - request.at
            self._new["lag_ms"].append(late * 1000)
            self._new["sent_s"].append(request.due_s + late)
        connection = None
        try:
            connection = self._connection(request.server, fresh=request.again)
            connection.ask(request.size, f"/{request.size}")
            if connection.used and connection.sending:
                self._epoll.modify(connection.fd, READ | select.EPOLLOUT)
        except (BrokenError, OSError) as error:
            if connection is not None:
                self._close(connection)
            self._failed(request, str(error), stale=connection is not None and connection.untouched)
            return
        self._number += 1
        self._open[connection.fd] = (connection, request)
        self._numbers[connection.fd] = self._number
        heappush(self._deadlines, (request.at + self.options.timeout_s, self._number, connection.fd))

    def _connection(self, server: int, *, fresh: bool) -> Connection:
        idle = self._idle.get(server, [])
        if idle and not fresh:
            connection = idle.pop()
            del self._resting[connection.fd]
            return connection
        self.count.connections += 1
        connection = Connection(self.door.addresses[server], self.options.port, dscp=self.door.dscp)
        self._epoll.register(connection.fd, READ | select.EPOLLOUT)
        return connection

    def wait(self, moment: float) -> None:
        """Until something comes, or this moment."""
        if self._deadlines:
            moment = min(moment, self._deadlines[0][0])
        self._alarm.at(min(moment, now() + KEPT))
        for fd, event in self._epoll.poll(1.0):
            if fd == self._alarm.fd:
                self._alarm.heard()
            elif fd in self._open:
                self._serve(fd, event)
            elif fd in self._resting:
                self._forget(fd)
        self._time_out()
        if now() - self._written > KEPT:
            self._look_again()
            self._write()

    def _look_again(self) -> None:
        """A refusal is shorter than what was asked for, and wakes nobody on a connection that is kept: whoever has
        waited for long is looked at."""
        before = now() - KEPT
        for fd, (connection, request) in list(self._open.items()):
            here = self._open.get(fd)
            if here is not None and here[1] is request and request.at < before and connection.unanswered:
                self._serve(fd, select.EPOLLIN)

    def _serve(self, fd: int, event: int) -> None:
        connection, request = self._open[fd]
        try:
            if event & select.EPOLLOUT:
                connection.send()
                if not connection.sending:
                    self._epoll.modify(fd, READ)
            if event & (READ | select.EPOLLHUP | select.EPOLLERR) and connection.receive():
                self._completed(connection, request)
        except BrokenError as error:
            self._drop(fd)
            self._failed(request, str(error), stale=connection.untouched)

    def _completed(self, connection: Connection, request: Request) -> None:
        self.count.completed += 1
        self._new["completion_ms"].append((now() - request.at) * 1000)
        self._new["at_s"].append(request.due_s)
        self._new["size_bytes"].append(request.size)
        self._new["page"].append(request.page)
        del self._open[connection.fd]
        kept = connection.reusable and not connection.sending  # half a request would be the beginning of the next
        if kept and self.options.connections == "keep-alive":
            self._idle.setdefault(request.server, []).append(connection)
            self._resting[connection.fd] = (connection, request.server)
        else:
            self._close(connection)
        self.answered(request)

    def _failed(self, request: Request, reason: str, *, stale: bool) -> None:
        """Once more, on a new connection, where only the kept one was to blame."""
        if stale and not request.again:
            request.again = True
            self.count.again += 1
            self.start(request)
            return
        self.count.failed += 1
        self.count.because(reason)
        self._lost(request)
        self.answered(request)

    def _lost(self, request: Request) -> None:
        for name, value in zip(LOST, (request.due_s, request.page, request.size), strict=True):
            self._new[name].append(value)

    def _time_out(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= now():
            _, number, fd = heappop(self._deadlines)
            if fd in self._open and self._numbers.get(fd) == number:
                _, request = self._open[fd]
                self._drop(fd)
                self.count.timed_out += 1
                self._lost(request)
                self.answered(request)

    def _drop(self, fd: int) -> None:
        connection, _ = self._open.pop(fd)
        self._close(connection)

    def _forget(self, fd: int) -> None:
        """A kept connection that its server closed."""
        connection, server = self._resting.pop(fd)
        self._idle[server].remove(connection)
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._epoll.unregister(connection.fd)
        connection.close()

    def _write(self) -> None:
        self._written = now()
        for name, unit in (SAMPLES | LOST).items():
            values = self._new[name]
            if values:
                aside = self._apart or not name.endswith("_ms")
                self.door.samples(name, values, unit=unit, together=False, aside=aside)
                values.clear()
