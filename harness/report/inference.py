"""How sure a number is over runs: t-intervals, paired and unpaired differences, corrected for how many were made. What
one run tells by its own samples stands in `within`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

_T = TypeVar("_T")
LEVEL = 0.95
ALPHA = 0.05  # of all comparisons of a table together
BOOTSTRAP_FROM = 20  # a bootstrap of fewer values only shuffles them
RESAMPLES = 9999
ROUNDING = 1e-12  # what is nearer than this, relatively, is equal


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over runs; `low` to `high` is its interval, None where one value says nothing of spread."""

    n: int
    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    method: str = ""

    @property
    def half(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def estimate(values: Sequence[float], *, bootstrap: bool = False, yes_or_no: bool = True) -> Estimate | None:
    """None for no values. A bootstrap (BCa) is made only where n allows it, else the t-interval. `yes_or_no`: of
    zeros and ones alone it is the share of ones (Wilson), which no t-interval knows to end at 0 and 1."""
    if not values:
        return None
    array = np.asarray(values, dtype=float)
    n, mean = len(array), float(array.mean())
    if n == 1:
        return Estimate(n=1, mean=mean)
    sd = float(array.std(ddof=1))
    if sd <= ROUNDING * float(np.abs(array).max()):
        mean = float(array[0])
        return Estimate(n=n, mean=mean, sd=0.0, low=mean, high=mean, method="t")
    from scipy import stats  # only where there is something to infer: one seed needs none

    if yes_or_no and set(array.tolist()) == {0.0, 1.0}:
        ends = stats.binomtest(int(array.sum()), n).proportion_ci(LEVEL, method="wilson")
        return Estimate(n=n, mean=mean, sd=sd, low=float(ends.low), high=float(ends.high), method="Wilson")
    if bootstrap and n >= BOOTSTRAP_FROM:
        found = stats.bootstrap((array,), np.mean, confidence_level=LEVEL, n_resamples=RESAMPLES, rng=0)
        low, high = (float(end) for end in found.confidence_interval)
        return Estimate(n=n, mean=mean, sd=sd, low=low, high=high, method="bootstrap")
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * sd / math.sqrt(n)
    return Estimate(n=n, mean=mean, sd=sd, low=mean - half, high=mean + half, method="t")


def ratio_of_means(over: Sequence[float], under: Sequence[float]) -> Estimate | None:
    """Of pairs, with Fieller's interval: no seed is left out for how it came out. No ends where what is below can't be
    told from nothing."""
    n = len(over)
    if not n or np.mean(under) == 0:
        return None
    x, y = float(np.mean(over)), float(np.mean(under))
    if n == 1:
        return Estimate(n=1, mean=x / y)
    from scipy import stats

    t = float(stats.t.ppf((1 + LEVEL) / 2, n - 1))
    xx, xy, _, yy = (t**2 / n * np.cov(over, under)).ravel()
    apart = float(np.std(np.asarray(over) - x / y * np.asarray(under), ddof=1) / abs(y))
    out = Estimate(n=n, mean=x / y, sd=apart, method="Fieller")
    a, b = y**2 - float(yy), x * y - float(xy)
    if a <= 0:
        return out
    root = math.sqrt(max(0.0, b**2 - a * (x**2 - float(xx))))
    return replace(out, low=(b - root) / a, high=(b + root) / a)


def jackknife(values: Sequence[_T], said: Callable[[Sequence[_T]], float | None]) -> Estimate | None:
    """What is said of all of them, and how far it moves when one is left out; no ends where nothing is said then."""
    whole, n = said(values) if values else None, len(values)
    if whole is None or n == 1:
        return None if whole is None else Estimate(n=1, mean=whole)
    without = [said([*values[:one], *values[one + 1 :]]) for one in range(n)]
    known = [part for part in without if part is not None]
    if len(known) < n:
        return Estimate(n=n, mean=whole, method="jackknife")
    found = estimate([n * whole - (n - 1) * part for part in known], yes_or_no=False)
    assert found is not None
    half = found.half or 0.0
    return Estimate(n=n, mean=whole, sd=found.sd, low=whole - half, high=whole + half, method="jackknife")


@dataclass(frozen=True, kw_only=True)
class Slope:
    """Of one variable, the others held: with its standard error and the degrees of freedom behind it."""

    mean: float
    error: float
    free: int

    def ends(self, together: int = 1) -> tuple[float, float]:
        """Of its interval; of all of so many with 95 %."""
        from scipy import stats

        half = float(stats.t.ppf(1 - ALPHA / 2 / max(together, 1), self.free)) * self.error
        return self.mean - half, self.mean + half


def slopes(points: Sequence[tuple[Sequence[float], float]]) -> list[Slope] | None:
    """By least squares, one for each variable; None for too few points, or where they do not tell variables apart."""
    rows = np.array([[1.0, *x] for x, _ in points], dtype=float)
    y = np.array([value for _, value in points], dtype=float)
    if not len(rows) or len(rows) <= rows.shape[1] or np.linalg.matrix_rank(rows) < rows.shape[1]:
        return None
    free = len(rows) - rows.shape[1]
    found = np.linalg.lstsq(rows, y, rcond=None)[0]
    spread = float(np.sum((y - rows @ found) ** 2)) / free
    errors = np.sqrt(spread * np.diag(np.linalg.inv(rows.T @ rows)))
    pairs = list(zip(found, errors, strict=True))[1:]
    return [Slope(mean=float(mean), error=float(error), free=free) for mean, error in pairs]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """b - a; `p` is None where no test is possible, `p_all` is corrected for all comparisons made with it."""

    n: int
    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_all: float | None = None
    base: float = 0.0  # a's mean
    method: str = ""

    @property
    def relative(self) -> float | None:
        return self.mean / abs(self.base) if self.base else None

    @property
    def nothing(self) -> bool:
        """The same in every seed; changes that cancel out are not."""
        return self.p == 1.0 and self.low == self.high == 0.0

    @property
    def unseen(self) -> bool:
        """By as much in every seed, and in too few: nothing is known of its spread. Where they are enough for a test of
        signs or ranks, all that was seen (one number) is a 95 % interval of the median change."""
        return self.low is not None and self.low == self.high and not self.nothing and (self.p or 1.0) >= ALPHA

    @property
    def significant(self) -> bool:
        p = self.p if self.p_all is None else self.p_all
        return p is not None and p < ALPHA


def paired(a: Mapping[Any, float], b: Mapping[Any, float]) -> Difference | None:
    """Over the seeds that both have; None if they have none in common."""
    seeds = [seed for seed in a if seed in b]
    if not seeds:
        return None
    changes = np.array([b[seed] - a[seed] for seed in seeds])
    rounded = ROUNDING * max(abs(a[seed]) for seed in seeds)
    changes[np.abs(changes) <= rounded] = 0.0
    if np.ptp(changes) <= rounded:  # what rounding alone holds apart has no spread
        changes[:] = changes[0]
    base = float(np.mean([a[seed] for seed in seeds]))
    found = estimate(changes.tolist(), yes_or_no=False)
    assert found is not None
    out = Difference(n=found.n, mean=found.mean, low=found.low, high=found.high, base=base, method="paired t")
    if found.n < 2:
        return out
    if found.sd == 0:  # the same difference every time, as counts and shares can have: only its sign can be tested
        return replace(out, p=1.0 if found.mean == 0 else 2.0 ** (1 - found.n), method="sign")
    from scipy import stats

    return replace(out, p=float(stats.ttest_1samp(changes, 0.0).pvalue))


def among(found: Difference, together: int) -> Difference:
    """As one of so many that are judged with 95 % for all of them (Bonferroni: interval and test agree)."""
    if together < 2 or found.p is None:
        return found
    out = replace(found, p=min(1.0, together * found.p))
    if found.method != "paired t" or found.low is None or found.high is None:
        return out
    from scipy import stats

    wider = float(stats.t.ppf(1 - ALPHA / 2 / together, found.n - 1) / stats.t.ppf(1 - ALPHA / 2, found.n - 1))
    half = wider * (found.high - found.low) / 2
    return replace(out, low=found.mean - half, high=found.mean + half)


def unpaired(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """Welch's test: spreads may differ."""
    if not a or not b:
        return None
    mean, base = float(np.mean(b) - np.mean(a)), float(np.mean(a))
    if abs(mean) <= ROUNDING * abs(base):
        mean = 0.0
    out = Difference(n=min(len(a), len(b)), mean=mean, base=base, method="Welch t")
    if min(len(a), len(b)) < 2:
        return out
    if all(np.ptp(some) <= ROUNDING * np.abs(some).max() for some in (a, b)):  # only their order can be tested
        p = 1.0 if mean == 0 else 2 / math.comb(len(a) + len(b), len(a))
        return replace(out, low=mean, high=mean, p=p, method="ranks")
    from scipy import stats

    with warnings.catch_warnings():  # of a side without spread: nothing is wrong with the other's
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.ttest_ind(b, a, equal_var=False)
    interval = found.confidence_interval(LEVEL)
    return replace(out, low=float(interval.low), high=float(interval.high), p=float(found.pvalue))


def corrected(found: Sequence[Difference]) -> list[Difference]:
    """Holm: the chance of one false alarm among all of them stays at ALPHA. What is equal by construction (a difference
    of exactly nothing in every seed) is no test."""
    tests = [n for n, one in enumerate(found) if one.p is not None and not one.nothing]
    tested = sorted(tests, key=lambda n: found[n].p or 0.0)
    out, worst = [replace(one, p_all=one.p) for one in found], 0.0
    for rank, number in enumerate(tested):
        worst = max(worst, min(1.0, (len(tested) - rank) * (found[number].p or 0.0)))
        out[number] = replace(found[number], p_all=worst)
    return out
