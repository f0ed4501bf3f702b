from __future__ import annotations

import numpy as np
import pytest

from lossbench.proof import statistics
from lossbench.spec import lossmodel
from lossbench.spec.lossmodel import Chain

CHAINS = {
    "iid 5 %": lossmodel.iid(0.05),
    "gilbert": lossmodel.gilbert_from_means(mean=0.05, burst_packets_mean=8),
    "gilbert-elliott": lossmodel.gilbert_elliott(p=0.02, r=0.2, h=0.4, k=0.99),
    "state4": lossmodel.state4(p13=0.006, p31=0.3, p32=0.2, p23=0.4, p14=0.008),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_long_run_figures_agree_with_a_long_pattern(chain: Chain) -> None:
    count = 400_000
    lost = lossmodel.predict(chain, seed=12345, count=count)
    deviation = np.sqrt(count * lossmodel.loss_variance_per_packet(chain))
    assert abs(lost.sum() - count * lossmodel.mean_loss(chain)) < 4.5 * deviation
    runs = statistics.bursts(lost)
    assert runs.mean() == pytest.approx(lossmodel.burst_mean(chain), rel=0.05)
    shares = lossmodel.burst_lengths(chain, up_to=5)
    for length, share in enumerate(shares, start=1):
        assert (runs == length).mean() == pytest.approx(share, abs=5 * np.sqrt(share / len(runs)) + 1e-4)


def test_the_two_human_numbers_give_what_they_say() -> None:
    chain = lossmodel.gilbert_from_means(mean=0.01, burst_packets_mean=8)
    assert lossmodel.mean_loss(chain) == pytest.approx(0.01)
    assert lossmodel.burst_mean(chain) == pytest.approx(8)


@pytest.mark.parametrize("loss", [0.0, 1.0])
def test_nothing_and_everything_are_exact(loss: float) -> None:
    lost = lossmodel.predict(lossmodel.iid(loss), seed=3, count=10_000)
    assert lost.sum() == 10_000 * loss


def test_independent_loss_has_bursts_of_one_over_one_minus_p() -> None:
    assert lossmodel.burst_mean(lossmodel.iid(0.1)) == pytest.approx(1 / 0.9)


def test_the_generator_is_splitmix64() -> None:
    """Reference values of splitmix64 with seed 1234567."""
    words = lossmodel.random_words(1234567, 3)
    assert words.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_pattern_can_be_continued_from_where_it_stands() -> None:
    chain = CHAINS["gilbert"]
    whole = lossmodel.predict(chain, seed=9, count=1000)
    # The state after 400 packets of a simple Gilbert channel is not visible: try both, one must fit.
    later_seed = (9 + 400 * lossmodel.GAMMA) % 2**64
    parts = [lossmodel.predict(chain, seed=later_seed, count=600, state=s) for s in (0, 1)]
    assert any(np.array_equal(part, whole[400:]) for part in parts)


def test_blocks_are_lost_at_the_asked_rate_and_independently_of_order() -> None:
    lost = [
        lossmodel.block_lost(seed=5, step=s, half=h, source=a, destination=b, block=k, loss=0.1)
        for s in range(50)
        for h in (0, 1)
        for a in range(4)
        for b in range(4)
        for k in range(5)
    ]
    assert statistics.binomial_two_sided(sum(lost), len(lost), 0.1) > 1e-4
