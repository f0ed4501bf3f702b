"""Two arms over the time that both of them have: one may last longer than the other, and warm up longer."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np

from lossbench.report.service.arms import WEB, Arm, BySeed
from lossbench.results import measures, samples
from lossbench.results.samples import Numbers

TAIL = 0.99


def tails(arm: Arm, other: Arm) -> tuple[BySeed, BySeed]:
    """p99 of both by seed, of the requests that were due while both were in their steady state; of runs that did not
    write that down, what each of them says of itself. None at all where more than one in a hundred was never answered:
    without that seed the luckier ones would speak. Of pages only what runs say themselves: samples are requests."""
    one, two = dict(arm.web.get("p99_ms", {})), dict(other.web.get("p99_ms", {}))
    for seed in [seed for seed in one if seed in two]:
        window = _common(arm, other, seed)
        if window is None:
            continue
        pages = any(seed in here.web.get("pages_failed", {}) for here in (arm, other))
        found = [None if pages else _tail(here.places[seed], *window) for here in (arm, other)]
        if math.inf in found:
            return {}, {}
        known = found[0] is not None and found[1] is not None
        for values, tail in zip((one, two), found, strict=True):
            if known and tail is not None:
                values[seed] = tail
            else:
                del values[seed]
    return one, two


def _common(arm: Arm, other: Arm, seed: int) -> tuple[float, float] | None:
    """None where it is not known, or the same for both."""
    ends = [[one.web.get(f"steady_{end}_s", {}).get(seed) for one in (arm, other)] for end in ("from", "to")]
    (from_, from_other), (to, to_other) = ends
    if from_ is None or from_other is None or to is None or to_other is None:
        return None
    if (from_, to) == (from_other, to_other) or not all(seed in one.places for one in (arm, other)):
        return None
    return max(from_, from_other), min(to, to_other)


def _tail(folder: Path, from_s: float, to_s: float) -> float | None:
    """None of too few; what was never answered took longer than any."""
    at, ms = _read(folder)
    here = ms[(at >= from_s) & (at <= to_s)]
    return float(np.quantile(here, TAIL, method="higher")) if len(here) >= measures.needed(TAIL) else None


@lru_cache(maxsize=64)
def _read(folder: Path) -> tuple[Numbers, Numbers]:
    """When each request was due, and how long it took."""
    found, _ = samples.read(folder)
    at: list[Numbers] = [np.empty(0)]
    ms: list[Numbers] = [np.empty(0)]
    for rank, due in found[f"{WEB}at_s"].ranks.items() if f"{WEB}at_s" in found else ():
        took = found[f"{WEB}completion_ms"].ranks.get(rank, np.empty(0))
        whole = min(len(due), len(took))
        at.append(due[:whole])
        ms.append(took[:whole])
    for lost in found[f"{WEB}lost_s"].ranks.values() if f"{WEB}lost_s" in found else ():
        at.append(lost)
        ms.append(np.full(len(lost), np.inf))
    return np.concatenate(at), np.concatenate(ms)
