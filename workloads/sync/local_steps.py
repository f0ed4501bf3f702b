"""Local steps (local SGD, Stich 2019; DiLoCo, Douillard et al. 2023): every worker trains by itself for a while; then
the ways that all have gone are averaged over the lossy network, and an outer optimizer goes the mean way.

One exchange in `every` steps: for networks that are slow or far. What does not come back of the mean is the worker's
own way. `outer_lr = 1, outer_momentum = 0` is local SGD: models are averaged, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lossbench.workloads.sync.base import Buckets, Strategy


class LocalSteps(Strategy):
    name = "local_steps"
    exchanges = "ways gone since the last exchange, their means"

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
        self.anchor = self.flat.values.clone()  # where all began together
        self.speed = torch.zeros_like(self.anchor)

    @property
    def label(self) -> str:
        return f"{self.name} {self.options.every}"

    def _step(self) -> None:
        self.clip(self.flat.grads, share=1 / len(self.channel.present))
        self.optimize_own()
        if (self.steps + 1) % self.options.every == 0:
            self._together()

    def _together(self) -> None:
        """The outer step is Nesterov's, as in DiLoCo; its state is each worker's own."""
        owners, way = self.fixed_owners(), self.anchor - self.flat.values
        for bucket, mine in self.begin_scatter(way, owners):
            self.begin_gather(bucket, mine, way, owners)
        self.end_gather()
        momentum = self.options.outer_momentum
        self.speed.mul_(momentum).add_(way)
        self.anchor -= self.options.outer_lr * (way + momentum * self.speed if momentum else way)
        self.flat.values.copy_(self.anchor)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "anchor": self.anchor, "speed": self.speed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.anchor.copy_(state["anchor"])
        self.speed.copy_(state["speed"])
