"""Copies of gathered parameters to fall back on: FSDP frees what it gathered, so a lost packet would leave rubbish.

A gather carries no name. It is recognised by its size and by its own shard, which changes little from step to step: the
nearest remembered own shard wins, and nothing near enough means a new one, gathered reliably. Costs one copy of all
gathered parameters per rank."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lossbench.workloads.transport.packet.codec import Codec
from lossbench.workloads.transport.packet.wire import Array

SAMPLES = 1024
NEAR = 0.02  # of the shard's own size: what a step changes; layers nearer than that are near enough to stand in


@dataclass
class StaleCopies:
    _kept: dict[tuple[str, int], list[tuple[Array, Array]]] = field(default_factory=dict)  # (sample, everything)

    def find(self, mine: Array, total: int, codec: Codec) -> Array | None:
        """The copy of what this shard was gathered with last time."""
        sample = _sample(mine, codec)
        candidates = self._kept.get((codec.name, total), ())
        distances = [float(np.abs(sample - other).mean()) for other, _ in candidates]
        if not distances:
            return None
        best = int(np.argmin(distances))
        size = float(np.abs(sample).mean())
        return candidates[best][1] if size > 0 and distances[best] <= NEAR * size else None

    def keep(self, mine: Array, gathered: Array, codec: Codec, *, instead_of: Array | None) -> None:
        sample = _sample(mine, codec)
        if not np.abs(sample).mean() > 0:  # all zero, or not a number: nothing to know it by
            return
        entries = self._kept.setdefault((codec.name, len(gathered)), [])
        for number, (_, copy) in enumerate(entries):
            if copy is instead_of:
                copy[:] = gathered
                entries[number] = (sample, copy)
                return
        entries.append((sample, gathered.copy()))


def _sample(mine: Array, codec: Codec) -> Array:
    step = max(1, len(mine) // SAMPLES)
    return codec.widen(mine[::step][:SAMPLES].copy()).astype(np.float32)
