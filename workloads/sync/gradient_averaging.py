"""Gradients averaged over a lossy network. A part whose mean did not come back is its own gradient, or zero.

Workers apply different gradients to their own copy: nothing pulls them together again, the drift grows with every
step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lossbench.workloads.sync.base import Buckets, Strategy


class GradientAveraging(Strategy):
    name = "gradient_averaging"
    exchanges = "gradients, gradients"

    @dataclass(frozen=True, kw_only=True)
    class Options(Buckets):
        rule: str = "own"
        normaliser: str = "count"

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.rule not in ("own", "zero"):
                raise ValueError(f"rule '{self.rule}': own (the worker's own gradient stays) or zero")

    @property
    def label(self) -> str:
        return f"{self.name} {self.options.rule}"

    def _step(self) -> None:
        grads, owners = self.flat.grads, self.fixed_owners()
        blocks = []
        for bucket, mine in self.begin_scatter(grads, owners, normaliser=self.options.normaliser):
            blocks.append(mine)
            self.begin_gather(bucket, mine, grads, owners, zero_missing=self.options.rule == "zero")
        self.end_gather()
        self.aggregated = torch.cat(blocks)
        self.clip(grads, share=1 / len(self.channel.present))
        self.optimize_own()
