"""Tests that do not cry wolf: exact tails where counts are small, one error budget for all of them. No scipy: these run
in every `lossbench run`."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from harness import lossmodel
from harness.lossmodel import Bits, Chain

FAMILY_ERROR = 1e-4  # chance that an honest network fails any of its tests
EXACT_PACKETS = 60_000  # up to here the count of a bursty channel is computed exactly


def binomial_two_sided(successes: int, trials: int, probability: float) -> float:
    """P(a deviation at least this unlikely on its side), doubled; exact."""
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
        math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
        + count * math.log(probability) + (trials - count) * math.log1p(-probability)
    )  # fmt: skip
    odds = (1 - probability) / probability
    term = total = 1.0
    for k in range(count, 0, -1):
        term *= k / (trials - k + 1) * odds
        total += term
        if term < total * 1e-15:
            break
    return math.exp(log_term) * total


def loss_count_two_sided(dropped: int, seen: int, chain: Chain) -> float:
    """How unlikely this many losses are under the asked model."""
    if len(chain.states) == 1:
        return binomial_two_sided(dropped, seen, lossmodel.mean_loss(chain))
    if seen <= EXACT_PACKETS:
        distribution = _count_distribution(chain, seen)
        return float(min(1.0, 2 * min(distribution[: dropped + 1].sum(), distribution[dropped:].sum())))
    deviation = math.sqrt(seen * lossmodel.loss_variance_per_packet(chain))
    if deviation == 0:
        return 1.0 if dropped == round(seen * lossmodel.mean_loss(chain)) else 0.0
    return 2 * NormalDist().cdf(-abs(dropped - seen * lossmodel.mean_loss(chain)) / deviation)


@lru_cache(maxsize=64)
def _count_distribution(chain: Chain, packets: int) -> NDArray[np.float64]:
    """P(number of losses among `packets`): the generating matrix polynomial, evaluated on the unit circle."""
    delivered, lost = chain.matrices()
    size = 1 << (packets + 1).bit_length()
    roots = np.exp(2j * np.pi * np.arange(size) / size)
    matrices = delivered[None] + lost[None] * roots[:, None, None]
    start = np.zeros((size, 1, len(delivered)), dtype=complex)
    start[:, 0, 0] = 1
    power = matrices
    remaining = packets
    while remaining:
        if remaining & 1:
            start = start @ power
        power = power @ power
        remaining >>= 1
    coefficients = np.fft.fft(start.sum(axis=(1, 2))).real / size
    return np.clip(coefficients[: packets + 1], 0, None)


def bursts(missing: Bits) -> NDArray[np.int64]:
    """Lengths of the runs of consecutive losses."""
    padded = np.concatenate(([False], missing, [False])).astype(np.int8)
    edges = np.diff(padded)
    return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)


def burst_two_sided(missing: Bits, chain: Chain) -> float | None:
    """Is a loss followed by another as often as the model says? Exact for independent loss and for the simple Gilbert
    channel; None for other chains, whose bursts are reported but not tested this way."""
    simple = len(chain.states) == 1 or (
        len(chain.states) == 2
        and all(o.loss == 0 for o in chain.states[0])
        and all(o.loss == 1 for o in chain.states[1])
    )
    if not simple:
        return None
    losses = int(missing[:-1].sum())
    followed = int((missing[:-1] & missing[1:]).sum())
    mean = lossmodel.burst_mean(chain)
    if losses == 0 or not 1 <= mean < math.inf:
        return 1.0
    return binomial_two_sided(followed, losses, 1 - 1 / mean)


def z_score(dropped: int, seen: int, chain: Chain) -> float:
    """For tables; the verdict uses the exact tails above."""
    deviation = math.sqrt(seen * lossmodel.loss_variance_per_packet(chain))
    return (dropped - seen * lossmodel.mean_loss(chain)) / deviation if deviation else 0.0
