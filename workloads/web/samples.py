"""What all clients of a run have measured so far, read from the run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STORED = ("at_s", "completion_ms", "size_bytes", "page")
COLUMNS = (*STORED, "client")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Completed requests of all clients, in the order of their intended times; lags are of all that were sent."""

    at_s: Floats
    completion_ms: Floats
    size_bytes: Floats
    page: Floats  # a client's number of the page
    client: Floats
    lag_ms: Floats
    sent_s: tuple[Floats, ...]  # by client

    def between(self, from_s: float, to_s: float) -> Measured:
        keep = (self.at_s >= from_s) & (self.at_s < to_s)
        columns = {
            name: getattr(self, name)[keep] for name in ("at_s", "completion_ms", "size_bytes", "page", "client")
        }
        return Measured(**columns, lag_ms=self.lag_ms, sent_s=self.sent_s)

    def __len__(self) -> int:
        return len(self.at_s)


def read(folder: Path, role: str) -> Measured:
    """Of a run's folder; whole requests only, where a client is writing just now."""
    prefix = f"{role}." if role else ""
    columns: dict[str, list[Floats]] = {name: [] for name in COLUMNS}
    lags: list[Floats] = [np.empty(0)]
    sent: list[Floats] = []
    for path in sorted((folder / "samples").glob(f"{prefix}completion_ms.rank-*.f64")):
        rank = int(path.stem.rpartition("-")[2])
        found = {name: _numbers(path, name, prefix, rank) for name in STORED}
        whole = min(len(one) for one in found.values())
        for name, numbers in found.items():
            columns[name].append(numbers[:whole])
        columns["client"].append(np.full(whole, float(rank)))
        lags.append(_numbers(path, "lag_ms", prefix, rank))
        sent.append(_numbers(path, "sent_s", prefix, rank))
    joined = {name: np.concatenate([np.empty(0), *parts]) for name, parts in columns.items()}
    order = np.argsort(joined["at_s"], kind="stable")
    ordered = {name: one[order] for name, one in joined.items()}
    return Measured(**ordered, lag_ms=np.concatenate(lags), sent_s=tuple(sent))


def _numbers(path: Path, name: str, prefix: str, rank: int) -> Floats:
    file = path.with_name(f"{prefix}{name}.rank-{rank}.f64")
    data = file.read_bytes() if file.exists() else b""
    return np.frombuffer(data[: len(data) // 8 * 8], dtype="<f8").astype(np.float64)


def pages(here: Measured, requests: int) -> Floats:
    """The slowest request of every page, in order of time; a page that misses one never ended."""
    key = here.client * 1e9 + here.page
    _, first, which, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    slowest = np.zeros(len(first))
    np.maximum.at(slowest, which, here.completion_ms)
    slowest[count < requests] = np.inf
    return slowest[np.argsort(here.at_s[first], kind="stable")]
