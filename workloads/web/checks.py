"""What a load generator must be able to say of itself before its latencies are believed (after Lancet, ATC 2019):
arrivals as asked, sent in time, a steady state, and how many independent samples there really are."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lossbench.workloads.web.options import Options
from lossbench.workloads.web.samples import Floats, Measured, Times, arrivals

FAILED_SHARE = 0.001  # of all requests: more of them, and the rest are a choice of the lucky ones
OF_A_TAIL = 0.1  # the share of it that late requests may be
MEAN_MOVED = 0.01  # by requests that were never answered, had each taken its timeout: more, and there is no mean
LAG_SHARE = 0.05  # of the median completion: p99 of how late requests were sent
ERROR = 1e-3  # of every test here: a sound run is doubted once in a few hundred
PARTS = 16
LEAST_BATCHES = 20
SURE = 4.0  # standard deviations
BATCHES = 60  # in which the search for a steady state takes samples together
Z95, Z99 = 1.959964, 2.326348  # of a normal distribution: 97.5 %, 99 %
MOST_ALONG = 0.9


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """Half of its width, as a share of the value."""
        return (self.high - self.low) / 2 / self.value if self.value else math.inf


def exponential_p(gaps: Floats) -> float:
    """Anderson-Darling against an exponential distribution of unknown mean (Stephens 1974); how likely a sound
    generator is this far off."""
    n = len(gaps)
    if n < 20 or gaps.mean() <= 0:
        return 1.0
    u = -np.expm1(-np.sort(gaps) / gaps.mean())
    u = np.clip(u, 1e-12, 1 - 1e-12)
    odd = 2 * np.arange(1, n + 1) - 1
    a2 = -n - float((odd * (np.log(u) + np.log1p(-u[::-1]))).sum()) / n
    a2 *= 1 + 0.6 / n
    if a2 < 0.26:
        p = 1 - math.exp(-12.2204 + 67.459 * a2 - 110.3 * a2 * a2)
    elif a2 < 0.51:
        p = 1 - math.exp(-6.1327 + 20.218 * a2 - 18.663 * a2 * a2)
    elif a2 < 0.95:
        p = math.exp(0.9209 - 3.353 * a2 + 0.300 * a2 * a2)
    else:
        p = math.exp(0.731 - 3.009 * a2 + 0.15 * a2 * a2) if a2 < 10 else 0.0
    return min(max(p, 0.0), 1.0)


def warm_up(values: Floats) -> int:
    """How many samples at the beginning are not yet the steady state (MSER, over batches): cut where the mean of what
    remains is known best, if what is cut really differs from the rest (load that comes in waves can put the best cut
    anywhere). More than half of them: none was found."""
    size = max(5, len(values) // BATCHES)
    batches = values[: len(values) // size * size].reshape(-1, size).mean(axis=1)
    n = len(batches)
    if n < 20:
        return 0
    remaining = np.arange(n, 0, -1)
    sums, squares = (np.cumsum(one[::-1])[::-1] for one in (batches, batches**2))
    variance = (squares / remaining - (sums / remaining) ** 2) / remaining
    cut = int(np.argmin(variance[: n // 2 + 1]))
    if cut == n // 2 and stationary_p(values) < ERROR:
        return len(values)
    return cut * size if cut and _differ(batches[:cut], batches[cut:]) else 0


def _differ(first: Floats, rest: Floats) -> bool:
    """Far beyond what the rest varies by from batch to batch, and unlike any stretch of it that is as long: where load
    comes in waves another crest looks the same."""
    mean, length = float(first.mean()), min(len(first), len(rest))
    spread = float(rest.std(ddof=1)) * math.sqrt(1 / len(first) + 1 / len(rest))
    stretches = np.convolve(rest, np.full(length, 1 / length), "valid")
    beyond = mean > float(stretches.max()) or mean < float(stretches.min())
    return beyond and abs(mean - float(rest.mean())) > SURE * spread


def stationary_p(values: Floats) -> float:
    """Do the first and the second half have the same mean? By an exact permutation test on the means of sixteen parts,
    long enough to be about independent."""
    size = len(values) // PARTS
    if size < 5:
        return 1.0
    means = values[: size * PARTS].reshape(PARTS, size).mean(axis=1)
    sums = np.array([sum(some) for some in itertools.combinations(means.tolist(), PARTS // 2)])
    middle = means.sum() / 2
    return float((np.abs(sums - middle) >= abs(means[: PARTS // 2].sum() - middle) * (1 - 1e-9)).mean())


@dataclass(frozen=True)
class Worth:
    """What samples that follow from each other say of their mean: as much as `n` independent ones; half of its 95 %
    interval is `t` standard errors."""

    n: int
    t: float = Z95


def worth(values: Floats) -> Worth:
    """By the means of batches, in the order of time, longer and longer: twenty of them at least. Requests of many
    clients take turns, so that neighbours hardly know each other while all wait for the same bursts: no length of a
    batch is right for all, and the one that leaves the mean most uncertain counts, once one of them leaves it more
    uncertain than independent samples would (else they are that). Few batches know their own spread badly: hence t.
    The longest batches may still follow from each other: they are taken for a chain of the first order."""
    n = len(values)
    spread = float(values.var(ddof=1)) if n > 1 else 0.0
    if n < 2 * LEAST_BATCHES or spread == 0:
        return Worth(n)
    found, dependent = Worth(n), False
    longest = n // LEAST_BATCHES
    for size in [*itertools.takewhile(lambda one: one < longest, (2**power for power in range(1, 64))), longest]:
        means = values[: n // size * size].reshape(-1, size).mean(axis=1)
        count = len(means)
        ratio = size * float(means.var(ddof=1)) / spread
        dependent = dependent or ratio > _beyond(count - 1)
        ratio *= _chain(means) if size == longest else 1.0
        here = Worth(max(1, int(n / max(ratio, 1.0))), _t95(count - 1))
        if dependent and here.t / math.sqrt(here.n) > found.t / math.sqrt(found.n):
            found = here
    return found


def independent(values: Floats) -> int:
    """As many independent samples as would leave the mean as uncertain as these do."""
    return worth(values).n


def _chain(means: Floats) -> float:
    """How much more uncertain the mean of a chain is than that of independent ones, by how neighbours agree; never
    less."""
    count, middle = len(means), means - means.mean()
    whole = float((middle**2).sum())
    along = float((middle[:-1] * middle[1:]).sum()) / whole if whole else 0.0
    along = min(max(along + 1 / count, 0.0), MOST_ALONG)  # in a short row it looks smaller than it is, by about 1/n
    return (1 + along) / (1 - along)


def _t95(freedom: int) -> float:
    """Student's t at 97.5 %, by Cornish and Fisher: to a thousandth from ten degrees of freedom on."""
    z = Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _beyond(freedom: int) -> float:
    """What the spread of so many batches, by what it should be, passes by chance once in a hundred (chi squared, by
    Wilson and Hilferty)."""
    part = 2 / (9 * freedom)
    return float((1 - part + Z99 * math.sqrt(part)) ** 3)


