"""What is asked of all machines of a lab at once, and how their answers are put together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from lossbench.contract import derive_seed
from lossbench.errors import LossbenchError, NotAbleError, RunError
from lossbench.net.lab.channel import Channel
from lossbench.spec.lab import Lab

Answer = TypeVar("Answer")
Hold = Callable[[], AbstractContextManager[None]]


class Channels:
    """To every machine; opened and asked in parallel, closed together."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._pool = ThreadPoolExecutor(max_workers=len(lab.machine))  # probes need all of them at the same time
        self.open: dict[int, Channel] = {}
        self.closed: dict[int, LossbenchError] = {}

    def connect(self) -> None:
        """Whoever can't be reached is in `closed`, with the reason."""
        ranks = range(len(self.lab.machine))
        for rank, found in zip(ranks, self._pool.map(self._opened, ranks), strict=True):
            if isinstance(found, Channel):
                self.open[rank] = found
            else:
                self.closed[rank] = found
        self._told_apart()

    def _told_apart(self) -> None:
        """lab.toml names machines as ssh takes them: the same one by two names shows in its address alone."""
        first: dict[str, str] = {}
        for rank, channel in sorted(self.open.items()):
            other = first.setdefault(channel.machine.address, channel.name)
            if other != channel.name:
                text = (
                    f"{channel.name} ({channel.machine.ssh}) has the data address of {other}, {channel.machine.address}"
                )
                step = "one machine named twice? each needs an address of its own"
                self.open.pop(rank).close()
                self.closed[rank] = NotAbleError(text, next_step=step)

    def _opened(self, rank: int) -> Channel | LossbenchError:
        try:
            return Channel(self.lab, rank)
        except LossbenchError as error:
            return error

    def all_or_refuse(self) -> None:
        """A lab with a machine missing is another lab."""
        if self.closed:
            raise NotAbleError("; ".join(error.message for error in self.closed.values()), next_step=_step(self.closed))

    def each(self, what: Callable[[Channel], Answer]) -> dict[int, Answer | LossbenchError]:
        """Of every open machine: its answer, or what went wrong there."""

        def one(channel: Channel) -> Answer | LossbenchError:
            try:
                return what(channel)
            except LossbenchError as error:
                return error
            except (TypeError, ValueError, LookupError) as error:
                return RunError(f"{channel.name} answers nonsense ({error})", next_step="the same lossbench on both?")

        return dict(zip(self.open, self._pool.map(one, self.open.values()), strict=True))

    def all(self, what: Callable[[Channel], Any]) -> dict[int, Any]:
        """Of every open machine; one that fails is everybody's failure."""
        found = self.each(what)
        for one in found.values():
            if isinstance(one, LossbenchError):
                raise one
        return found

    def close(self) -> None:
        """Not by the pool: whoever still waits for an answer there gets none any more."""
        threads = [threading.Thread(target=channel.close) for channel in self.open.values()]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self._pool.shutdown()


def _step(errors: dict[int, LossbenchError]) -> str:
    return next(iter(errors.values())).next_step


@contextmanager
def channels(lab: Lab) -> Iterator[Channels]:
    made = Channels(lab)
    try:
        made.connect()
        yield made
    finally:
        made.close()


def apply(
    lab: Lab, *, seed: int, traffic: dict[str, Any], hold: Hold = nullcontext, **asked: Any
) -> dict[int, dict[str, Any]]:
    """On every machine's data interface, for packets between them, or on none. Each is confirmed by a connection made
    afterwards, and has a seed of its own: equal ones would lose the same packets on every machine. Until all have
    confirmed and were told to keep it, each takes it back when this channel to it ends, whoever ends it. `hold`: in it
    nothing interrupts."""
    with channels(lab) as machines:
        machines.all_or_refuse()
        traffic = {**traffic, "peers": [channel.machine.address for channel in machines.open.values()]}
        stands = False
        left: dict[int, str] = {}
        try:
            done = machines.each(
                lambda c: c.ask(
                    "nic.apply",
                    interface=c.machine.interface,
                    seed=derive_seed(seed, "lab", c.name),
                    traffic=traffic,
                    past_rdma=c.machine.past_rdma,
                    timeout_s=180,
                    **asked,
                )
            )
            failed = _errors(done) or _confirmed(lab, done)
            with hold():
                failed = failed or _errors(machines.each(lambda c: c.ask("nic.keep")))
            stands = not failed
        finally:
            if not stands:
                with hold():
                    left = _taken_back(machines)
        if failed:
            said = [error.message for error in failed.values()]
            raise NotAbleError("; ".join([*said, *left.values()]), next_step=_step(failed))
        return {rank: found for rank, found in done.items() if isinstance(found, dict)}


def _errors(found: dict[int, Any]) -> dict[int, LossbenchError]:
    return {rank: one for rank, one in found.items() if isinstance(one, LossbenchError)}


def _taken_back(machines: Channels) -> dict[int, str]:
    """On every machine, also on those that failed: an answer that was lost says nothing of what was done. Each takes
    back what it did by this channel, and nobody else's. Returns what may still stand, in words."""
    said = machines.each(lambda c: c.ask("nic.take_back"))
    names = {rank: channel.name for rank, channel in machines.open.items()}
    return {
        rank: f"{names[rank]} may still be impaired until its time is over ({one.message})"
        for rank, one in _errors(said).items()
    }


def _confirmed(lab: Lab, done: dict[int, Any]) -> dict[int, LossbenchError]:
    """That a new connection comes through is the proof that the machine can still be reached."""
    waiting = {rank for rank, found in done.items() if found["phase"] == "unconfirmed"}
    if not waiting:
        return {}
    with channels(lab) as again:
        for rank in set(again.open) - waiting:
            again.open.pop(rank).close()
        said = again.each(lambda c: c.ask("nic.confirm", interface=c.machine.interface))
        return {**again.closed, **_errors(said)}


def ask_each(lab: Lab, what: str) -> dict[int, Any]:
    """Of each machine about its data interface; errors are answers too."""
    with channels(lab) as machines:
        found: dict[int, Any] = dict(machines.each(lambda c: c.ask(what, interface=c.machine.interface)))
        return dict(sorted({**found, **machines.closed}.items()))
