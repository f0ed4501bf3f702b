"""When which client asks whom for how much: drawn beforehand from the seed, so that whatever else differs between two
runs, their requests are the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lossbench.contract import derive_seed
from lossbench.workloads.web.sizes import Sizes


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One client's requests, in order of time; a request's page is a number of its own."""

    at_s: NDArray[np.float64]
    server: NDArray[np.int64]
    size: NDArray[np.int64]
    page: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.at_s)


def draw(
    *, seed: int, rank: int, world: int, rate: float, from_s: float, seconds: float, sizes: Sizes, page: int = 0
) -> Schedule:
    """Poisson arrivals at this client's part of the rate; servers are all others alike. Each part of a request has a
    stream of its own: a longer run begins with the requests of a shorter one."""
    own_rate = rate / world / max(page, 1)
    gaps, servers, shares = (
        np.random.Generator(np.random.Philox(derive_seed(seed, "web", part, rank, round(from_s * 1000))))
        for part in ("gaps", "servers", "sizes")
    )
    at: list[NDArray[np.float64]] = []
    now = 0.0
    while now < seconds:
        some = now + np.cumsum(gaps.exponential(1 / own_rate, 1024))
        at.append(some)
        now = float(some[-1])
    arrivals = np.concatenate(at) if at else np.empty(0)
    arrivals = from_s + arrivals[arrivals < seconds]
    each = max(page, 1)
    count = len(arrivals) * each
    other = servers.integers(0, world - 1, count)
    return Schedule(
        at_s=np.repeat(arrivals, each),
        server=other + (other >= rank),
        size=sizes.draw(shares.random(count)),
        page=np.repeat(np.arange(len(arrivals)), each),
    )
