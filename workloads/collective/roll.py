"""Who is left (absent=continue): ranks agree on it through the group's store, in epochs that are numbered from 0 on.

An epoch has one list of members, written by whoever is first; its ranks then meet anew, with new sockets and a new key.
After a death whoever notices it announces itself; the list is made when all but the suspects have, or when `timeout_s`
have passed. A rank that comes back, or was left out, knocks; the lowest rank that is here lets it in at a step
boundary: it writes the list before it exchanges step s, for step s + 1, so whoever has ended s can read it. Numbers of
ranks stay as they were. The death of the store's keeper ends the run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from lossbench.workloads.errors import AbsentError, TransportError
from lossbench.workloads.transport.jobs import CLOSED

POLL_S = 0.02
EPOCHS_TRIED = 5


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What the store says of an epoch."""

    members: tuple[int, ...]
    step: int  # from which on
    answered: dict[int, int]  # knocks of each rank, so far


class Roll:
    def __init__(self, store: Any, *, rank: int, world: int, timeout_s: float) -> None:
        self._store, self.rank, self._timeout_s = store, rank, timeout_s
        self.epoch = 0
        self.listed = Listed(members=tuple(range(world)), step=0, answered={})
        self._world, self._closed = world, False

    def close(self) -> None:
        """Whoever waits here for others is told, in its own thread."""
        self._closed = True

    def check_open(self) -> None:
        if self._closed:
            raise TransportError(f"rank {self.rank}: {CLOSED}")

    @property
    def members(self) -> tuple[int, ...]:
        return self.listed.members

    def keys(self, *, limited: bool) -> Keys:
        """For the meeting of this epoch. `limited`: whoever does not come in `timeout_s` is absent."""
        return Keys(self, self._store, limit_s=self._timeout_s if limited else None)

    # --- a death --------------------------------------------------------------------------------------------------

    def call(self, suspects: Iterable[int]) -> None:
        """To the next epoch, with those who are left."""
        with _store_needed():
            epoch, suspected = self.epoch + 1, set(suspects)
            self._store.set(f"{epoch}/here{self.rank}", "1")
            until = time.monotonic() + self._timeout_s
            while not self._is_listed(epoch):
                here = [rank for rank in self.members if self._store.check([f"{epoch}/here{rank}"])]
                if set(self.members) - suspected <= set(here) or time.monotonic() > until:
                    self._propose(epoch, Listed(members=tuple(here), step=0, answered=self.listed.answered))
                time.sleep(POLL_S)
                self.check_open()
            self._enter(epoch)

    # --- a return -------------------------------------------------------------------------------------------------

    def knock(self, patience_s: float) -> None:
        """Until those who are here let this rank in."""
        with _store_needed():
            number = int(self._store.add(f"knocks{self.rank}", 1))
            until = time.monotonic() + patience_s
            epoch = self.epoch + 1
            while True:
                while not self._is_listed(epoch):
                    if time.monotonic() > until:
                        raise TransportError(f"rank {self.rank}: nobody let it in again for {patience_s:g} s")
                    time.sleep(POLL_S)
                    self.check_open()
                listed = self._read(epoch)
                if self.rank in listed.members and listed.answered.get(self.rank, 0) >= number:
                    self._enter(epoch)
                    return
                epoch += 1

    def let_in(self, step: int) -> bool:
        """Before step `step` is exchanged, on every rank: whether the next epoch begins with it. The store is asked for
        nothing while everybody is here."""
        absent = [rank for rank in range(self._world) if rank not in self.members]
        if not absent:
            return False
        with _store_needed():
            epoch = self.epoch + 1
            if self.rank == self.members[0] and not self._is_listed(epoch):
                knocks = {rank: int(self._store.add(f"knocks{rank}", 0)) for rank in absent}
                come = [rank for rank in absent if knocks[rank] > self.listed.answered.get(rank, 0)]
                if come:
                    members, answered = tuple(sorted([*self.members, *come])), {**self.listed.answered, **knocks}
                    self._propose(epoch, Listed(members=members, step=step + 1, answered=answered))
            if not self._is_listed(epoch) or self._read(epoch).step > step:
                return False
            self._enter(epoch)
            return True

    # --- lists ----------------------------------------------------------------------------------------------------

    def _is_listed(self, epoch: int) -> bool:
        return bool(self._store.check([f"{epoch}/members"]))

    def _propose(self, epoch: int, listed: Listed) -> None:
        """The first proposal stands."""
        self._store.compare_set(f"{epoch}/members", "", json.dumps(listed.__dict__))

    def _read(self, epoch: int) -> Listed:
        read = json.loads(self._store.get(f"{epoch}/members"))
        answered = {int(rank): int(count) for rank, count in read["answered"].items()}
        return Listed(members=tuple(read["members"]), step=int(read["step"]), answered=answered)

    def _enter(self, epoch: int) -> None:
        self.epoch, self.listed = epoch, self._read(epoch)


class Keys:
    """torch's store under a prefix of this epoch, for a meeting. `limit_s`: for the others to come."""

    def __init__(self, roll: Roll, store: Any, *, limit_s: float | None = None) -> None:
        self._roll, self._limit_s = roll, limit_s
        self._store = dist.PrefixStore(f"epoch{roll.epoch}", store)

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """Looked for again and again: whoever waits within the store keeps everybody else of this process from it, and
        hears of no abort."""
        if self._limit_s is not None:
            self._wait(key, self._limit_s)
        return bytes(self._store.get(key))

    def _wait(self, key: str, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        with _store_needed():
            while not self._store.check([key]):
                self._roll.check_open()
                if time.monotonic() > until:
                    who = "".join(letter for letter in key if letter.isdigit())
                    said = f"rank {who or self._roll.members[0]} did not come in {limit_s:g} s (timeout_s)"
                    raise AbsentError(said, (int(who),) if who else ())
                time.sleep(POLL_S)


@contextmanager
def _store_needed() -> Iterator[None]:
    try:
        yield
    except TransportError:
        raise
    except RuntimeError as error:
        raise TransportError(
            f"the group's store can't be reached, and without it nobody can agree on who is left: {error}"
        ) from None
