"""How large responses are: one size, or a distribution of messages in data centres (sizes.csv)."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lossbench.workloads.errors import OptionError

TABLE = Path(__file__).with_name("sizes.csv")


@lru_cache(maxsize=1)
def distributions() -> dict[str, tuple[tuple[int, float], ...]]:
    """name -> (bytes, cumulative share), rising."""
    out: dict[str, list[tuple[int, float]]] = {}
    with open(TABLE, encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            out.setdefault(row["name"], []).append((max(1, round(float(row["bytes"]))), float(row["cumulative"])))
    return {name: tuple(rows) for name, rows in out.items()}


def known_sizes() -> list[int]:
    return sorted({size for rows in distributions().values() for size, _ in rows})


@dataclass(frozen=True)
class Sizes:
    sizes: tuple[int, ...]
    cumulative: tuple[float, ...]
    cut: float = 0.0  # share of the bytes that the limit took away

    @classmethod
    def fixed(cls, size: int) -> Sizes:
        return cls((size,), (1.0,))

    @classmethod
    def named(cls, name: str, *, most_bytes: int = 0) -> Sizes:
        if name not in distributions():
            raise OptionError(f"web: no sizes '{name}' (there are {', '.join(sorted(distributions()))})")
        rows = distributions()[name]
        whole = cls(tuple(size for size, _ in rows), tuple(share for _, share in rows))
        if not most_bytes or whole.sizes[-1] <= most_bytes:
            return whole
        kept = cls(tuple(min(size, most_bytes) for size in whole.sizes), whole.cumulative)
        return cls(kept.sizes, kept.cumulative, cut=1 - kept.mean() / whole.mean())

    def mean(self) -> float:
        shares = np.diff(np.array((0.0, *self.cumulative)))
        return float(shares @ np.array(self.sizes, dtype=float))

    def draw(self, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        at = np.minimum(np.searchsorted(self.cumulative, uniform), len(self.sizes) - 1)
        return np.array(self.sizes, dtype=np.int64)[at]
