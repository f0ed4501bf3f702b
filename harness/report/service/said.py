"""What came out for a web service beside learning, in sentences: how much faster it is, what learning pays for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lossbench.report.gathered import Gathered
from lossbench.report.service import claims
from lossbench.report.service.arms import (
    AT_LOSS,
    WEB,
    Arm,
    BySeed,
    arms_of,
    falling,
    loads,
    partner,
    ratio,
    speed_up_at,
)
from lossbench.report.service.claims import times
from lossbench.report.service.cost import Cost, costs
from lossbench.results.measures import short

SHARED_QUEUE = "fifo"  # first come, first served: what "one queue for all" means


def sentences(found: Gathered) -> list[str]:
    """Empty where no service ran beside learning. Where rates were searched for, what was found is said, not each."""
    arms = arms_of(found.groups)
    searched = costs(arm for arm in arms if arm.queue == SHARED_QUEUE)
    planned = max((group.planned for group in found.groups), default=0)
    said = (
        _carried(searched)
        if searched
        else [
            *_at_loss(arms, planned),
            *_falls(arms),
            *_against_sharing(arms),
            *claims.tails(arms, planned),
            *claims.accuracy(found, arms),
        ]
    )
    return [*said, *claims.served(arms), *_not_timed(found, arms)]


def _not_timed(found: Gathered, arms: list[Arm]) -> list[str]:
    """Where a reader waits for how fast it was: why that is not said."""
    if found.suite.verdict != "valid" or any(arm.web.get("mean_ms") for arm in arms):
        return []
    why = sorted({value.void for group in found.groups for value in group.void(f"{WEB}mean_ms")})
    return [f"How fast the service was is not said: {why[0]}."] if why else []


def _carried(lines: Sequence[Cost]) -> list[str]:
    """Of every target, and every buffer if there are several, the degree of priority that carries most."""
    out = []
    for target, apart in dict.fromkeys((one.target_ms, one.apart) for one in lines):
        here = [one for one in lines if (one.target_ms, one.apart) == (target, apart)]
        known = [one for one in here if one.rate is not None and one.cost is not None]
        best = max(known, key=lambda one: one.rate.mean if one.rate else 0.0, default=None)
        if best is None or best.rate is None or best.cost is None or not best.priority:
            continue
        loss = f", while learning loses {_share(best.loss.mean)}" if best.loss is not None else ""
        out.append(
            f"At a mean completion of {target:g} ms at the modelled speed{f' ({apart})' if apart else ''}, priority"
            f" {best.priority:g} carries {best.rate.mean:.0f} requests/s: a message costs {times(best.cost)} of what"
            f" it costs with one queue for all{loss}."
        )
    return out


def _at_loss(arms: list[Arm], planned: int) -> list[str]:
    out = []
    for load, name in loads(arms).items():
        at = speed_up_at(arms, load)
        if at is not None:
            out.append(
                f"At {AT_LOSS:.0%} of learning loss and {name} the service is {times(at, planned)} x as fast as with"
                " one queue for all (mean completion)."
            )
    return out


def _falls(arms: list[Arm]) -> list[str]:
    """Where more loss does not make the service faster, as it should."""
    return [
        f"The curve falls at {name}: with {other.name} the service is {times(by)} x as fast as with {one.name}, though"
        " learning loses more."
        for load, name in loads(arms).items()
        for one, other, by in falling(arms, load)
    ]


def _against_sharing(arms: list[Arm]) -> list[str]:
    """Of every load and learner the arm that goes furthest."""
    out = []
    furthest: dict[tuple[object, ...], Arm] = {}
    for arm in arms:
        if arm.priority and not arm.alone and arm.loss and partner(arm, arms) is not None:
            key = (*arm.load, arm.learner)
            if key not in furthest or arm.priority > (furthest[key].priority or 0):
                furthest[key] = arm
    for arm in furthest.values():
        shared = partner(arm, arms)
        if shared is None or not shared.loss:
            continue
        faster = ratio(shared.web.get("mean_ms", {}), arm.web.get("mean_ms", {}))
        speed = f"the service is {times(faster)} x as fast, and " if faster is not None else ""
        lost = f"learning loses {_share(_mean(arm.loss))} of its packets instead of {_share(_mean(shared.loss))}"
        out.append(f"Against {shared.name}, with {arm.name}, {speed}{lost}.")
    return out


def _mean(values: BySeed) -> float:
    return float(np.mean(list(values.values())))


def _share(value: float) -> str:
    return f"{short(100 * value)} %"
