"""Weintraub et al. 2025: unbiased gradient aggregation at a shard's owner, and bounded-drift broadcasts of its values.

Half 1 carries gradients to the owner, who steps its shard with an optimizer whose state only it has; half 2 carries the
new VALUES, so that one later success wipes out earlier losses. Lost values: the worker keeps its old ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lossbench.workloads.sync.base import Strategy
from lossbench.workloads.sync.vectors.shards import ShardOptimizer, cut, is_elementwise


class BoundedDrift(Strategy):
    name = "bounded_drift"
    exchanges = "gradients, updated parameters"
    owned = True

    @dataclass(frozen=True, kw_only=True)
    class Options:
        normaliser: str = "count"

    def __init__(self, *given: Any, **keys: Any) -> None:
        super().__init__(*given, **keys)
        whole = not is_elementwise(self.optimizer)
        self.counts = cut(self.flat, self.channel.world, whole_tensors=whole)
        start, end = self.own_part()
        self.shard = ShardOptimizer(self.optimizer, self.flat, start=start, count=end - start, whole_tensors=whole)

    def _step(self) -> None:
        values, owners = self.flat.values, self.fixed_owners()
        gradient = self.reduce_half(self.flat.grads, owners, normaliser=self.options.normaliser)
        self.aggregated = gradient.clone() if self.clip_norm is not None else gradient
        self.clip(gradient, share=1.0)
        self.optimize(lambda: self.shard.step(gradient))
        start, end = self.own_part()
        self.gather_half(values[start:end], values, owners)
        self.optimizer._opt_called = True  # learning-rate schedules look whether it stepped

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "optimizer": self.shard.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.shard.load_state_dict(state["optimizer"])
