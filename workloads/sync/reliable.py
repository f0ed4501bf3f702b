"""The truth to compare with: gradients averaged by a transport that retransmits (Gloo, NCCL).

`every = 8`: models are, after eight local steps. What local steps over a lossy network are to be held against: else it
is fewer meetings that win, and not what is lost."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from lossbench.workloads.sync.base import Strategy


class Reliable(Strategy):
    name = "reliable"
    exchanges = "gradients, all of them"
    coded = False

    @dataclass(frozen=True, kw_only=True)
    class Options:
        direct: bool = False  # every rank to every other one, as the lossy strategies do; else as the transport does it
        every: int = 1

        def __post_init__(self) -> None:
            if self.every < 1:
                raise ValueError(f"every {self.every}: at least 1")

    @property
    def label(self) -> str:
        rounds = f" {self.options.every}" if self.options.every > 1 else ""
        return self.name + rounds + (" direct" if self.options.direct else "")

    def _step(self) -> None:
        if self.options.every == 1:
            self._mean(self.flat.grads)
        self.clip(self.flat.grads, share=1 / self.channel.world)
        self.optimize_own()
        if self.options.every > 1 and (self.steps + 1) % self.options.every == 0:
            self._mean(self.flat.values)

    def _mean(self, vector: torch.Tensor) -> None:
        begun = time.perf_counter()
        self.channel.mean(vector, direct=self.options.direct)
        self.network_s.append(time.perf_counter() - begun)
