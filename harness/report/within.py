"""How sure a number is by what one run saw: samples follow from each other, so blocks of them are compared, each long
enough to be about independent of the next. Percentiles stand only on enough samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lossbench.report.inference import LEVEL, Estimate, estimate
from lossbench.results.measures import needed

Numbers = NDArray[np.float64]
BLOCKS = 20  # of consecutive samples, in a run that is the only one
BLOCK_LEAST, BLOCKS_LEAST = 10, 6
SEEDS_LEAST = 3  # two lie apart by chance, or not
TIMES_ITS_MEMORY = 5  # as long is a block, for it to be about independent of the next; and a look for that memory
POINTS = (2000, 200)  # of which the memory is computed: many show a short one, few one below much noise
TURNS_LEAST = 20  # in which two sides were measured, for a median of their ratios


def percentile(runs: Sequence[Numbers], q: float) -> Estimate | None:
    """Of all runs' samples, each run's in the order of time; None for too few. Samples follow from each other, and all
    of a run share its seed: what varies is a whole run's share of samples beyond the percentile. Of a single run it is
    that of blocks, long enough to be about independent; where there are too few of those, or two seeds, there is no
    interval, nor where it would have no width. No end where it lies beyond all samples."""
    values = np.concatenate([np.empty(0), *runs])
    if len(values) < needed(q):
        return None
    value, n = float(np.quantile(values, q)), len(values)
    blocks = 0 if len(runs) > 1 else _independent_blocks(values, value)
    if 1 < len(runs) < SEEDS_LEAST or (len(runs) < 2 and blocks < BLOCKS_LEAST):
        return Estimate(n=n, mean=value)
    parts = np.array_split(values, blocks) if blocks else runs
    from scipy import stats

    beyond, size = np.array([((one > value).sum(), len(one)) for one in parts], dtype=float).T
    apart = float(((beyond - beyond.sum() / n * size) ** 2).sum()) * len(parts) / (len(parts) - 1)
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(parts) - 1)) * math.sqrt(apart) / n
    half = max(half, float(stats.norm.ppf((1 + LEVEL) / 2)) * math.sqrt(q * (1 - q) / n))  # as if independent
    low, high = (float(np.quantile(values, level)) if 0 < level < 1 else None for level in (q - half, q + half))
    if low is not None and low == high:
        return Estimate(n=n, mean=value)
    return Estimate(n=n, mean=value, low=low, high=high, method="seeds" if len(runs) > 1 else "blocks")


def _independent_blocks(values: Numbers, value: float) -> int:
    """Into how many blocks samples can be cut that hardly follow from each other: by being beyond `value`, or by their
    order, which shows a long memory sooner."""
    ranks = np.searchsorted(np.sort(values), values).astype(float)
    memory = max(_memory(one, points) for one in ((values > value).astype(float), ranks) for points in POINTS)
    return min(BLOCKS, len(values) // BLOCK_LEAST, int(len(values) / (TIMES_ITS_MEMORY * memory)))


def _memory(series: Numbers, points: int) -> float:
    """As many samples in a row are worth one that is independent (the sum of all autocorrelations, up to a few times
    that sum: Sokal's window)."""
    each = max(1, math.ceil(len(series) / points))
    count = len(series) // each
    apart = series[: count * each].reshape(count, each).mean(axis=1)
    apart -= apart.mean()
    if not apart.any():
        return 1.0
    shares = np.fft.rfft(apart, 2 * count)
    along = np.fft.irfft(shares * shares.conj(), 2 * count)[:count]
    sums = 2 * np.cumsum(along / along[0]) - 1
    enough = np.flatnonzero(np.arange(count) >= TIMES_ITS_MEMORY * sums)
    return each * max(1.0, float(sums[: enough[0] + 1 if len(enough) else count].max()))


def ratio_of_means(over: Numbers, under: Numbers) -> Estimate | None:
    """Of two runs, one of each side; None where one of them has too few blocks. Its interval is about these two runs:
    how far others of the same point would lie apart, nobody knows from them."""
    logs = [_log_mean(one) for one in (over, under)]
    if logs[0] is None or logs[1] is None:
        return None
    (a, half_a), (b, half_b) = logs[0], logs[1]
    mean, half = a - b, math.hypot(half_a, half_b)
    return Estimate(n=1, mean=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half), method="blocks")


def _log_mean(values: Numbers) -> tuple[float, float] | None:
    """With half of its interval, by means of blocks."""
    if not len(values) or not values.min() > 0:
        return None
    mean = float(values.mean())
    blocks = _independent_blocks(values, mean)
    if blocks < BLOCKS_LEAST:
        return None
    found = estimate([float(part.mean()) for part in np.array_split(values, blocks)], yes_or_no=False)
    return None if found is None or found.half is None else (math.log(mean), found.half / mean)


def ratio_in_turns(over: Numbers, under: Numbers) -> Estimate | None:
    """Of medians of two sides that were measured in turns, with an interval of the median of their turns' ratios (by
    their order; wider where turns follow from each other)."""
    n = min(len(over), len(under))
    if n < TURNS_LEAST or not min(over.min(), under.min()) > 0:
        return None
    from scipy import stats

    ratio = float(np.median(over) / np.median(under))
    turns = np.log(over[:n] / under[:n])
    half = float(stats.norm.ppf((1 + LEVEL) / 2)) / 2 * math.sqrt(max(_memory(turns, points) for points in POINTS) / n)
    if half >= 0.5:
        return None
    low, high = (math.exp(float(np.quantile(turns, 0.5 + sign * half))) for sign in (-1, 1))
    return Estimate(n=1, mean=ratio, low=min(low, ratio), high=max(high, ratio), method="turns")
