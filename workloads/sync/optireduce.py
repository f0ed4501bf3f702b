"""OptiReduce (Warraich et al., NSDI 2025): an all-reduce that ends in time. Every rank sends each other one its part
(the transpose), what is missing counts as zero, a randomised Hadamard transform spreads the loss, waiting is bounded by
what it was at first and is lately, and a worker to whom too little came may skip its update.

Where we differ from the paper: its longest bound is made of twenty runs over TCP of the largest bucket, ours of the
first twenty steps over our own datagrams; its bounds are on a whole stage, ours on silence (time without progress),
which a stage that goes on slowly does not meet; the moving mean's weight and the share at which updates are skipped are
ours to set, since we had no figures. Left out: sending to several at once with incast control (the transport has its
own: receivers give room) and switching the transform off where little is lost. As there, nothing pulls workers together
that applied different means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lossbench.workloads.sync.base import Buckets
from lossbench.workloads.sync.coding.around import Around
from lossbench.workloads.sync.coding.feedback import ErrorFeedback
from lossbench.workloads.sync.coding.hadamard import Hadamard
from lossbench.workloads.sync.gradient_averaging import GradientAveraging


class OptiReduce(GradientAveraging):
    name = "optireduce"
    exchanges = "gradients, gradients (transformed, zero where missing)"
    brings = ("hadamard",)

    @dataclass(frozen=True, kw_only=True)
    class Options(Buckets):
        missing: str = "zero"  # in the second half; in the first what is missing is zero in any case
        patience: float = 95.0
        skip_above: float = 1.0  # a worker that misses more than this share of a half leaves its update out; 1: never

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 <= self.skip_above <= 1:
                raise ValueError(f"skip_above {self.skip_above}: a share, from 0 to 1 (never)")
            if self.missing not in ("zero", "own"):
                raise ValueError(f"missing '{self.missing}': zero, or own (as in the authors' patch of Gloo)")

    def __init__(self, optimizer: Any, channel: Any, **keys: Any) -> None:
        inner = channel
        while isinstance(inner, Around):
            if isinstance(inner, Hadamard | ErrorFeedback):
                raise ValueError("optireduce brings its Hadamard transform: no second one, and no error_feedback")
            inner = inner.inner
        coded = Hadamard(channel)
        coded.seed = keys.get("seed", 0)
        super().__init__(optimizer, coded, **keys)
        self.skipped = 0

    @property
    def label(self) -> str:
        return self.name

    def _step(self) -> None:
        self.average(self.fixed_owners(), zero_missing=self.options.missing == "zero", normaliser="world")

    def optimize_own(self) -> None:
        """Each worker by itself, as what came to each differs anyway."""
        missing = max((1 - account.fraction for account in self.accounts), default=0.0)
        if missing <= self.options.skip_above:
            super().optimize_own()
            return
        self.skipped += 1
        notes, text = self.channel.notes, f"rank {self.channel.rank} skipped updates: "
        notes[:] = [*(one for one in notes if not one.startswith(text)), f"{text}{self.skipped}"]