def quantile(values: Floats, q: float) -> Interval:
    """With its 95 % interval, by order statistics; as wide as the independent ones among the samples leave it (those
    of lying beyond it). Without an interval (infinite) where too few of them lie beyond."""
    value = float(np.quantile(values, q, method="higher"))
    found = worth((values > value).astype(float)) if math.isfinite(value) else Worth(0)
    if not enough_for(q, found.n):
        return Interval(value, -math.inf, math.inf)
    half = found.t * math.sqrt(q * (1 - q) / found.n)
    low, high = (float(np.quantile(values, min(max(one, 0.0), 1.0), method="higher")) for one in (q - half, q + half))
    return Interval(value, low, high)


def known_to(values: Floats, q: float) -> float:
    """Half of the width of a quantile's interval, as a share of it; infinite where there are too few independent
    samples for it, or where it falls among those that never came."""
    found = quantile(values, q)
    return found.relative if math.isfinite(found.high) and math.isfinite(found.value) else math.inf


def enough_for(q: float, independent: int) -> bool:
    """Ten samples beyond it, and the upper end of its interval still among the samples."""
    return independent * (1 - q) >= 10


def mean(values: Floats) -> Interval:
    found = worth(values)
    half = found.t * float(values.std(ddof=1)) / math.sqrt(found.n) if len(values) > 1 else math.inf
    centre = float(values.mean()) if len(values) else math.nan
    return Interval(centre, centre - half, centre + half)


# --- why what was measured at one rate may not be believed, in words; empty where it may -----


def unsteady(steady: Times, phase: dict[str, Any], span: float, *, found: bool) -> str:
    """Why this is no steady state; empty if it is one."""
    if not found:
        return f"at {phase['rate']:g}/s no steady state was found in {span:.0f} s"
    if stationary_p(steady.known) < ERROR:
        return f"at {phase['rate']:g}/s the first and the second half of the run differ: no steady state"
    return ""


