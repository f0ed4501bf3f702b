"""The short way of an all-reduce of a CPU tensor: as little Python as can be between the caller and the engine.

Halves of a shape are made once and used again; whoever waits drives the engine. What is not this simple (other devices,
strides, several steps, jobs that wait for their turn) goes the long way: base.py, jobs.py."""

from __future__ import annotations

import threading
from datetime import timedelta

import numpy as np
import torch

from lossbench.workloads.collective.context import Group
from lossbench.workloads.collective.halves import GatherHalf, ScatterHalf
from lossbench.workloads.collective.reduce import pair_of
from lossbench.workloads.collective.work import Results, Work
from lossbench.workloads.transport.jobs import take_turn
from lossbench.workloads.transport.packet.wire import Bits
from lossbench.workloads.transport.plan import Plan, address

SHORT_BYTES = 1 << 20  # a wait of a millisecond or so
AT_ONCE, AT_ONCE_BYTES = (
    64,
    1 << 14,
)  # of calls' bitmaps made in one piece: to ask numpy where it lies takes microseconds


class Shape:
    """All-reduces of one size, type and operation; a deadline is that of each call."""

    def __init__(self, group: Group, plan: Plan, *, op: str, lossy: bool) -> None:
        self.group, self.plan, self.op, self.lossy = group, plan, op, lossy
        self.packets = plan.scatter_receives.packets + plan.gather_receives.packets
        self.bytes = plan.elements * plan.layout.codec.memory.itemsize
        self.short = self.bytes <= SHORT_BYTES
        self.spare: list[tuple[ScatterHalf, GatherHalf]] = []
        self._bitmaps: list[tuple[Bits, int]] = []  # each for one call, and where it lies

    def begin(self, tensor: torch.Tensor, place: int, step: int, results: Results) -> ShortWork:
        """`place`: where it lies."""
        group = self.group
        pair = self.spare.pop() if self.spare else self._pair()
        arrived, at = self._bitmap()
        if group.measures and self.lossy:
            pair[0].weigh(group.weights())
        if pair[0].deadline_s != group.endpoint.asked_deadline_s:
            for half in pair:
                half.set_deadline(group.endpoint.asked_deadline_s)
        try:
            group.endpoint.engine.submit_pair(pair, place, self.plan.mine_at, at, step, short=self.short)
            return ShortWork(self, pair, tensor, arrived, results)
        except BaseException as error:  # a signal: the engine would write into what nobody holds
            group.endpoint.failed(error)
            raise

    def _bitmap(self) -> tuple[Bits, int]:
        try:
            return self._bitmaps.pop()
        except IndexError:  # also if another thread took the last one
            count = max(1, min(AT_ONCE, AT_ONCE_BYTES // (self.packets or 1)))
            several = np.empty((count, self.packets), np.bool_)
            at = address(several)
            one, *others = [(several[n], at + n * self.packets) for n in range(count)]
            self._bitmaps.extend(others)
            return one

    def _pair(self) -> tuple[ScatterHalf, GatherHalf]:
        out = pair_of(self.plan, op=self.op, lossy=self.lossy, policy=self.group.endpoint.policy)
        self.group.endpoint.prepare(*out)
        return out


class ShortWork(Work):
    def __init__(
        self, shape: Shape, pair: tuple[ScatterHalf, GatherHalf], tensor: torch.Tensor, arrived: Bits, results: Results
    ) -> None:
        super().__init__([tensor], results)
        self._shape, self._pair, self._arrived = shape, pair, arrived
        self._error: BaseException | None = None
        self._done = False
        self._turn = threading.Lock()  # once one has landed, the halves may be another call's

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._done:
            endpoint = self._shape.group.endpoint
            if endpoint.born != endpoint.forks:  # before any lock
                endpoint.here()
            limit = max(timeout.total_seconds(), 0.0) if timeout else 0.0
            if not self._turn.acquire(False):
                take_turn(self._turn, limit or None, look=lambda: None if self._done else endpoint.still(self._pair))
            try:
                if not self._done:
                    self._wait(limit)
            finally:
                self._turn.release()
        if self._error is not None:
            raise self._error
        return True

    def _wait(self, limit: float) -> None:
        """Then results are kept, and the halves are free again."""
        shape, pair = self._shape, self._pair
        endpoint = shape.group.endpoint
        if not endpoint.engine.wait(pair[1], limit or endpoint.limit_s, short=shape.short):
            error = endpoint.overdue(limit or None)
            if not limit:
                self._error, self._done = error, True
            raise error
        cut = shape.plan.scatter_receives.packets
        pair[0].arrived, pair[1].arrived = self._arrived[:cut], self._arrived[cut:]
        try:
            found = endpoint.results(pair)
            if shape.lossy:
                shape.group.noted(found)
            shape.spare.append(pair)
        except BaseException as error:  # noqa: BLE001 - for whoever waits
            self._error = error
        self._done = True
        self._leave()

    @property
    def limit_s(self) -> float:
        return self._shape.group.endpoint.limit_s

    def expire(self) -> None:
        if self._turn.acquire(blocking=False):
            try:
                if not self._done:
                    self._error, self._done = self._shape.group.endpoint.overdue(None), True
            finally:
                self._turn.release()

    def is_completed(self) -> bool:
        return self._done or self._shape.group.endpoint.over(self._pair[1])

    def __del__(self) -> None:
        if not self.is_completed():  # nobody waits for it: its memory is still written to
            kept = self._shape.group.endpoint.engine.kept
            kept.keep(self._pair[1].record, (self._pair, self._tensors, self._arrived))
