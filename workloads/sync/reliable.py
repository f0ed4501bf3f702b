"""The truth to compare with: gradients averaged by a transport that retransmits (Gloo, NCCL)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lossbench.workloads.sync.base import Strategy


class Reliable(Strategy):
    name = "reliable"
    exchanges = "gradients, all of them"
    coded = False

    @dataclass(frozen=True, kw_only=True)
    class Options:
        direct: bool = False  # every rank to every other one, as the lossy strategies do; else as the transport does it

    @property
    def label(self) -> str:
        return f"{self.name} direct" if self.options.direct else self.name

    def _step(self) -> None:
        begun = time.perf_counter()
        self.channel.mean(self.flat.grads, direct=self.options.direct)
        self.network_s.append(time.perf_counter() - begun)
        self.clip(self.flat.grads, share=1 / self.channel.world)
        self.optimize_own()