def not_known(steady: Times, options: Options) -> str:
    """That the precision which was asked for was not reached in all the time there was."""
    precision = options.precision()
    if precision is None:
        return ""
    q, wanted = precision
    reached = known_to(steady.ms, q)
    if reached <= wanted:
        return ""
    so_far = f"it is known to {reached:.1%}" if np.isfinite(reached) else "there are too few independent samples"
    return f"p{100 * q:g} was not known to {wanted:.0%} at the end of {options.seconds:g} s: {so_far}"


def never_below(ratio: float, rate: float, options: Options) -> str:
    """That the rate which was looked for lies below all that were tried."""
    was = f"was {ratio:g}" if np.isfinite(ratio) else "was not known, since too few were answered,"
    at = f"p99/p50 {was} at the lowest rate already ({rate:g}/s)"
    return f"{at}: where it comes to {options.stop_ratio:g} was not found, give lower rates"


def unanswered(here: Measured, phase: dict[str, Any], options: Options) -> str:
    """That too many requests of this rate were never answered."""
    lost, asked = len(here.lost), len(here) + len(here.lost)
    if lost <= FAILED_SHARE * asked:
        return ""
    return f"at {phase['rate']:g}/s {lost} of {asked} requests were not answered{in_mbit(phase['rate'], options)}"


def in_mbit(rate: float, options: Options) -> str:
    """What that many requests ask of all links together: more than they carry is the likeliest reason."""
    asked = f"{rate:g}/s are {rate * options.drawn().mean() * 8 / 1e6:.3g} Mbit/s of answers"
    return f"; {asked}" if options.loop == "open" else ""


def unknown_mean(steady: Times, options: Options) -> str:
    """Why the mean is not known: those that were never answered could move it too far. Empty if it is."""
    lost, whole = len(steady.ms) - len(steady.known), float(steady.known.sum())
    if lost * options.timeout_s * 1000 <= MEAN_MOVED * whole * (1 + lost / max(1, len(steady.known))):
        return ""
    what = "pages" if options.page else "requests"
    return (
        f"No mean: {lost} {what} were never answered, at {options.timeout_s:g} s each they could move it by a percent."
    )


def _lags(here: Measured, phase: dict[str, Any]) -> Any:
    """How late each request of this rate was sent."""
    sent = np.concatenate([np.empty(0), *here.sent_s])
    return here.lag_ms[(sent >= phase["from_s"]) & (sent < phase["to_s"])]


def late_in_the_tail(here: Measured, phase: dict[str, Any], numbers: dict[str, float]) -> dict[str, str]:
    """Completions count from the intended time, so requests that one client sent late, at once, are a tail of its own:
    percentile -> why it is not the service's."""
    lags, out = _lags(here, phase), {}
    for name, q in (("p99", 0.99), ("p99.9", 0.999)):
        tail = numbers.get(f"{name}_ms", np.inf)
        late = float(np.mean(lags > LAG_SHARE * tail)) if len(lags) else 0.0
        if late > OF_A_TAIL * (1 - q):
            out[name] = f"{late:.2%} of the requests were sent late by more than {LAG_SHARE:.0%} of {name}"
    return out


def late(here: Measured, phase: dict[str, Any], *, hint: str) -> str:
    """How late the requests of this rate were sent, if it was too late; `hint`: what would help."""
    lags = _lags(here, phase)
    if not len(lags) or not len(here):
        return ""
    median, lag = float(np.median(here.completion_ms)), float(np.quantile(lags, 0.99))
    if lag <= LAG_SHARE * median:
        return ""
    share = f"{lag / median:.0%} of the median completion (at most {LAG_SHARE:.0%})"
    return f"requests were sent up to {lag:.2f} ms late (p99), {share}{hint}"


def not_poisson(here: Measured, phase: dict[str, Any], options: Options) -> str:
    """What clients sent at this rate: where some of it was dropped, it is another process."""
    sent = arrivals(here, options.page)
    streams = [one[(one >= phase["from_s"]) & (one < phase["to_s"])] for one in sent]
    p = min((exponential_p(np.diff(one)) for one in streams), default=1.0)
    if p >= ERROR / max(1, len(streams)):
        return ""
    what = "beginnings of pages" if options.page else "arrivals"
    return f"at {phase['rate']:g}/s {what} are not a Poisson process (Anderson-Darling, p = {p:.1e})"
