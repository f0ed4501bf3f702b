"""Local steps (local SGD, Stich 2019; DiLoCo, Douillard et al. 2023): every worker trains by itself for a while; then
models are averaged over the lossy network, and an outer optimizer goes from where all were towards their mean.

One exchange in `every` steps: for networks that are slow or far. What the outer optimizer knows (the values of the last
exchange, its momentum) lives at a block's owner alone, and the owner sends VALUES, so that one later success wipes out
earlier losses. A block that does not come back stays as this worker has it, and is in the next mean like that.
`outer_lr = 1, outer_momentum = 0` is local SGD: `rps` with the same `every`, but with owners that stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lossbench.workloads.sync.base import Buckets, Strategy


class LocalSteps(Strategy):
    name = "local_steps"
    exchanges = "updated models, values after the outer step"
    differences = False

    @dataclass(frozen=True, kw_only=True)
    class Options(Buckets):
        every: int = 8
        outer_lr: float = 1.0
        outer_momentum: float = 0.0

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.every < 1:
                raise ValueError(f"every {self.every}: at least 1")
            if not (self.outer_lr > 0 and 0 <= self.outer_momentum < 1):
                raise ValueError("outer_lr must be above 0, outer_momentum from 0 to below 1")

    def __init__(self, *given: Any, **keys: Any) -> None:
        super().__init__(*given, **keys)
        self.anchors = [self.flat.values[own].clone() for own in self.own_parts()]  # where all began together
        self.speeds = [torch.zeros_like(anchor) for anchor in self.anchors]

    @property
    def label(self) -> str:
        told = self.options
        outer = "" if (told.outer_lr, told.outer_momentum) == (1, 0) else f", {told.outer_lr:g}/{told.outer_momentum:g}"
        return f"{self.name} {told.every}{outer}"

    def _step(self) -> None:
        self.clip(self.flat.grads, share=1 / len(self.channel.present))
        self.optimize_own()
        if (self.steps + 1) % self.options.every == 0:
            self._together()

    def _together(self) -> None:
        values, owners = self.flat.values, self.fixed_owners()
        for bucket, mean in self.begin_scatter(values, owners):
            number = self.buckets.index(bucket)
            self._go(self.anchors[number], self.speeds[number], mean)
            self.begin_gather(bucket, self.anchors[number], values, owners)
        self.end_gather()

    def _go(self, anchor: torch.Tensor, speed: torch.Tensor, mean: torch.Tensor) -> None:
        """The outer step is Nesterov's, as in DiLoCo."""
        momentum, way = self.options.outer_momentum, anchor - mean
        speed.mul_(momentum).add_(way)
        anchor -= self.options.outer_lr * (way + momentum * speed if momentum else way)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "anchors": self.anchors, "speeds": self.speeds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, held in (("anchors", self.anchors), ("speeds", self.speeds)):
            for mine, found in zip(held, state[name], strict=True):
                mine.copy_(found)
