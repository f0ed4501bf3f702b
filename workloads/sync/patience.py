"""Deadlines of their own for the parts of a model, as ADEL has for layers and OptiReduce for all of it: after some
steps a bucket's half ends when nothing has come for as long as most of its first ones took in all, from their
beginning here on. What is missing then is cut, and counted as cut: of a worker that is later than that, too, as in
ADEL. Those first times contain how late workers are as a rule, so it is the unusual that is cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from lossbench.workloads.sync.channels.base import Channel

FIRST = 20  # steps without a bound, of which it is made; later ones, which it has bounded, say nothing about it


class Patience:
    """One rank's, by half and bucket. `percentile` of the first times; 0: none, waiting is bounded as the policy
    says."""

    def __init__(self, percentile: float) -> None:
        self.percentile = percentile
        self._took: dict[tuple[str, int], list[float]] = {}

    def heard(self, half: str, bucket: int, seconds: float) -> None:
        took = self._took.setdefault((half, bucket), [])
        if self.percentile and len(took) < FIRST:
            took.append(seconds)

    def seconds(self, half: str, bucket: int) -> float | None:
        """None while it is not known."""
        took = self._took.get((half, bucket), [])
        return float(np.percentile(took, self.percentile)) if len(took) == FIRST else None

    @contextmanager
    def of(self, half: str, bucket: int, channel: Channel) -> Iterator[None]:
        """For what begins inside."""
        bound = self.seconds(half, bucket)
        if bound is not None:
            channel.set_deadline(bound)
        try:
            yield
        finally:
            if bound is not None:
                channel.set_deadline(None)  # whatever else goes this way has the time it had
