"""The truth to compare with: gradients averaged by a transport that retransmits (Gloo, NCCL)."""

from __future__ import annotations

import time

from lossbench.workloads.sync.base import Strategy


class Reliable(Strategy):
    name = "reliable"
    exchanges = "gradients, all of them"

    def _step(self) -> None:
        begun = time.perf_counter()
        self.channel.mean(self.flat.grads)
        self.network_s.append(time.perf_counter() - begun)
        self.clip(self.flat.grads, share=1 / self.channel.world)
        self.optimize_own()
