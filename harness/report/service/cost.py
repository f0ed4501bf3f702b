"""What a message costs (figure 7 of the RPS paper): how many requests a way to share carries at a mean completion."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lossbench.report import inference
from lossbench.report.inference import Estimate
from lossbench.report.service.arms import Arm

TARGETS_MS = (2.0, 5.0, 10.0)  # mean completion at the modelled speed
FEWEST_RATES = 3  # of a ladder


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one degree of priority, at one target. `cost`: the rate that one queue for all carries by the rate carried
    here, seed by seed; `loss` is learning's, there, where it is known."""

    target_ms: float
    apart: str  # which buffer, if there are several
    priority: float
    rate: Estimate | None
    loss: Estimate | None
    cost: Estimate | None
    beyond: str = ""  # why there is no rate
    between: str = ""  # rates that were tried, around it
    factor: float = 1.0
    folders: tuple[str, ...] = ()  # of the runs it stands on


def costs(arms: Iterable[Arm]) -> list[Cost]:
    """By target, then by priority; empty where no rates were tried one after the other."""
    ladders: dict[tuple[Any, ...], dict[float, list[Arm]]] = {}
    for arm in arms:
        if not arm.alone and arm.priority is not None and math.isfinite(arm.equivalent):
            ladders.setdefault(arm.ladder, {}).setdefault(arm.priority, []).append(arm)
    ladders = {key: here for key, here in ladders.items() if max(map(len, here.values())) >= FEWEST_RATES}
    return [
        one
        for target in TARGETS_MS
        for rest, here in ladders.items()
        for one in _costs(here, target, _told_apart(rest, list(ladders)))
    ]


def carried(points: list[tuple[float, float]], target_ms: float) -> float | None:
    """The highest rate whose mean completion is at most the target: (rate, mean), interpolated by the logarithm of the
    mean, which rises the faster the fuller links are; None if not reached, or if a mean around it (nan) is void."""
    between = around(points, target_ms)
    if between is None or any(between[0] < rate < between[1] for rate, mean in points if math.isnan(mean)):
        return None
    rates, means = _ladder(points)
    return float(np.interp(math.log(target_ms), np.log(means), rates))


def around(points: list[tuple[float, float]], target_ms: float) -> tuple[float, float] | None:
    """The rates between which it lies: two that were tried and may be believed."""
    rates, means = _ladder(points)
    if not len(rates) or means[0] > target_ms or means[-1] < target_ms:
        return None
    above = int(np.searchsorted(means, target_ms))
    return float(rates[max(above - 1, 0)]), float(rates[above])


def _ladder(points: list[tuple[float, float]]) -> tuple[Any, Any]:
    known = sorted((rate, mean) for rate, mean in points if not math.isnan(mean))
    rates, means = np.array(known).reshape(-1, 2).T
    return rates, np.maximum.accumulate(means)


def _told_apart(rest: tuple[Any, ...], among: list[tuple[Any, ...]]) -> str:
    """What differs from the others, the buffer by its name."""
    if len(among) == 1:
        return ""
    if len({one[0] for one in among}) == len(among):
        return f"{rest[0]:g} kB"
    return ", ".join(str(part) for part in rest if part not in ("", None))


def _costs(ladders: dict[float, list[Arm]], target: float, apart: str) -> list[Cost]:
    """Of arms that differ in rate and priority alone."""
    reached = {priority: _reached(ladder, target) for priority, ladder in ladders.items()}
    shared, out = reached.get(0.0, {}), []
    for priority, here in sorted(reached.items()):
        both = [seed for seed in here if seed in shared]
        lost = [loss for seed in both or here if (loss := here[seed][1]) is not None]
        bound = _bound(ladders[priority], here, target)
        if bound or _bound(ladders.get(0.0, []), shared, target):
            both = []  # what is left are seeds chosen by how they came out
        arms = [*ladders[priority], *(ladders.get(0.0, []) if priority else [])]
        out.append(
            Cost(
                target_ms=target,
                apart=apart,
                priority=priority,
                rate=None if bound else inference.estimate([rate for rate, _ in here.values()]),
                loss=None if bound else inference.estimate(lost),
                cost=inference.estimate([shared[seed][0] / here[seed][0] for seed in both]),
                beyond=bound or ("" if here else _beyond(ladders[priority], target)),
                between=_between(ladders[priority], target) if here else "",
                factor=ladders[priority][0].factor,
                folders=tuple(dict.fromkeys(folder for arm in arms for folder in arm.folders)),
            )
        )
    return out


