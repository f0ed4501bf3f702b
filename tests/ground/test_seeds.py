"""Every use of randomness has a pattern of its own: intervals over seeds and hosts rest on nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from lossbench.contract import derive_seed
from lossbench.spec import lossmodel
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import rules_in_force
from lossbench.spec.userfile import check

SEEDS = HOSTS = 64


def seeds_of(seed: int) -> list[int]:
    """Of every rule at every hook: two entries in both directions, one of them between pairs."""
    pairs = [(f"h{a}", f"h{(a + b) % HOSTS}") for a in range(HOSTS) for b in (1, 2)]
    impair = [
        {"profile": "bursty_5", "direction": "both", "hosts": [f"h{n}" for n in range(HOSTS)]},
        {"profile": "loss_1", "direction": "both", "pairs": pairs},
    ]
    experiment = check(Experiment, {"name": "t", "topology": {"hosts": HOSTS}, "impair": impair}, origin="test")
    rules = rules_in_force(experiment, seed=seed)
    return [rule.seed for here in rules.values() for rule in here] + [next(iter(rules.values()))[0].block_seed]


def test_no_two_of_64_seeds_64_hosts_directions_entries_and_pairs_draw_alike() -> None:
    found = [drawn for seed in range(SEEDS) for drawn in seeds_of(seed)]
    assert len(found) == SEEDS * (HOSTS * 2 * 3 + 1)
    assert len(set(found)) == len(found)
    # Nor is one of them another, some packets later: splitmix64 walks in steps of GAMMA.
    steps = np.sort(np.array(found, dtype=np.uint64) * np.uint64(pow(lossmodel.GAMMA, -1, 2**64)))
    assert int(np.diff(steps).min()) > 1_000_000


def correlations(patterns: np.ndarray) -> np.ndarray:
    """Between every two rows, off the diagonal, in deviations of what independent rows have."""
    centred = patterns - patterns.mean(1, keepdims=True)
    centred /= np.sqrt((centred**2).sum(1, keepdims=True))
    return (centred @ centred.T)[np.triu_indices(len(patterns), 1)] * np.sqrt(patterns.shape[1])


def look_independent(patterns: np.ndarray) -> None:
    found = correlations(patterns)
    pairs = len(found)
    assert abs(found).max() < np.sqrt(2 * np.log(pairs)) + 2, "one pair repeats the other"
    assert abs(found.mean()) < 6 / np.sqrt(pairs)
    assert 0.95 < found.std() < 1.05


def test_the_patterns_of_seeds_and_hosts_are_not_correlated() -> None:
    experiment = check(
        Experiment, {"name": "t", "topology": {"hosts": 64}, "impair": [{"profile": "loss_10"}]}, origin="t"
    )
    chosen = [
        rule.seed for seed in range(24) for here in rules_in_force(experiment, seed=seed).values() for rule in here
    ]
    look_independent(np.array([lossmodel.random_words(seed, 2048) / 2.0**64 for seed in chosen]))


def test_the_test_of_independence_finds_a_host_that_repeats_another() -> None:
    """As hosts of seed s did with those of seed s-1."""
    patterns = np.random.default_rng(0).random((200, 2048))
    patterns[7] = patterns[113]
    with pytest.raises(AssertionError):
        look_independent(patterns)


def test_parts_of_a_path_are_told_apart_by_type_place_and_number() -> None:
    paths = [
        (1,),
        ("1",),
        (1, 0),
        (0, 1),
        (12, 3),
        (1, 23),
        (1, 2, 3),
        ("a", "bc"),
        ("ab", "c"),
        ("a" * 8,),
        ("a" * 9,),
    ]
    assert len({derive_seed(0, *path) for path in paths}) == len(paths)


@pytest.mark.parametrize("seed", range(4))
def test_training_and_network_draw_from_streams_of_their_own(seed: int) -> None:
    """Data order, weights, owners, masks, augmentation: each against each other, against other seeds, and the
    network's."""
    names = ["data order", "augmentation", "owners", "noise", "weights", "drift sample", "tensor"]
    paths: list[tuple[int | str, ...]] = [(name, number) for name in names for number in range(12)]
    paths += [("simulated", 0, 0, a, b) for a in range(8) for b in range(8)]
    drawn = [np.random.default_rng(derive_seed(s, *path)).random(2048) for s in (seed, seed + 1) for path in paths]
    drawn += [lossmodel.random_words(one, 2048) / 2.0**64 for one in seeds_of(seed)[:100]]
    look_independent(np.array(drawn))


def test_a_channel_begins_as_its_long_run_is() -> None:
    """Not in the good state: with bursts longer than the run nothing would ever be lost."""
    chain = lossmodel.gilbert_from_means(mean=0.3, burst_packets_mean=100_000)
    begun = [lossmodel.predict(chain, seed=derive_seed(n, "x"), count=1)[0] for n in range(2000)]
    assert 0.25 < np.mean(begun) < 0.35
    nearly_all = lossmodel.gilbert_from_means(mean=0.99999, burst_packets_mean=1_000_000)
    assert lossmodel.predict(nearly_all, seed=derive_seed(1, "x"), count=5000).mean() > 0.99
