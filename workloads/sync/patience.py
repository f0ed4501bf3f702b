"""Deadlines of their own for the parts of a model, as ADEL has for layers and OptiReduce for all of it: after some
steps a bucket's half ends when nothing has come for as long as such halves take lately, with the room above their mean
that most of the first ones needed, and never longer than those. What is missing then is cut, and counted as cut: of a
worker that is later than that, too, as in ADEL.

Halves that a bound has ended count with all that they waited: it can't go on shrinking by what it cuts, and by what it
cuts it grows to the first ones' at most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from lossbench.workloads.sync.channels.base import Channel

FIRST = 20  # steps without a bound: of them the longest that it may ever be is made
WEIGHT = 0.1  # of the latest half in the moving mean


class Patience:
    """One rank's, by half and bucket. `percentile` of the first times; 0: none, waiting is bounded as the policy
    says."""

    def __init__(self, percentile: float) -> None:
        self.percentile = percentile
        self._took: dict[tuple[str, int], list[float]] = {}
        self._lately: dict[tuple[str, int], float] = {}

    def heard(self, half: str, bucket: int, seconds: float) -> None:
        if not self.percentile:
            return
        took = self._took.setdefault((half, bucket), [])
        if len(took) < FIRST:
            took.append(seconds)
            self._lately[half, bucket] = float(np.mean(took))
        else:
            self._lately[half, bucket] += WEIGHT * (seconds - self._lately[half, bucket])

    def seconds(self, half: str, bucket: int) -> float | None:
        """None while it is not known."""
        took = self._took.get((half, bucket), [])
        if len(took) < FIRST:
            return None
        most, mean = float(np.percentile(took, self.percentile)), float(np.mean(took))
        room = max(1.0, most / mean) if mean else 1.0
        return min(most, room * self._lately[half, bucket])

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