def _by_seed(ladder: list[Arm]) -> dict[int, list[Arm]]:
    """Rates that were tried, with their mean; infinite where so much was never answered that there is none."""
    seeds = {seed for arm in ladder for seed in arm.web.get("mean_ms", {})}
    found = {seed: [arm for arm in ladder if _tried(arm, seed)] for seed in seeds}
    return {seed: here for seed, here in found.items() if len(here) >= FEWEST_RATES}


def _tried(arm: Arm, seed: int) -> bool:
    return seed in arm.web.get("mean_ms", {}) or seed in arm.refused or seed in arm.void


def _means(arms: list[Arm], seed: int) -> list[tuple[float, float]]:
    """Not a number where it is void."""
    without = {arm.equivalent: math.nan if seed in arm.void else math.inf for arm in arms}
    return [
        (arm.equivalent, arm.web.get("mean_ms", {}).get(seed, without[arm.equivalent]) / arm.factor) for arm in arms
    ]


def _between(ladder: list[Arm], target_ms: float) -> str:
    """Of all seeds."""
    found = [around(_means(here, seed), target_ms) for seed, here in _by_seed(ladder).items()]
    known = [one for one in found if one is not None]
    return f"{min(low for low, _ in known):g} to {max(high for _, high in known):g}" if known else ""


def _reached(ladder: list[Arm], target_ms: float) -> dict[int, tuple[float, float | None]]:
    """seed -> (the rate that is carried at this mean, learning loss there)."""
    out = {}
    for seed, here in _by_seed(ladder).items():
        rate = carried(_means(here, seed), target_ms)
        if rate is not None:
            out[seed] = (rate, _loss_at(rate, {arm.equivalent: arm.loss.get(seed) for arm in here}))
    return out


def _loss_at(rate: float, known: dict[float, float | None]) -> float | None:
    """Between the two rates that were tried around it; None where one of them does not know (learning that is always
    under way has no moment at which it could be counted)."""
    below, above = max(one for one in known if one <= rate), min(one for one in known if one >= rate)
    low, high = known[below], known[above]
    if low is None or high is None:
        return None
    return float(np.interp(rate, (below, above), (low, high))) if above > below else low


def _bound(ladder: list[Arm], reached: dict[int, tuple[float, float | None]], target_ms: float) -> str:
    """Where some seeds reach the target and others carry more than was tried, or less: the mean of all lies beyond the
    one with their last, or first, rate in their place. Empty where no seed is beyond."""
    if not reached:
        return ""
    rates, above, below = [rate for rate, _ in reached.values()], 0, 0
    for seed, here in _by_seed(ladder).items():
        tried, means = _ladder(_means(here, seed))
        if seed not in reached and len(tried) and (means[-1] < target_ms or means[0] > target_ms):
            rates.append(float(tried[-1] if means[-1] < target_ms else tried[0]))
            above, below = above + (means[-1] < target_ms), below + (means[0] > target_ms)
    if not above + below:
        return ""
    return "-" if above and below else f"{'above' if above else 'below'} {sum(rates) / len(rates):.0f}"


def _beyond(ladder: list[Arm], target_ms: float) -> str:
    """More than was tried, or less; or where a rate between two that may be believed is void."""
    if between := _between(ladder, target_ms):
        return between
    tried = [_ladder(_means(here, seed)) for seed, here in _by_seed(ladder).items()]
    tried = [(rates, means) for rates, means in tried if len(rates)]
    if tried and all(means[-1] < target_ms for _, means in tried):
        return f"above {min(rates[-1] for rates, _ in tried):g}"
    if tried and all(means[0] > target_ms for _, means in tried):
        return f"below {max(rates[0] for rates, _ in tried):g}"
    return "-"
