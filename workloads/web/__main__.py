"""Clients of a web service, one on every host, that ask the servers of all others.

Open loop: requests come as a Poisson process of `rate` a second over all hosts, drawn beforehand from the seed; a
completion counts from the intended time of its request. Options: options.py. The servers are `web.server`.

    lossbench run colocation
"""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import time
from collections.abc import Sequence

import numpy as np

from lossbench.contract import Door
from lossbench.workloads.errors import OptionError, WorkloadError, status_of
from lossbench.workloads.web.http.client import Client, Request
from lossbench.workloads.web.http.clock import now
from lossbench.workloads.web.options import Options, misfit, read_options
from lossbench.workloads.web.schedule import Schedule, draw
from lossbench.workloads.web.steer import Steer, folder_of

SERVERS_S = 60.0  # servers may take so long to come up
GAP_S = 2.0  # between two rates: what is under way ends, and it is decided how to go on
ALONE = ((1_000_000, 12), (float("inf"), 2))  # (up to this size, how often) each size is asked for on the idle network
ALONE_PAUSE_S = 0.02
FOREVER_S = 3600.0


class Clients:
    def __init__(self, door: Door, options: Options) -> None:
        if door.world_size < 2:
            raise OptionError("web: clients ask the servers of other hosts: there must be two")
        if door.rank == 0 and door.records_path and (wrong := misfit(folder_of(door), options)):
            raise OptionError(f"web: {wrong}")
        self.door, self.options = door, options
        self.client = Client(door, options)
        signal.signal(signal.SIGTERM, self._told)
        self.steer = Steer(door, options)
        self.sizes = options.drawn()

    def _told(self, *_: object) -> None:
        self.client.ended = True

    def run(self) -> None:
        self._await_servers()
        if self.door.rank == 0:
            self._alone()
        plan = self.options.plan()
        first = self._draw(plan[0][0], 0.0, plan[0][1] or FOREVER_S)
        gc.freeze()
        gc.disable()  # nothing here makes circles; a pause would be a late request
        self.door.record("first_in_line", given=first_in_line())
        self.door.ready()
        self.client.begin = now()
        self.door.record("began")
        if self.options.loop == "closed":
            self._closed()
        else:
            self._open(plan, first)
        self.client.drain()
        self._say()

    def _await_servers(self) -> None:
        """A server that is not there yet is waited for, one that never comes is named."""
        limit = now() + SERVERS_S
        for rank, address in enumerate(self.door.addresses):
            while True:
                try:
                    socket.create_connection((address, self.options.port), timeout=2).close()
                    break
                except OSError as error:
                    if now() > limit or self.client.ended:
                        where = f"{address}, port {self.options.port}"
                        raise WorkloadError(f"no server at host {rank} ({where}): {error}") from None
                    time.sleep(0.1)

    def _alone(self) -> None:
        """How long each size takes when nobody else is there: what slowdowns are relative to. The least of several:
        programs that are just starting take cores, and can only make it longer."""
        found: dict[int, float] = {}
        quiet = Door(rank=0, world_size=self.door.world_size, addresses=self.door.addresses, dscp=self.door.dscp)
        client = Client(quiet, self.options)
        done: list[float] = []
        client.answered = lambda _: done.append(now())
        for size in sorted(set(self.sizes.sizes)):
            times = []
            for _ in range(next(often for up_to, often in ALONE if size <= up_to)):
                done.clear()
                asked, before = now(), client.count.completed
                client.start(Request(asked, 0.0, 1, size))
                while not done and not self.client.ended:
                    client.wait(now() + 0.1)
                if client.count.completed > before:
                    times.append(done[0] - asked)
                time.sleep(ALONE_PAUSE_S)
            if not times:
                why = "; ".join(client.count.reasons) or "no answer"
                hint = (
                    "web.server must be told of sizes of your own (bytes, most_bytes)" if "404" in why else "is it up?"
                )
                raise WorkloadError(f"the server of host 1 gives nothing for /{size}: {why}: {hint}")
            found[size] = min(times) * 1000
        self.door.record("alone", ms={str(size): round(ms, 4) for size, ms in found.items()})

    def _draw(self, rate: float, from_s: float, seconds: float) -> Schedule:
        return draw(
            seed=self.door.seed,
            rank=self.door.rank,
            world=self.door.world_size,
            rate=rate,
            from_s=from_s,
            seconds=seconds,
            sizes=self.sizes,
            page=self.options.page,
        )

    def _open(self, plan: Sequence[tuple[float, float]], schedule: Schedule) -> None:
        from_s = 0.0
        for number, (rate, seconds) in enumerate(plan):
            if number:
                schedule = self._draw(rate, from_s, seconds)
            self._phase(number, rate, from_s, seconds or FOREVER_S, schedule, last=len(plan) == 1)
            from_s += seconds + GAP_S
            last = self.steer.told("last_phase") if len(plan) > 1 else None
            if last is not None:
                rate, held = plan[last][0], self.options.held(plan[last][0])
                if held:
                    self._phase(number + 1, rate, from_s, held, self._draw(rate, from_s, held), last=True)
                break
            if self.client.ended:
                break

    def _phase(
        self, number: int, rate: float, from_s: float, seconds: float, schedule: Schedule, *, last: bool
    ) -> None:
        self.client.run(schedule, until_s=from_s + seconds, stop=self.steer.enough)
        if self.door.rank == 0:
            self.door.record(
                "phase", number=number, rate=rate, from_s=from_s, to_s=from_s + seconds, time_s=time.time()
            )
        if last:
            return
        nothing = self._draw(rate, 0.0, 0.0)
        self.client.run(nothing, until_s=from_s + seconds + GAP_S / 2)
        self.steer.after_phase(number, from_s, from_s + seconds)
        self.client.run(nothing, until_s=from_s + seconds + GAP_S)

    def _closed(self) -> None:
        """Each user asks again as soon as it was answered: it waits with the service, and hides its longest pauses."""
        client, options = self.client, self.options
        end = client.begin + (options.seconds or FOREVER_S)
        random = np.random.default_rng([self.door.seed, self.door.rank])
        free = list(range(options.users))
        client.answered = lambda request: free.append(request.user)
        while now() < end and not client.ended and not self.steer.enough():
            asking, free[:] = list(free), []  # whoever fails at once asks again in the next turn
            for user in asking:
                moment, other = now(), int(random.integers(0, self.door.world_size - 1))
                size = int(self.sizes.draw(random.random(1))[0])
                server = other + (other >= self.door.rank)
                client.start(Request(moment, moment - client.begin, server, size, user=user))
            client.wait(min(end, now() + (0.01 if free else 0.1)))

    def _say(self) -> None:
        count = self.client.count
        oldest = {} if math.isinf(count.oldest_s) else {"oldest_s": count.oldest_s}
        said = {**vars(count), "told_to_end": self.client.ended}
        del said["oldest_s"]
        self.door.record("requests", **said, **oldest)
        self.door.record(
            "summary",
            sent=count.sent,
            completed=count.completed,
            failed=count.failed + count.timed_out + count.dropped + count.unfinished,
        )


def first_in_line() -> bool:
    """A generator that waits for a core sends late; it needs one for microseconds. Where that is not allowed its lag
    says whether it mattered."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    return True


def main() -> int:
    door = Door.from_environment()
    return status_of(lambda: Clients(door, read_options(door.options)).run())


if __name__ == "__main__":
    raise SystemExit(main())
