"""Gradients averaged over a lossy network. A part whose mean did not come back is its own gradient, or zero.

Workers apply different gradients to their own copy: nothing pulls them together again, the drift grows with every
step."""

from __future__ import annotations

from dataclasses import dataclass

from lossbench.workloads.sync.base import Strategy


class GradientAveraging(Strategy):
    name = "gradient_averaging"
    exchanges = "gradients, gradients"
    goes_on = True

    @dataclass(frozen=True, kw_only=True)
    class Options:
        rule: str = "own"
        normaliser: str = "count"

        def __post_init__(self) -> None:
            if self.rule not in ("own", "zero"):
                raise ValueError(f"rule '{self.rule}': own (the worker's own gradient stays) or zero")

    @property
    def label(self) -> str:
        return f"{self.name} {self.options.rule}"

    def _step(self) -> None:
        grads, owners = self.flat.grads, self.fixed_owners()
        mine = self.aggregated = self.reduce_half(grads, owners, normaliser=self.options.normaliser)
        self.gather_half(mine, grads, owners, zero_missing=self.options.rule == "zero")
        self.clip(grads, share=1 / len(self.channel.present))
        self.optimize_own()
