"""The two halves as an engine is asked for them. Made once for a shape of call, then used again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lossbench.contract import HALVES
from lossbench.workloads.transport.half import Half
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.wire import Array
from lossbench.workloads.transport.plan import Plan, address
from lossbench.workloads.transport.structures import ADD_BF16, ADD_F16, ADD_F32, BY_COUNT, BY_WORLD

SCATTER, GATHER = HALVES["reduce_scatter"], HALVES["all_gather"]
ADD = {"float32": ADD_F32, "bfloat16": ADD_BF16, "float16": ADD_F16}


@dataclass(frozen=True, kw_only=True)
class Reducing:
    """How contributions become a block."""

    op: str  # sum, avg
    normaliser: str = "count"
    own: bool = True  # this rank's own part counts
    lossy: bool = True


class ScatterHalf(Half):
    """Block j goes to its owner; the mean of this rank's block is made where `reduce` says."""

    def __init__(self, plan: Plan, how: Reducing) -> None:
        self._plan, self._how, codec = plan, how, plan.layout.codec
        super().__init__(
            half=SCATTER,
            signature=wire.signature(codec.name, how.op),
            size=plan.elements,
            sends=plan.scatter_sends,
            receives=plan.scatter_receives,
            reliable=not how.lossy,
            mode=ADD[codec.name],
            codec=codec.name,
        )
        record, layout, world = self.record, plan.layout, len(plan.present)
        record.elements, record.width, record.world = layout.counts[plan.mine], layout.width, world
        record.times = world if how.op == "sum" else 1
        record.normaliser = BY_COUNT if how.normaliser == "count" else BY_WORLD
        self._room = None if codec.name == "float32" else np.empty(layout.counts[plan.mine], np.float32)
        self.record.room = None if self._room is None else address(self._room)

    def reduce(self, source: int, target: int, *, holds: Any, weights: Array | None = None) -> None:
        """Addresses of all blocks, and of where this rank's becomes a mean, which may be where it lies. `weights`: by
        rank, of each peer's values."""
        plan, record = self._plan, self.record
        sums = target if self._room is None else address(self._room)
        record.sums, record.rounded = sums, target
        record.own_part = source + plan.mine_at if self._how.own else None
        if weights is not None:
            self.weigh(weights)
        self.aim(source=source, target=sums, holds=holds)

    def weigh(self, weights: Array) -> None:
        """By rank, of each peer's values, in the next call."""
        self._weighted = self._plan.scatter_receives.template.copy()
        self._weighted["weight"] = weights[self._weighted["peer"]]
        self.record.plan_in = address(self._weighted)


class GatherHalf(Half):
    """This rank's block to everybody, everybody's block to its place; what does not come is scaled by `missing`."""

    def __init__(self, plan: Plan, *, call: str, reliable: bool, missing: float = 1.0, after: bool = False) -> None:
        super().__init__(
            half=GATHER,
            signature=wire.signature(plan.layout.codec.name, call),
            size=plan.elements,
            sends=plan.gather_sends,
            receives=plan.gather_receives,
            reliable=reliable,
            codec=plan.layout.codec.name,
            missing=missing,
            after=after,
        )

    def gather(self, mine: int, out: int, *, holds: Any) -> None:
        """Addresses."""
        self.aim(source=mine, target=out, holds=holds)
