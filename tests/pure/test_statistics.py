from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from harness import lossmodel, statistics


@pytest.mark.parametrize(
    ("k", "n", "p"), [(3, 100, 0.05), (0, 50, 0.1), (612, 10_000, 0.05), (50_500, 1_000_000, 0.05)]
)
def test_binomial_tails_agree_with_scipy(k: int, n: int, p: float) -> None:
    wanted = min(1.0, 2 * min(stats.binom.cdf(k, n, p), stats.binom.sf(k - 1, n, p)))
    assert statistics.binomial_two_sided(k, n, p) == pytest.approx(wanted, rel=1e-5)


def test_a_link_that_must_lose_nothing_fails_on_one_loss() -> None:
    assert statistics.binomial_two_sided(0, 1000, 0.0) == 1.0
    assert statistics.binomial_two_sided(1, 1000, 0.0) == 0.0
    assert statistics.binomial_two_sided(999, 1000, 1.0) == 0.0


def test_the_count_of_a_bursty_channel_is_computed_exactly() -> None:
    chain = lossmodel.gilbert_from_means(mean=0.1, burst_packets_mean=4)
    distribution = statistics._count_distribution(chain, 12)
    delivered, lost = chain.matrices()
    by_hand = np.zeros(13)
    for pattern in range(2**12):
        state = np.array([1.0, 0.0])
        for bit in range(12):
            state = state @ (lost if pattern >> bit & 1 else delivered)
        by_hand[pattern.bit_count()] += state.sum()
    assert distribution == pytest.approx(by_hand, abs=1e-12)


def test_bursty_counts_do_not_cry_wolf() -> None:
    """A normal approximation would reject honest bursty networks hundreds of times too often."""
    chain = lossmodel.gilbert_from_means(mean=0.01, burst_packets_mean=8)
    values = [
        statistics.loss_count_two_sided(int(lossmodel.predict(chain, seed=seed, count=2000).sum()), 2000, chain)
        for seed in range(400)
    ]
    assert min(values) > 1e-5
    assert np.mean(np.array(values) < 0.05) < 0.1


def test_sixty_four_packet_bursts_are_seen_at_once() -> None:
    missing = np.zeros(20_000, dtype=bool)
    for start in range(0, 20_000, 1280):  # 5 % loss, always 64 in a row
        missing[start : start + 64] = True
    p_value = statistics.burst_two_sided(missing, lossmodel.iid(0.05))
    assert p_value is not None and p_value < 1e-12


def test_honest_bursts_pass() -> None:
    for chain in (lossmodel.iid(0.05), lossmodel.gilbert_from_means(mean=0.05, burst_packets_mean=8)):
        values = [statistics.burst_two_sided(lossmodel.predict(chain, seed=s, count=20_000), chain) for s in range(100)]
        assert min(v for v in values if v is not None) > 1e-5


def test_bursts_are_runs_of_losses() -> None:
    assert statistics.bursts(np.array([1, 1, 0, 1, 0, 0, 1, 1, 1], dtype=bool)).tolist() == [2, 1, 3]
