"""Plain DistributedDataParallel over the backend "lossy": what a user would try first. One rank per process."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from lossbench.workloads.sync.base import Strategy, merged


class Ddp(Strategy):
    name = "ddp"
    exchanges = "gradients, gradients (torch's own buckets)"
    coded = False
    lone = True

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        group: Any = getattr(self.channel, "group", None)
        if group is None:
            raise ValueError("strategy ddp needs one process per rank and a real network (ranks_per_process = 1)")
        return DistributedDataParallel(model, process_group=group)

    def begin_exchange(self) -> None:
        """Done, during backward; setting the step now would forget what arrived."""

    def _step(self) -> None:
        """Gradients were averaged during backward."""
        self.accounts = merged(getattr(self.channel, "accounts_of_step", list)())
        self.clip(self.flat.grads, share=1 / self.channel.world)
        self.optimize_own()
