"""Weintraub et al. 2025: unbiased gradient aggregation at a shard's owner, and bounded-drift broadcasts of its values.

Half 1 carries gradients to the owner, who steps its shard with an optimizer whose state only it has; half 2 carries the
new VALUES, so that one later success wipes out earlier losses. Lost values: the worker keeps its old ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lossbench.workloads.sync.base import Strategy
from lossbench.workloads.sync.vectors.shards import Learned, ShardOptimizer, cut, is_elementwise
from lossbench.workloads.transport.packet.layout import among


class BoundedDrift(Strategy):
    name = "bounded_drift"
    exchanges = "gradients, updated parameters"
    owned = True
    goes_on = True
    if_gone = ", whose shard is divided, its optimizer's state fresh"

    @dataclass(frozen=True, kw_only=True)
    class Options:
        normaliser: str = "count"

    def __init__(self, *given: Any, **keys: Any) -> None:
        self.shard: ShardOptimizer | None = None
        super().__init__(*given, **keys)

    def resettle(self) -> None:
        """Every owner's values, and what its optimizer has learned of them, to whoever owns them from now on."""
        channel, whole = self.channel, not is_elementwise(self.optimizer)
        shares = cut(self.flat, len(channel.present), whole_tensors=whole)
        counts = among(shares, channel.present, channel.world)
        start = sum(counts[: channel.rank])
        end = start + counts[channel.rank]
        learned = None if self.shard is None else self._learned(start, end)
        self.counts = counts
        self.shard = ShardOptimizer(
            self.optimizer, self.flat, start=start, count=end - start, whole_tensors=whole, learned=learned
        )

    def _learned(self, start: int, end: int) -> list[Learned]:
        """Rank by rank; of their optimizers' state only what lies between `start` and `end` is kept."""
        shard, members = self.shard, self.channel.members
        assert shard is not None and members is not None
        out: list[Learned] = []
        own = self.flat.values[shard.start : shard.start + (0 if members.new else shard.count)]
        state = [] if members.new else shard.learned()  # whoever has just come knows nothing yet
        for rank in self.channel.present:
            said = members.told_by(rank, {"low": shard.start, "values": own, "state": state})
            self.flat.values[said["low"] : said["low"] + len(said["values"])] = said["values"].to(self.flat.values)
            out += [one for one in said["state"] if one[0] < end and one[1] > start]
        return out

    def _step(self) -> None:
        values, owners = self.flat.values, self.fixed_owners()
        gradient = self.reduce_half(self.flat.grads, owners, normaliser=self.options.normaliser)
        self.aggregated = gradient.clone() if self.clip_norm is not None else gradient
        self.clip(gradient, share=1.0)
        shard = self.shard
        assert shard is not None
        self.optimize(lambda: shard.step(gradient))
        start, end = self.own_part()
        self.gather_half(values[start:end], values, owners)
        self.optimizer._opt_called = True  # learning-rate schedules look whether it stepped

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "optimizer": self.shard.state_dict() if self.shard else {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.optimized = state["steps"], -1
        if self.shard is not None:
            self.shard.load_state_dict(state["optimizer"])
