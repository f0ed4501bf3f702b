"""Completion by the time of a size alone: short messages suffer most from whoever stands before them."""

from __future__ import annotations

from typing import Any

import numpy as np

from lossbench.workloads.web import checks
from lossbench.workloads.web.samples import Floats, Measured

DECILES = np.arange(0.1, 1.0, 0.1)
TAIL = 0.99


def slowdowns(here: Measured, alone: dict[str, float], *, mean: bool) -> dict[str, Any]:
    """Of all, and by decile of sizes (the largest, its p99, on how many independent messages that stands), where there
    are enough for a percentile; longer than any where there was no answer."""
    base = np.array([alone.get(str(int(size)), np.nan) for size in here.size_bytes])
    known = here.completion_ms / base
    if not len(known) or not np.isfinite(known).all():
        return {}
    out: dict[str, Any] = {"slowdown": round(float(known.mean()), 4)} if mean else {}
    in_time = np.argsort(np.concatenate([here.at_s, here.lost.at_s]), kind="stable")
    slow = np.concatenate([known, np.full(len(here.lost), np.inf)])[in_time]
    size = np.concatenate([here.size_bytes, here.lost.size_bytes])[in_time]
    p99 = _p99(slow)
    out |= {"slowdown_p99": round(p99, 4)} if np.isfinite(p99) else {}
    ends = np.unique(np.quantile(size, DECILES))
    if len(ends) > 1:
        decile = np.searchsorted(ends, size)
        parts = [decile == number for number in np.unique(decile)]
        out["slowdown_by_decile"] = [
            [int(size[part].max()), round(p99, 3), checks.independent((slow[part] > p99).astype(float))]
            for part in parts
            if checks.enough_for(TAIL, part.sum()) and np.isfinite(p99 := _p99(slow[part]))
        ]
    return out


def _p99(values: Floats) -> float:
    return float(np.quantile(values, TAIL, method="higher"))
