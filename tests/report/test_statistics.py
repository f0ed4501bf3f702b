"""How sure numbers are said to be: against scipy's own answers and against what chance does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from lossbench.report import inference, within
from lossbench.report.inference import corrected, estimate, paired, ratio_of_means, unpaired
from lossbench.report.within import percentile
from lossbench.results import measures


def test_an_interval_is_the_t_interval() -> None:
    values = [3.1, 2.9, 3.4, 3.0, 3.3]
    found = estimate(values)
    assert found is not None and found.n == 5 and found.sd == pytest.approx(np.std(values, ddof=1))
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_a_share_of_seeds_lies_between_none_and_all() -> None:
    """Four of five reached their target: a t-interval said .8 ± .56."""
    found = estimate([1.0, 1.0, 0.0, 1.0, 1.0])
    assert found is not None and found.method == "Wilson" and found.mean == 0.8
    assert found.low is not None and found.high is not None and 0 < found.low < 0.5 and 0.8 < found.high < 1
    assert estimate([1.0, 1.0, 0.0, 1.0, 2.0]).method == "t"  # type: ignore[union-attr]
    differences = paired({0: 1.0, 1: 1.0, 2: 0.0}, {0: 1.0, 1: 2.0, 2: 0.0})
    assert differences is not None and differences.low is not None and differences.low < 0, "changes, not shares"


@pytest.mark.parametrize("under", [(2.0, 3.0, 4.0, 5.5), (5.5, 4.0, 3.0, 2.0)])
def test_a_ratio_of_means_ends_where_the_difference_from_it_can_just_be_nothing(under: tuple[float, ...]) -> None:
    """Fieller, by the other way in: the t-interval of `over - r * under` touches 0 where r is an end."""
    over = (4.2, 6.1, 7.7, 11.4)
    found = ratio_of_means(over, under)
    assert found is not None and found.low is not None and found.high is not None
    assert found.low < found.mean < found.high
    for r in (found.low, found.high):
        apart = estimate([x - r * y for x, y in zip(over, under, strict=True)])
        assert apart is not None and apart.low is not None and apart.high is not None
        assert min(abs(apart.low), abs(apart.high)) == pytest.approx(0, abs=1e-9)


def test_one_value_has_no_spread_and_none_is_none() -> None:
    assert estimate([]) is None
    found = estimate([2.0])
    assert found is not None and (found.n, found.mean, found.sd, found.half) == (1, 2.0, None, None)


def test_a_bootstrap_is_made_only_where_n_allows_it() -> None:
    values = np.random.default_rng(0).exponential(size=40).tolist()
    few, many = estimate(values[:19], bootstrap=True), estimate(values, bootstrap=True)
    assert few is not None and many is not None
    assert (few.method, many.method) == ("t", "bootstrap")
    assert many.low is not None and many.high is not None and many.low < many.mean < many.high


def test_pairing_sees_what_two_means_hide() -> None:
    """Seeds differ by far more than the change does."""
    before = {seed: 10.0 + 5 * seed for seed in range(5)}
    after = {seed: value + 0.1 + 0.01 * seed for seed, value in before.items()}
    together = paired(before, after)
    apart = unpaired(list(before.values()), list(after.values()))
    assert together is not None and apart is not None
    assert together.significant and not apart.significant
    assert together.p == pytest.approx(stats.ttest_rel(list(after.values()), list(before.values())).pvalue)
    assert apart.p == pytest.approx(
        stats.ttest_ind(list(after.values()), list(before.values()), equal_var=False).pvalue
    )


def test_only_common_seeds_are_paired() -> None:
    found = paired({1: 1.0, 2: 2.0, 3: 9.0}, {2: 3.0, 1: 2.0, 7: 0.0})
    assert found is not None and found.n == 2
    assert (found.low, found.mean, found.high) == (1.0, 1.0, 1.0), "by seed: in any other order they are far apart"
    assert paired({1: 1.0}, {2: 1.0}) is None


def test_equal_results_differ_in_nothing_and_one_seed_tests_nothing() -> None:
    same = paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    alone = paired({0: 1.0}, {0: 2.0})
    assert same is not None and same.p == 1.0 and not same.significant
    assert alone is not None and alone.p is None and not alone.significant


def test_many_comparisons_of_nothing_rarely_find_something() -> None:
    """Sixty tables of twenty null comparisons each: without a correction two of three tables cry wolf."""
    generator = np.random.default_rng(1)
    alarms, naive = 0, 0
    for _ in range(60):
        found = []
        for _ in range(20):
            a, b = generator.normal(size=(2, 5))
            found.append(paired(dict(enumerate(a)), dict(enumerate(b))))
        sure = corrected([one for one in found if one is not None])
        alarms += any(one.significant for one in sure)
        naive += any(one.p is not None and one.p < 0.05 for one in sure)
    assert naive > 25 and alarms <= 9


def test_the_correction_is_holms() -> None:
    made = [inference.Difference(n=5, mean=1.0, p=p) for p in (0.01, 0.04, 0.03)]
    assert [one.p_all for one in corrected(made)] == [pytest.approx(0.03), pytest.approx(0.06), pytest.approx(0.06)]


@pytest.mark.parametrize(("q", "needs"), [(0.5, 20), (0.9, 100), (0.99, 1000), (0.999, 10_000)])
def test_a_percentile_needs_ten_samples_beyond_it(q: float, needs: int) -> None:
    values = np.arange(needs, dtype=float)
    assert measures.needed(q) == needs
    found = percentile([values], q)
    assert percentile([values[:-1]], q) is None and found is not None
    assert found.mean == pytest.approx(np.quantile(values, q))


def chain(rng: np.random.Generator, n: int, along: float, shift: float = 0.0) -> np.ndarray:  # type: ignore[type-arg]
    """AR(1) of mean `shift` and variance 1."""
    steps = rng.normal(scale=np.sqrt(1 - along**2), size=n)
    steps[0] = rng.normal()
    return shift + np.array(list(itertools.accumulate(steps, lambda before, step: along * before + step)))


@pytest.mark.parametrize(
    ("seeds", "n", "along", "shifts"), [(1, 3000, 0.95, 0.0), (4, 800, 0.9, 0.3)], ids=["one seed", "seeds apart"]
)
def test_an_interval_of_a_percentile_knows_that_samples_follow_from_each_other(
    seeds: int, n: int, along: float, shifts: float
) -> None:
    """As it was: none could be given. By order statistics of samples that were taken for independent: a third of this
    coverage."""
    rng, held, naive, given = np.random.default_rng(11), 0, 0, 0
    truth = float(stats.norm.ppf(0.9, scale=np.hypot(1.0, shifts)))
    for _ in range(200):
        runs = [chain(rng, n, along, shifts * rng.normal()) for _ in range(seeds)]
        found = percentile(runs, 0.9)
        assert found is not None and found.method in (("blocks", "") if seeds == 1 else ("seeds",))
        given += found.method != ""
        held += (found.low or -np.inf) <= truth <= (found.high or np.inf)
        half = 1.96 * np.sqrt(0.9 * 0.1 / (seeds * n))
        low, high = np.quantile(np.concatenate(runs), (0.9 - half, 0.9 + half))
        naive += low <= truth <= high
    assert held >= 0.9 * 200 and naive < 0.7 * 200 and given >= 0.9 * 200, (held, naive, given)


def intervals(values: np.ndarray) -> list[tuple[float, float]]:  # type: ignore[type-arg]
    """Of the 90th percentile of each row, where there is one."""
    found = [percentile([row], 0.9) for row in values]
    return [(one.low or -np.inf, one.high or np.inf) for one in found if one is not None and one.method]


@pytest.mark.parametrize(
    ("n", "along", "given"), [(2000, 0.99, (0, 0.1)), (20_000, 0.99, (0.9, 1)), (2000, 0.997, (0, 0.1))]
)
def test_a_run_that_remembers_for_long_has_a_right_interval_or_none(
    n: int, along: float, given: tuple[float, float]
) -> None:
    """As it was: of twenty blocks, however much each followed from the one before. 78 % of a nominal 95 were right
    with 2000 samples that remember a hundred, 68 % where they remember three hundred."""
    rows = 120
    steps = np.random.default_rng(7).normal(scale=np.sqrt(1 - along**2), size=(n, rows))
    steps[0] /= np.sqrt(1 - along**2)
    for at in range(1, n):
        steps[at] += along * steps[at - 1]
    found, truth = intervals(steps.T), float(stats.norm.ppf(0.9))
    assert given[0] * rows <= len(found) <= given[1] * rows, len(found)
    wrong = sum(not low <= truth <= high for low, high in found)
    assert wrong <= 0.08 * rows, (wrong, len(found))


def test_independent_samples_keep_their_intervals() -> None:
    """As wide as of twenty blocks, and there: also of no more samples than a percentile needs."""
    values = np.random.default_rng(3).normal(size=(100, 2000))
    found = intervals(values)
    assert len(found) == 100 and np.mean([high - low for low, high in found]) < 0.18  # .165 by twenty blocks
    assert len(intervals(values[:, :100])) >= 95


def test_what_only_the_slowest_remember_is_seen_and_below_much_noise_too() -> None:
    rng = np.random.default_rng(5)
    slow = np.repeat(rng.random(200) < 0.1, 100)
    assert within._independent_blocks(np.where(slow, 10.0, 1.0) + rng.random(20_000), 5.0) == within.BLOCKS
    assert within._independent_blocks(np.where(slow, 10.0, 1.0)[:2000] + rng.random(2000), 5.0) < 6
    noisy = chain(rng, 2000, 0.995) + rng.normal(size=2000)
    assert within._independent_blocks(noisy, float(np.quantile(noisy, 0.9))) < 6


def test_a_percentile_whose_interval_goes_beyond_all_samples_has_no_end_there() -> None:
    runs = [np.linspace(1, 100, 600), np.linspace(1, 100, 600), np.linspace(1, 300, 600)]
    found = percentile(runs, 0.99)
    assert found is not None and found.low is not None and found.high is None and found.n == 1800


@pytest.mark.parametrize(
    "runs",
    [[np.linspace(1, 100, 600)] * 2, [np.linspace(1, 100, 600), np.linspace(1, 300, 600)], [np.full(600, 5.1)] * 3],
    ids=["two alike", "two apart", "no width"],
)
def test_two_seeds_and_equal_samples_have_no_interval(runs: list[np.ndarray]) -> None:  # type: ignore[type-arg]
    """As it was: "5.133 to 5.133"."""
    found = percentile(runs, 0.9)
    assert found is not None and (found.low, found.high, found.method) == (None, None, "")


def test_equal_numbers_are_said_once_and_others_in_digits_that_differ() -> None:
    assert measures.told_apart(0.98331, 0.98329) == ("0.98331", "0.98329")
    assert measures.told_apart(0.5, 0.75) == ("0.5", "0.75")
    assert measures.told_apart(0.98331, 0.98331) == ("0.9833", "0.9833")
    assert measures.told_apart(1e6 + 0.25, 1e6) == ("1000000.2", "1000000")


@pytest.mark.parametrize(
    ("name", "q"),
    [
        ("p99_ms", 0.99),
        ("p50_ms", 0.5),
        ("ms_step_p99", 0.99),
        ("p999_ms", 0.999),
        ("ms_step", None),
        ("p_value", None),
    ],
)
def test_percentiles_are_known_by_their_names(name: str, q: float | None) -> None:
    assert measures.percentile_in(name) == q


def test_numbers_are_short_and_true() -> None:
    for value in (0.0, 1.0, 0.0123456, 123.456, 99999.0, 123456.0, 1e-7, 2.5e9, -0.00021, 0.999999):
        text = measures.short(value)
        assert len(text) <= 9 and float(text) == pytest.approx(value, rel=0.05)


def test_the_same_small_change_in_every_seed_is_judged_by_its_sign_alone() -> None:
    """Accuracies of 100 items move in steps: two equal steps are no certainty."""
    two, six = (paired(dict.fromkeys(range(n), 0.90), dict.fromkeys(range(n), 0.91)) for n in (2, 6))
    assert two is not None and two.p == 0.5 and not two.significant
    assert six is not None and six.p == pytest.approx(1 / 32) and six.significant
    same = unpaired([0.3, 0.3], [0.1 + 0.2] * 2)
    assert same is not None and same.p == 1.0


def test_nothing_is_what_is_alike_in_every_seed_and_not_what_cancels_out() -> None:
    """As it was: whatever has a mean change of 0 was "identical" and kept any limit."""
    for changes in ((0.01, -0.01), (50.0, -50.0, 0.0, 0.0), (3.0, -1.0, -2.0)):
        found = paired(dict.fromkeys(range(len(changes)), 0.0), dict(enumerate(changes)))
        assert found is not None and found.mean == 0 and not found.nothing, found
    welch = unpaired([50.0] * 3, [0.0, 50.0, 100.0])
    assert welch is not None and welch.p == 1.0 and not welch.nothing
    equal = [paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}), unpaired([0.3, 0.3], [0.1 + 0.2] * 3)]
    assert all(one is not None and one.nothing for one in equal)
    assert [one.p_all for one in corrected([welch, *(one for one in equal if one is not None)])] == [1.0] * 3


def test_two_sides_without_spread_are_told_apart_by_their_order_alone() -> None:
    """As it was: no p, so that two seeds a side broke a limit by their mean alone."""
    two, four = (unpaired([100.0] * n, [150.0] * n) for n in (2, 4))
    assert two is not None and two.p == pytest.approx(1 / 3) and two.unseen
    assert four is not None and four.p == pytest.approx(2 / 70) and not four.unseen


def test_what_rounding_alone_holds_apart_has_no_spread() -> None:
    """As it was: the same change of two large numbers, rounded: p = 1e-9, two seeds."""
    before = {0: 1_000_000.3, 1: 2_000_000.7}
    found = paired(before, {seed: value + 0.1 for seed, value in before.items()})
    assert found is not None and found.method == "sign" and found.p == 0.5 and found.unseen


def test_quantised_results_of_two_seeds_rarely_cry_wolf() -> None:
    generator = np.random.default_rng(2)
    alarms = sum(
        bool(one and one.significant)
        for a, b in generator.binomial(100, 0.9, size=(2000, 2, 2))
        for one in [paired(dict(enumerate(a / 100)), dict(enumerate(b / 100)))]
    )
    assert alarms < 0.06 * 2000


def test_of_two_runs_the_ratio_of_means_holds_what_their_blocks_allow() -> None:
    """Steps that follow from each other: an interval as if they did not would hold the truth too seldom."""
    rng = np.random.default_rng(3)
    held = tries = 0
    for _ in range(200):
        noise = [np.convolve(rng.normal(size=1010), np.ones(11) / 11, "valid") for _ in range(2)]
        found = within.ratio_of_means(3 * (10 + noise[0]), 10 + noise[1])
        if found is not None and found.low is not None and found.high is not None:
            tries, held = tries + 1, held + (found.low <= 3 <= found.high)
    assert tries > 150 and held >= 0.88 * tries, (held, tries)
    assert within.ratio_of_means(np.ones(30), np.ones(400)) is None


def test_sides_in_turns_share_what_disturbs_both() -> None:
    rng = np.random.default_rng(4)
    load = np.exp(rng.normal(0, 1, 60))
    sides = [scale * load * np.exp(rng.normal(0, 0.02, 60)) for scale in (2.5, 1.0)]
    found = within.ratio_in_turns(*sides)
    assert found is not None and found.low is not None and found.high is not None
    assert found.low <= 2.5 <= found.high and found.high / found.low < 1.3, found
    assert within.ratio_in_turns(sides[0][:19], sides[1]) is None
