"""What the lossy backend is made of: names torch asks for, the endpoint behind it, and how a call becomes a job."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from lossbench.contract import Door
from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.context import Group
from lossbench.workloads.collective.reduce import is_lossy
from lossbench.workloads.collective.roll import EPOCHS_TRIED, Roll
from lossbench.workloads.collective.staging import Events, Pinned, Rooms, Staged, events_of
from lossbench.workloads.collective.where import cores_per_rank, inner_gloo, own_address
from lossbench.workloads.collective.work import CallWork, Results, UnderWay, Work, spans_of
from lossbench.workloads.errors import AbsentError, TransportError
from lossbench.workloads.transport.endpoint import Endpoint
from lossbench.workloads.transport.half import Account, Result
from lossbench.workloads.transport.jobs import Asked
from lossbench.workloads.transport.meeting import meet
from lossbench.workloads.transport.policy import Policy

PATIENCE_S = 30.0


class Base(dist.ProcessGroup):
    """One group of ranks. `counters`, `accounts`, `set_step` are what a strategy needs beyond torch's interface."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, policy: Policy, door: Door | None = None
    ) -> None:
        """`door`: of this rank, where a process hosts several."""
        super().__init__(rank, size)
        self._name, self._desc = "", ""
        self._door, self._timeout = door or Door.from_environment(), timeout
        made = _Made(store, rank)
        self.returned = policy.absent == "continue" and made.again  # to a group that has gone on without this rank
        if self.returned:
            made.go_back()
        self._closed = made.closed
        self.roll = Roll(made.store, rank=rank, world=size, timeout_s=policy.timeout_s)
        if self.returned:
            self._come_back(policy)
        else:
            self._meet(policy)
        self._pinned, self._rooms, self._room = Pinned(), Rooms(), 0
        self._results, self._under_way = Results(), UnderWay()
        # torch wants an inner backend to exist; point-to-point goes by it, over TCP.
        self._inner = inner_gloo(dist.PrefixStore(f"inner/{made.times}", store), rank, size, timeout)
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, self._inner)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    @property
    def address(self) -> str:
        """Of this rank, on the link that leads to the others."""
        return own_address(self._door)

    def _meet(self, policy: Policy) -> None:
        """With the others of this epoch."""
        continues = policy.absent == "continue"
        self._endpoint = meet(
            self.roll.keys(limited=continues and self.roll.epoch > 0),
            rank=self.rank(),
            world=self.size(),
            address=self.address,
            port=self._door.port,
            token=self._door.token or None,
            policy=policy,
            cores=cores_per_rank(self.size()),
            present=self.roll.members,
        )
        engine, epoch = self._endpoint.engine, self.roll.epoch
        self._door.record("transport", engine=engine.name, build=engine.build, policy=asdict(policy), epoch=epoch)
        self._endpoint.limit_s = self._timeout.total_seconds()
        self._group = Group(self._endpoint)
        self._step: int | None = None
        self._calls = 0
        # Peers may still need an acknowledgement of ours when this process has nothing more to do.
        _open.add(self._endpoint)

    def _come_back(self, policy: Policy) -> None:
        """Somebody may die while this rank is let in."""
        for attempt in range(EPOCHS_TRIED):
            self.roll.knock(self._timeout.total_seconds())
            try:
                self._meet(policy)
            except AbsentError:
                if attempt == EPOCHS_TRIED - 1:
                    raise
            else:
                return

    def regroup(self, error: AbsentError | None) -> None:
        """With those who are left after `error`, or with those who were let in. Calls under way have failed. In a
        group that is closed, or meanwhile, this says so."""
        before = self._endpoint
        for _ in range(EPOCHS_TRIED):
            self.roll.check_open()
            if error is not None:
                self.roll.call(error.ranks)  # `before` goes on telling the others that it gave up
            if self.rank() not in self.roll.members:
                self.returned = True
                self.roll.knock(self._timeout.total_seconds())
            before.close(patience_s=0.0 if error is not None else PATIENCE_S)
            try:
                self._meet(before.policy)
            except AbsentError as again:
                error = again
            else:
                try:
                    self.roll.check_open()
                except TransportError:  # whoever closed it meanwhile knew of the one before alone
                    self._endpoint.close(patience_s=0.0)
                    raise
                self._forget()
                return
        raise TransportError(f"rank {self.rank()}: those who are left did not meet in {EPOCHS_TRIED} attempts")

    def _forget(self) -> None:
        """What was made for the members there were."""

    # --- beyond torch's interface --------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        return self._endpoint.policy

    @property
    def counters(self) -> dict[str, Any]:
        """Packets by fate; `payload_bytes` arrived by the lossy way."""
        return self._endpoint.read()

    @property
    def engine(self) -> str:
        """Who moves the packets: native (C) or plain (numpy)."""
        return self._endpoint.engine.name

    @property
    def datagram_bytes(self) -> int:
        """Header and payload of the widest packet."""
        return self._endpoint.datagram_bytes

    @property
    def accounts(self) -> list[Account]:
        """Of the latest lossy call: what arrived, per half."""
        return self._group.accounts

    def set_step(self, step: int | None) -> None:
        """The training step in the header of every packet from now on, on all ranks; None: the number of the call."""
        self._step = step
        self._group.since_step.clear()

    def accounts_of_step(self) -> list[Account]:
        """Of all lossy calls since `set_step`, the latest 256."""
        return [result.account for result in self._group.since_step]

    # --- names ---------------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "lossy"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._desc = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    def shutdown(self) -> None:
        self._end(PATIENCE_S)

    def abort(self) -> None:
        self._end(0.0)

    def _end(self, patience_s: float) -> None:
        """The store comes last: it may be gone, or answer late. A fork has nothing of this to end."""
        if self._endpoint.forked:
            return
        self.roll.close()
        self._endpoint.close(patience_s)
        self._results.close()
        self._closed()

    # --- running -------------------------------------------------------------------------------------------------

    def _begin(self, tensors: Any, job: Callable[[], Asked | None], *, opts: Any = None, steps: bool = False) -> Work:
        """After what was begun before on these tensors, and after what their streams still do. `steps`: a job that
        waits between its halves; it runs in a thread of its own, unless the caller (as `opts` says) waits for it."""
        self._endpoint.here()
        events, spans = events_of(tensors), spans_of(tensors)
        before = self._under_way.before(spans)
        # Now: ranks agree on the order of calls, not on time, and a deadline is that of whoever calls.
        step, deadline = self._next_step(), self._endpoint.asked_deadline_s

        def run() -> Asked | None:
            for work in before:
                with suppress(Exception):  # whoever waits for it is told
                    work.wait()
            self._endpoint.step, self._endpoint.deadline_s = step, deadline
            with torch.no_grad():
                return self._in_streams(events, job) if events else job()

        queued = bool(events) or bool(before) or (steps and getattr(opts, "asyncOp", True))
        out = CallWork(self._endpoint.begin(run, queued=queued), tensors, self._results)
        if spans:
            self._under_way.add(out, spans)
        return out

    def _next_step(self) -> int:
        self._calls += 1
        return self._calls if self._step is None else self._step

    def _in_streams(self, events: Events, job: Callable[[], Asked | None]) -> Asked:
        """Begun and ended in streams of our own, behind what the caller's streams had to do; in a room of pinned memory
        that no other job has."""
        room = self._room = self._rooms.take()  # jobs begin one by one, and overlap
        try:
            with self._streams(events):
                for device, event in events:
                    self._pinned.stream(device).wait_event(event)
                asked = job() or Asked()
        except BaseException:
            self._rooms.give_back(room)
            raise

        def then(results: list[Result]) -> None:
            with torch.no_grad(), self._streams(events):
                if asked.then is not None:
                    asked.then(results)
                for device, _ in events:
                    self._pinned.stream(device).synchronize()

        return Asked(halves=asked.halves, then=then, always=partial(self._rooms.give_back, room))

    def _streams(self, events: Events) -> ExitStack:
        out = ExitStack()
        for device, _ in events:
            out.enter_context(torch.cuda.stream(self._pinned.stream(device)))
        return out

    def _lossy(self, staged: Staged, op: str) -> bool:
        small = staged.array.nbytes < self.policy.reliable_below_bytes
        return is_lossy(staged.codec, op) and not small

    def barrier(self, opts: Any = None) -> Any:
        return self._begin([], lambda: exchange.ask_barrier(self._group), opts=opts)


class _Made:
    """The how many-eth group this is on one store: one made again does not meet the one before. `again`: this rank was
    in a group that it never closed."""

    def __init__(self, store: Any, rank: int) -> None:
        self._rank = rank
        self.times = store.add(f"lossy/made{rank}", 1)
        before = f"lossy/{self.times - 1}/open{rank}"
        self.again = self.times > 1 and store.check([before]) and store.get(before) == b"1"
        self._all = store
        self.store = dist.PrefixStore(f"lossy/{self.times}", store)
        self.store.set(f"open{rank}", "1")

    def go_back(self) -> None:
        """To the group that has gone on without this rank."""
        self.times = self._all.add(f"lossy/made{self._rank}", -1)
        self.store = dist.PrefixStore(f"lossy/{self.times}", self._all)

    def closed(self) -> None:
        with suppress(RuntimeError):  # the store may have gone before
            self.store.set(f"open{self._rank}", "0")


_open: weakref.WeakSet[Endpoint] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for endpoint in list(_open):
        endpoint.close()
