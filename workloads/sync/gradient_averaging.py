"""Gradients averaged over a lossy network. A part whose mean did not come back is the own gradient, or zero.

Workers apply different gradients to their own copy: nothing pulls them together again, the drift grows with every
step."""

from __future__ import annotations

from typing import Any

from lossbench.workloads.sync.base import Strategy


class GradientAveraging(Strategy):
    name = "gradient_averaging"
    exchanges = "gradients, gradients"

    def __init__(self, *given: Any, rule: str = "own", normaliser: str = "count", **keys: Any) -> None:
        super().__init__(*given, **keys)
        if rule not in ("own", "zero"):
            raise ValueError(f"rule '{rule}': own (the worker's own gradient stays) or zero")
        self.rule, self.normaliser = rule, normaliser

    def _step(self) -> None:
        grads, owners = self.flat.grads, self.fixed_owners()
        mine = self.aggregated = self.reduce_half(grads, owners, normaliser=self.normaliser)
        self.gather_half(mine, grads, owners, zero_missing=self.rule == "zero")
        self.clip(grads, share=1 / self.channel.world)
        self.optimize(self.optimizer.step)
