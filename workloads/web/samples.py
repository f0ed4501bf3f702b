"""What all clients of a run have measured so far, read from the run's folder."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STORED = ("at_s", "completion_ms", "size_bytes", "page")
NEAR_S = 1e-7  # two ways to the same intended time
LOST = {"at_s": "lost_s", "page": "lost_page", "size_bytes": "lost_bytes"}


def _none() -> Floats:
    return np.empty(0)


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Requests that were never answered: failed, timed out, dropped or not finished. Times are the intended ones."""

    at_s: Floats = field(default_factory=_none)
    size_bytes: Floats = field(default_factory=_none)
    page: Floats = field(default_factory=_none)
    client: Floats = field(default_factory=_none)

    def between(self, from_s: float, to_s: float) -> Lost:
        keep = (self.at_s >= from_s) & (self.at_s < to_s)
        return Lost(**{one.name: getattr(self, one.name)[keep] for one in fields(self)})

    def __len__(self) -> int:
        return len(self.at_s)


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
    due_s: tuple[Floats, ...] = ()  # the same requests' intended times
    lost: Lost = field(default_factory=Lost)
    under_way_s: Floats = field(default_factory=_none)  # intended times of those that have not come to any end yet
    known_to_s: float = math.inf  # so far all clients have written down what they sent

    def between(self, from_s: float, to_s: float) -> Measured:
        keep = (self.at_s >= from_s) & (self.at_s < to_s)
        columns = {name: getattr(self, name)[keep] for name in (*STORED, "client")}
        under_way = self.under_way_s[(self.under_way_s >= from_s) & (self.under_way_s < to_s)]
        return replace(self, **columns, lost=self.lost.between(from_s, to_s), under_way_s=under_way)

    def ended(self) -> Measured:
        """Of requests from before the oldest that is still under way: the quick among those after it came first."""
        return self.between(-math.inf, min(self.known_to_s, float(self.under_way_s.min(initial=math.inf))))

    def __len__(self) -> int:
        return len(self.at_s)


@dataclass(frozen=True)
class Times:
    """Completions in the order of their intended times; infinite where one never came to its end."""

    at_s: Floats
    ms: Floats

    @property
    def known(self) -> Floats:
        return self.ms[np.isfinite(self.ms)]

    def from_known(self, number: int) -> Times:
        """Without what was before the completion of this number; all of them if there are not so many."""
        known = np.flatnonzero(np.isfinite(self.ms))
        cut = int(known[number]) if 0 < number < len(known) else 0
        return Times(self.at_s[cut:], self.ms[cut:])


def read(folder: Path, role: str) -> Measured:
    """Of a run's folder; whole requests only, where a client is writing just now."""
    prefix = f"{role}." if role else ""
    done: dict[str, list[Floats]] = {name: [_none()] for name in (*STORED, "client")}
    lost: dict[str, list[Floats]] = {name: [_none()] for name in (*LOST, "client")}
    lags: list[Floats] = [_none()]
    sent: list[Floats] = []
    intended: list[Floats] = []
    under_way: list[Floats] = [_none()]
    known_to = math.inf
    for rank in _ranks(folder, prefix):
        late, sent_s = (_numbers(folder, f"{prefix}{name}", rank) for name in ("lag_ms", "sent_s"))  # before their ends
        found = {name: _numbers(folder, f"{prefix}{name}", rank) for name in STORED}
        missed = {name: _numbers(folder, f"{prefix}{stored}", rank) for name, stored in LOST.items()}
        _add(done, found, rank)
        _add(lost, missed, rank)
        lags.append(late)
        whole = min(len(late), len(sent_s))
        sent.append(sent_s[:whole])
        due = sent_s[:whole] - late[:whole] / 1000
        intended.append(due)
        under_way.append(_without(due, np.concatenate([found["at_s"], missed["at_s"]])))
        known_to = min(known_to, float(due.max(initial=-math.inf)))
    return Measured(
        **_in_order(done),
        lost=Lost(**_in_order(lost)),
        lag_ms=np.concatenate(lags),
        sent_s=tuple(sent),
        due_s=tuple(intended),
        under_way_s=np.sort(np.concatenate(under_way)),
        known_to_s=known_to,
    )


def _without(due: Floats, ended: Floats) -> Floats:
    """Intended times of requests that were sent, less those that came to an end; requests of a page share theirs."""
    both = np.concatenate([due, ended])
    order = np.argsort(both, kind="stable")
    at = both[order]
    group = np.cumsum(np.diff(at, prepend=at[:1]) > NEAR_S)
    left = np.bincount(group, weights=np.where(order < len(due), 1, -1))
    _, first = np.unique(group, return_index=True)
    return np.repeat(at[first], np.maximum(left, 0).astype(int))


def _ranks(folder: Path, prefix: str) -> list[int]:
    """Clients that have said anything, be it of requests that were never answered."""
    names = (f"{prefix}{name}.rank-*.f64" for name in ("completion_ms", "lost_s", "sent_s"))
    return sorted({int(path.stem.rpartition("-")[2]) for name in names for path in (folder / "samples").glob(name)})


def _add(columns: dict[str, list[Floats]], found: dict[str, Floats], rank: int) -> None:
    whole = min(len(one) for one in found.values())
    for name, numbers in found.items():
        columns[name].append(numbers[:whole])
    columns["client"].append(np.full(whole, float(rank)))


def _in_order(columns: dict[str, list[Floats]]) -> dict[str, Floats]:
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.argsort(joined["at_s"], kind="stable")
    return {name: one[order] for name, one in joined.items()}


def _numbers(folder: Path, name: str, rank: int) -> Floats:
    file = folder / "samples" / f"{name}.rank-{rank}.f64"
    data = file.read_bytes() if file.exists() else b""
    return np.frombuffer(data[: len(data) // 8 * 8], dtype="<f8").astype(np.float64)


def times(here: Measured, page: int) -> Times:
    """Of requests, or of pages where they come in pages of so many."""
    at_s = np.concatenate([here.at_s, here.lost.at_s])
    ms = np.concatenate([here.completion_ms, np.full(len(here.lost), np.inf)])
    if page:
        return _pages(here, page, at_s, ms)
    order = np.argsort(at_s, kind="stable")
    return Times(at_s[order], ms[order])


def arrivals(here: Measured, page: int) -> tuple[Floats, ...]:
    """By client: when each request was sent; where they come in pages, the first of each, whose intended times are
    one."""
    if not page:
        return here.sent_s
    first = [np.diff(due, prepend=-np.inf) > NEAR_S for due in here.due_s]
    return tuple(sent[one] for sent, one in zip(here.sent_s, first, strict=True))


def _pages(here: Measured, requests: int, at_s: Floats, ms: Floats) -> Times:
    """The slowest request of every page; a page that misses one never ended."""
    key = np.concatenate([here.client, here.lost.client]) * 1e9 + np.concatenate([here.page, here.lost.page])
    _, first, which, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    slowest = np.zeros(len(first))
    np.maximum.at(slowest, which, ms)
    slowest[count < requests] = np.inf
    order = np.argsort(at_s[first], kind="stable")
    return Times(at_s[first][order], slowest[order])
