"""RPS (Yu et al., ICML 2019): a local step first, then MODELS are averaged, by owners drawn anew at every step.

A block whose mean does not come back stays as this worker has it: its own, locally updated block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossbench.contract import derive_seed
from lossbench.workloads.sync.base import Buckets, Strategy


class Rps(Strategy):
    name = "rps"
    exchanges = "updated models, averaged models"
    goes_on = True

    @dataclass(frozen=True, kw_only=True)
    class Options(Buckets):
        pass

    def _step(self) -> None:
        if self.clip_norm is not None:
            self.clip(self.flat.grads, share=1 / len(self.channel.present))
        self.optimize_own()
        values, owners = self.flat.values, self.owners()
        for bucket, mine in self.begin_scatter(values, owners):
            self.begin_gather(bucket, mine, values, owners)
        self.end_gather()

    def owners(self) -> tuple[int, ...]:
        """A permutation that all workers draw alike: owners()[rank] is the block that rank averages in this step."""
        present, owners = self.channel.present, list(range(self.channel.world))
        drawn = np.random.default_rng(derive_seed(self.seed, "owners", self.steps)).permutation(len(present))
        for rank, place in zip(present, drawn.tolist(), strict=True):
            owners[rank] = present[place]
        return tuple(owners)
