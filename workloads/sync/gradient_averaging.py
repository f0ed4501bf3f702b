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
        owners: str = "fixed"

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.rule not in ("own", "zero"):
                raise ValueError(f"rule '{self.rule}': own (the worker's own gradient stays) or zero")
            if self.owners not in ("fixed", "random"):
                raise ValueError(f"owners '{self.owners}': fixed, or random (drawn anew at every step, as in RPS)")

    @property
    def label(self) -> str:
        return f"{self.name} {self.options.rule}"

    def _step(self) -> None:
        drawn = self.options.owners == "random"
        owners = self.drawn_owners() if drawn else self.fixed_owners()
        self.average(owners, zero_missing=self.options.rule == "zero", normaliser=self.options.normaliser)
        if drawn:
            self.aggregated = None  # of another part at every step

    def average(self, owners: tuple[int, ...], *, zero_missing: bool, normaliser: str) -> None:
        grads = self.flat.grads
        blocks = []
        for bucket, mine in self.begin_scatter(grads, owners, normaliser=normaliser):
            blocks.append(mine)
            self.begin_gather(bucket, mine, grads, owners, zero_missing=zero_missing)
        self.end_gather()
        self.aggregated = torch.cat(blocks)
        self.clip(grads, share=1 / len(self.channel.present))
        self.optimize_own()
