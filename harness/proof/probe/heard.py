"""What came back of a probe. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lossbench.proof.probe.flows import Flow
from lossbench.spec.lossmodel import Bits


@dataclass(kw_only=True)
class Heard:
    """What the receiver of one flow saw."""

    flow: Flow
    sent: int
    order: list[NDArray[np.uint32]] = field(default_factory=list)
    delays_ms: list[float] = field(default_factory=list)
    wrong_headers: int = 0
    clock_ms: float = 0.0  # that the clocks of both ends may differ by
    late_ms: list[float] = field(default_factory=list)  # by how much its sender was late itself, each time

    def sequence(self) -> NDArray[np.uint32]:
        return np.concatenate(self.order) if self.order else np.zeros(0, dtype=np.uint32)

    def missing(self) -> Bits:
        out = np.ones(self.sent, dtype=np.bool_)
        out[self.sequence()[self.sequence() < self.sent]] = False
        return out

    def duplicates(self) -> int:
        sequence = self.sequence()
        return len(sequence) - len(np.unique(sequence))

    def reordered(self) -> int:
        """Packets that arrived after one with a higher number."""
        sequence = self.sequence().astype(np.int64)
        return int((sequence[1:] < np.maximum.accumulate(sequence)[:-1]).sum()) if len(sequence) > 1 else 0
