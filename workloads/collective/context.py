"""What the calls of one group share: its endpoint, plans that are used again, the loss measured so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from lossbench.contract import HALVES
from lossbench.workloads.transport.endpoint import Endpoint
from lossbench.workloads.transport.half import Account, Result
from lossbench.workloads.transport.packet.codec import Codec
from lossbench.workloads.transport.packet.layout import Layout
from lossbench.workloads.transport.packet.wire import Array
from lossbench.workloads.transport.plan import Plan

T = TypeVar("T")
FORGET = 0.98  # of the measured loss, per half
PRIOR_PACKETS, MOST = 20.0, 0.9
PLANS = 256  # remembered


@dataclass
class Group:
    """An endpoint, and the loss it has measured so far, per peer (for the normaliser `expected`)."""

    endpoint: Endpoint
    latest: list[Result] = field(default_factory=list)  # halves of the latest lossy call
    since_step: deque[Result] = field(default_factory=partial(deque, maxlen=256))  # of all calls of a training step
    empty_packets: int = 0  # to which nothing contributed

    def __post_init__(self) -> None:
        world = self.endpoint.world
        self._expected = np.full(world, PRIOR_PACKETS)  # nothing lost so far, as a weak belief
        self._lost = np.zeros(world)
        self._plans: dict[object, Plan] = {}
        self._spare: dict[object, list[Any]] = {}
        self.measures = self.endpoint.policy.normaliser == "expected"

    @property
    def accounts(self) -> list[Account]:
        """Of the latest lossy call."""
        return [result.account for result in self.latest]

    def spare(self, key: object, make: Callable[[], T]) -> T:
        """Halves of this shape that nobody uses now, or new ones."""
        found = self._spare.get(key)
        return found.pop() if found else make()

    def put_back(self, key: object, halves: Any) -> None:
        if len(self._spare) > PLANS:
            self._spare.clear()
        self._spare.setdefault(key, []).append(halves)

    def plan(self, counts: Sequence[int], codec: Codec, block_of: tuple[int, ...] | None = None) -> Plan:
        """`block_of[rank]`: the block it owns; none: block j belongs to rank j."""
        key = (tuple(counts), codec.name, block_of)
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= PLANS:
                self._plans.clear()
            layout = Layout.plan(tuple(counts), codec=codec, datagram_bytes=self.endpoint.datagram_bytes)
            owners = block_of or tuple(range(self.endpoint.world))
            found = self._plans[key] = Plan(
                layout, block_of=owners, rank=self.endpoint.rank, present=self.endpoint.present
            )
        return found

    @property
    def loss(self) -> Array:
        """Share of each peer's packets that did not come, lately."""
        out: Array = np.minimum(self._lost / self._expected, MOST)
        return out

    def weights(self) -> Array:
        """By which each peer's values are multiplied so that their sum is right on average."""
        out: Array = (1 / (1 - self.loss)).astype(np.float32)
        return out

    def noted(self, results: list[Result], *, measure: bool = False) -> None:
        """Of the latest lossy call."""
        self.latest = results
        self.since_step.extend(results)
        if measure or self.measures:
            for result in results:
                self.measure(result.account)

    def measure(self, account: Account) -> None:
        """Over the latest first halves, by packets: one short half says little."""
        if account.half != HALVES["reduce_scatter"]:
            return
        for peer, bits in account.arrived.items():
            self._expected[peer] = FORGET * self._expected[peer] + len(bits)
            self._lost[peer] = FORGET * self._lost[peer] + len(bits) - int(bits.sum())
