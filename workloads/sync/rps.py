"""RPS (Yu et al., ICML 2019): a local step first, then MODELS are averaged, by owners drawn anew at every step.

A block whose mean does not come back stays as this worker has it: its own, locally updated block. `every = 8`: seven
local steps without an exchange before the eighth has one, for networks that are slow or far."""

from __future__ import annotations

from dataclasses import dataclass

from lossbench.workloads.sync.base import Buckets, Strategy


class Rps(Strategy):
    name = "rps"
    exchanges = "updated models, averaged models"
    differences = False
    goes_on = True

    @dataclass(frozen=True, kw_only=True)
    class Options(Buckets):
        every: int = 1

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.every < 1:
                raise ValueError(f"every {self.every}: at least 1")

    @property
    def label(self) -> str:
        return self.name if self.options.every == 1 else f"{self.name} {self.options.every}"

    def _step(self) -> None:
        self.clip(self.flat.grads, share=1 / len(self.channel.present))
        self.optimize_own()
        self.before = None
        if (self.steps + 1) % self.options.every:
            return
        values, owners = self.flat.values, self.drawn_owners()
        if self.watched is not None:
            self.before = values[self.watched]
        for bucket, mine in self.begin_scatter(values, owners):
            self.begin_gather(bucket, mine, values, owners)
        self.end_gather()
