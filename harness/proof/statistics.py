"""Tests that do not cry wolf: exact tails where counts are small, one error budget for all of them. No scipy: these run
in every `lossbench run`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from lossbench.spec import lossmodel
from lossbench.spec.lossmodel import Bits, Chain

FAMILY_ERROR = 1e-4  # chance that an honest network fails any of its tests
FAMILIES = (  # of tests, that share it: each is asked for at one place, for all of its tests together
    "losses of the probes",
    "delays of the probes",
    "overtaking of the probes",
    "probes that did not wait",
    "losses of the run",
    "overtaking in the run",
    "what wires kept",
)
WINDOW = 200  # deviations around the mean that a distribution of many packets is computed for

Numbers = NDArray[np.complex128]


def limit_for(tests: int, *, of: str) -> float:
    """Below this one of so many tests has failed; `of`: their family."""
    assert of in FAMILIES, of
    return FAMILY_ERROR / len(FAMILIES) / max(tests, 1)


def deviations_at(limit: float) -> float:
    """That a number may be off, on either side."""
    return NormalDist().inv_cdf(1 - limit / 2)


def binomial_two_sided(successes: int, trials: int, probability: float) -> float:
    """P(a deviation at least this unlikely on its side), doubled; exact."""
    if not 0 <= successes <= trials:  # counters that were replaced on the way
        return 0.0
    if trials == 0 or not 0 < probability < 1:
        return 1.0 if successes == round(trials * probability) else 0.0
    if successes <= trials * probability:
        tail = _binomial_tail(successes, trials, probability)
    else:
        tail = _binomial_tail(trials - successes, trials, 1 - probability)
    return min(1.0, 2 * tail)


def _binomial_tail(count: int, trials: int, probability: float) -> float:
    """P(X <= count), summed downward from the largest term until nothing more is added."""
    log_term = (
        math.lgamma(trials + 1)
        - math.lgamma(count + 1)
        - math.lgamma(trials - count + 1)
        + count * math.log(probability)
        + (trials - count) * math.log1p(-probability)
    )
    odds = (1 - probability) / probability
    term = total = 1.0
    for k in range(count, 0, -1):
        term *= k / (trials - k + 1) * odds
        total += term
        if term < total * 1e-15:
            break
    return math.exp(log_term) * total


def loss_count_two_sided(dropped: int, seen: int, chain: Chain, *, from_good: bool = False) -> float:
    """How unlikely this many losses are under the asked model. `from_good`: the channel began in its first state, as
    netem's do, instead of anywhere."""
    if len(chain.states) == 1:
        return binomial_two_sided(dropped, seen, lossmodel.mean_loss(chain))
    if not 0 <= dropped <= seen:
        return 0.0
    below, here, above = _around(dropped, seen, chain, from_good=from_good)
    return min(1.0, 2 * (here + min(below, above)))


def pooled_two_sided(counts: Sequence[tuple[int, int]], chain: Chain, *, from_good: bool = False) -> float:
    """(dropped, seen) of independent channels of one kind, judged together: many small deviations to the same side are
    a large one. Independent loss: the sum is binomial. Bursts: Stouffer's sum of the channels' own deviations."""
    some = [(dropped, seen) for dropped, seen in counts if seen]
    if any(not 0 <= dropped <= seen for dropped, seen in some):
        return 0.0
    if len(chain.states) == 1:
        return binomial_two_sided(sum(d for d, _ in some), sum(s for _, s in some), lossmodel.mean_loss(chain))
    if not some:
        return 1.0
    normal, total = NormalDist(), 0.0
    for dropped, seen in some:
        below, here, _ = _around(dropped, seen, chain, from_good=from_good)
        total += normal.inv_cdf(min(max(below + here / 2, 1e-15), 1 - 1e-15))
    return 2 * normal.cdf(-abs(total) / math.sqrt(len(some)))


def _around(dropped: int, seen: int, chain: Chain, *, from_good: bool) -> tuple[float, float, float]:
    """P(fewer losses), P(as many), P(more)."""
    first, shares = _count_distribution(chain, seen, from_good)
    at = dropped - first
    if at < 0 or at >= len(shares):
        return (0.0, 0.0, 1.0) if at < 0 else (1.0, 0.0, 0.0)
    return float(shares[:at].sum()), float(shares[at]), float(shares[at + 1 :].sum())


@lru_cache(maxsize=64)
def _count_distribution(chain: Chain, packets: int, from_good: bool) -> tuple[int, NDArray[np.float64]]:
    """(n, [P(n losses among `packets`), P(n + 1), ...]): the generating matrix polynomial on the unit circle. Of many
    packets only WINDOW deviations around the mean are computed: what lies beyond has no share that matters. A normal
    approximation instead failed honest bursty channels a hundred times too often."""
    mean, spread = packets * lossmodel.mean_loss(chain), math.sqrt(packets * lossmodel.loss_variance_per_packet(chain))
    size = 1 << (min(packets + 1, round(WINDOW * spread) + 4096) - 1).bit_length()
    roots = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    delivered, lost = chain.matrices()
    start = np.eye(len(delivered))[0] if from_good else lossmodel.stationary(chain)
    row = [np.full(len(roots), share, dtype=complex) for share in start]
    power = [
        [alive + gone * roots for alive, gone in zip(ds, ls, strict=True)]
        for ds, ls in zip(delivered, lost, strict=True)
    ]
    remaining = packets
    while remaining:
        if remaining & 1:
            row = _times([row], power)[0]
        remaining >>= 1
        power = _times(power, power) if remaining else power
    shares = np.clip(np.fft.irfft(sum(row), size), 0, None)
    first = 0 if size > packets else max(0, min(round(mean) - size // 2, packets + 1 - size))
    return first, np.roll(shares, -(first % size))[: packets + 1 - first]


def _times(a: list[list[Numbers]], b: list[list[Numbers]]) -> list[list[Numbers]]:
    """Products of small matrices, one for every root: numpy's own is made for large ones."""
    return [[np.sum([x * b[k][j] for k, x in enumerate(row)], axis=0) for j in range(len(b[0]))] for row in a]


def bursts(missing: Bits) -> NDArray[np.int64]:
    """Lengths of the runs of consecutive losses."""
    padded = np.concatenate(([False], missing, [False])).astype(np.int8)
    edges = np.diff(padded)
    return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)


def burst_two_sided(missing: Bits, chain: Chain) -> float | None:
    """Is a loss followed by another as often as the model says? Exact for independent loss and for the simple Gilbert
    channel; None for other chains, whose bursts are reported but not tested this way."""
    return followed_two_sided([followed(missing)], chain)


def followed(missing: Bits) -> tuple[int, int]:
    """(losses that another one follows, losses that are not the last packet)."""
    return int((missing[:-1] & missing[1:]).sum()), int(missing[:-1].sum())


def followed_two_sided(seen: Sequence[tuple[int, int]], chain: Chain) -> float | None:
    """The same of independent channels of one kind, judged together: whether a loss is followed by another depends on
    nothing but the loss, so their sum is binomial too."""
    simple = len(chain.states) == 1 or (
        len(chain.states) == 2
        and all(o.loss == 0 for o in chain.states[0])
        and all(o.loss == 1 for o in chain.states[1])
    )
    if not simple:
        return None
    again, losses = (sum(numbers) for numbers in zip(*seen, strict=True))
    mean = lossmodel.burst_mean(chain)
    if losses == 0 or not 1 <= mean < math.inf:
        return 1.0
    return binomial_two_sided(again, losses, 1 - 1 / mean)
