"""OptiReduce (Warraich et al., NSDI 2025): an all-reduce that ends in time. Every rank sends each other one its part
(the transpose), what is missing counts as zero, a randomised Hadamard transform spreads the loss, and waiting is
bounded by what waiting was at first.

Of the paper we leave out the sending to several at once with incast control (the transport has its own: receivers give
room) and the switching off of the transform where little is lost. As there, nothing pulls workers together that applied
different means."""

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

        def __post_init__(self) -> None:
            super().__post_init__()
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

    @property
    def label(self) -> str:
        return self.name

    def _step(self) -> None:
        self.average(self.fixed_owners(), zero_missing=self.options.missing == "zero", normaliser="world")
