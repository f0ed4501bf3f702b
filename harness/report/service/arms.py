"""Runs of a web service beside learning, arm by arm: how fast the one was, what the other lost and learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.report import inference
from lossbench.report.groups import Group
from lossbench.report.inference import Estimate
from lossbench.results import measures
from lossbench.results.naming import key_of

WEB = "web."
SERVER = f"{WEB}server"
AT_LOSS = 0.10  # the paper's number is read off there
BySeed = dict[int, float]


@dataclass(kw_only=True)
class Arm:
    """One way to share the network, at one rate: numbers by seed."""

    name: str
    load: tuple[Any, ...]  # what must be alike for two arms to be compared: rate, buffer, hosts
    equivalent: float  # requests a second at the modelled speed
    factor: float
    priority: float | None
    alone: bool
    learner: str  # what learns beside it; empty for a recording that is replayed
    queue: str = "fifo"  # of a switch port
    web: dict[str, BySeed] = field(default_factory=dict)
    loss: BySeed = field(default_factory=dict)
    learning: dict[str, BySeed] = field(default_factory=dict)
    refused: frozenset[int] = frozenset()  # seeds with so much that was never answered that there is no mean
    void: frozenset[int] = frozenset()  # seeds whose mean may not be averaged
    folders: tuple[str, ...] = ()  # of its runs
    places: dict[int, Path] = field(default_factory=dict)  # the same by seed
    served: frozenset[str] = frozenset()  # what answered, in all its runs

    @property
    def shared(self) -> bool:
        """First come, first served, one queue for all: others may be shared too, and are fair in a way of their own."""
        return self.priority == 0 and self.queue == "fifo"

    @property
    def ladder(self) -> tuple[Any, ...]:
        """All but the rate and the priority: arms with the same are one way to share, tried at one rate after the
        other."""
        return (*self.load[1:], self.learner, self.queue)


def arms_of(groups: Iterable[Group], *, believed: bool = True) -> list[Arm]:
    """In the order of the plan; empty where no web service ran. Not `believed`: with what may not be averaged."""
    by_point: dict[str, list[Group]] = {}
    for group in groups:
        by_point.setdefault(key_of(group.point), []).append(group)
    out = []
    for here in by_point.values():
        others = [group for group in here if f"{WEB}n" not in group.values]  # a mean may be missing
        several = len(here) - len(others) > 1
        out += [_arm(group, others, several=several, believed=believed) for group in here if group not in others]
    return out


def _arm(group: Group, others: list[Group], *, several: bool, believed: bool) -> Arm:
    def numbers(one: Group, name: str) -> BySeed:
        return one.sound(name) if believed else one.doubtful(name)

    spec = _experiment(group)
    options = _of(spec, "workload", "options")
    workload = str(_of(spec, "workload").get("name", ""))
    shaping = _of(spec, "shaping")
    asked = (group.doubtful(f"{WEB}{name}") for name in ("offered", "equivalent", "factor"))
    offered, equivalent, factor = (next(iter(values.values()), math.nan) for values in asked)
    alone = workload == "noop" or (workload == "replay" and not measures.number(options.get("mbit", 1)))
    rest = [str(value) for key, value in group.point.items() if "priority" not in key and key != "arm"]
    if workload == "training":
        rest = []  # the service's own load does not depend on what learns beside it
    arm = Arm(
        name=arm_name(group) + (f" at {offered:g}/s" if several else ""),
        load=(offered, shaping.get("buffer_kb"), _of(spec, "topology").get("hosts"), *rest),
        equivalent=equivalent,
        factor=factor,
        priority=measures.number(shaping.get("priority")),
        alone=alone,
        learner=_learner(workload, options),
        queue=str(shaping.get("queue") or "fifo"),
        folders=tuple(dict.fromkeys(str(run.folder) for run in group.runs)),
        places={run.summary.seed: run.folder for run in group.runs},
        served=frozenset(str(row[SERVER]) for run in group.runs for row in run.summary.rows if SERVER in row),
    )
    arm.web = {name.removeprefix(WEB): numbers(group, name) for name in group.values if name.startswith(WEB)}
    answered = {value.run.summary.seed for value in group.values.get(f"{WEB}mean_ms", [])}
    arm.refused = frozenset(seed for seed, lost in arm.web.get("failed", {}).items() if lost and seed not in answered)
    arm.void = frozenset(answered - set(arm.web.get("mean_ms", {})))
    arm.loss = arm.web.get("learning_loss", {})  # of this rate alone, where there were several
    for other in others:
        if not several:  # the whole run's loss is that of no rate
            arm.loss = arm.loss or _lost(other, numbers)
        arm.learning |= {name: numbers(other, name) for name in other.values}
    return arm


def arm_name(group: Group) -> str:
    """A bare number says nothing."""
    name = group.name.removesuffix(f": {group.row}")
    return f"priority {name}" if set(group.point) == {"shaping.priority"} else name


def _learner(workload: str, options: dict[str, Any]) -> str:
    """With all that may change what it sends: arms are compared with one queue for the very same learner. A replay that
    saturates links is another load than its recording."""
    if workload in ("replay", "noop"):
        return "saturated" if options.get("saturate") and workload == "replay" else ""
    parts = (options.get("strategy") or workload, options.get("policy"), options.get("rto_min_ms"))
    return " ".join(str(part) for part in parts if part is not None)


def _lost(group: Group, numbers: Callable[[Group, str], BySeed]) -> BySeed:
    """Of the learning packets: counted by who replayed them, or missed by who trained."""
    if "learning_loss" in group.values:
        return numbers(group, "learning_loss")
    halves = [numbers(group, name) for name in ("arrived_1", "arrived_2")]
    return {seed: 1 - (halves[0][seed] + halves[1][seed]) / 2 for seed in halves[0] if seed in halves[1]}


def _experiment(group: Group) -> dict[str, Any]:
    found = group.runs[0].manifest.get("experiment") if group.runs else None
    return found if isinstance(found, dict) else {}


def _of(spec: Any, *path: str) -> dict[str, Any]:
    for part in path:
        spec = spec.get(part) if isinstance(spec, dict) else None
    return spec if isinstance(spec, dict) else {}


def partner(arm: Arm, arms: Iterable[Arm], *, alone: bool = False) -> Arm | None:
    """The arm at the same load with one queue for all and the same learner, or with the service alone."""
    for one in arms:
        fits = one.alone if alone else one.shared and not one.alone and one.learner == arm.learner
        if one.load == arm.load and fits and one is not arm:
            return one
    return None


def ratio(over: Mapping[int, float], under: Mapping[int, float]) -> Estimate | None:
    """Mean of over / under, paired by seed, by their logarithms."""
    logs = [math.log(over[seed] / under[seed]) for seed in over if seed in under and over[seed] > 0 and under[seed] > 0]
    found = inference.estimate(logs)
    if found is None:
        return None
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return Estimate(n=found.n, mean=math.exp(found.mean), sd=found.sd, low=low, high=high, method=found.method)


def taken_back(arm: Arm, shared: Arm | None, alone: Arm | None) -> Estimate | None:
    """Share of the time that one queue for all costs the service, which this arm gives back to it: of the means over
    all seeds, also of those in which sharing cost nothing."""
    if shared is None or alone is None or arm is shared:
        return None
    mean = [one.web.get("mean_ms", {}) for one in (arm, shared, alone)]
    seeds = [seed for seed in mean[0] if seed in mean[1] and seed in mean[2]]
    cost = [mean[1][seed] - mean[2][seed] for seed in seeds]
    if sum(cost) <= 0:
        return None
    return inference.ratio_of_means([mean[1][seed] - mean[0][seed] for seed in seeds], cost)


def loads(arms: Iterable[Arm]) -> dict[tuple[Any, ...], str]:
    """What replayed learning was put beside, each with its name: the rate, and the buffer where there are several."""
    known = {arm.load: arm for arm in arms if not arm.alone and not arm.learner and math.isfinite(arm.equivalent)}
    several = len({load[1] for load in known}) > 1
    return {load: f"{arm.equivalent:g}/s" + (f", {load[1]:g} kB" if several else "") for load, arm in known.items()}


def curve(arms: list[Arm], load: tuple[Any, ...], name: str = "mean_ms") -> list[tuple[Arm, float, Estimate]]:
    """(arm, realised learning loss, speed-up) of the arms at one load, by rising loss; of priorities, not of other
    queues."""
    out = []
    for arm in (one for one in arms if one.queue == "fifo"):
        base = arm if arm.shared else partner(arm, arms)
        if arm.alone or base is None or arm.load != load or not arm.loss:
            continue
        found = ratio(base.web.get(name, {}), arm.web.get(name, {}))
        if found is not None:
            out.append((arm, float(np.mean(list(arm.loss.values()))), found))
    return sorted(out, key=lambda one: one[1])


def speed_up_at(arms: list[Arm], load: tuple[Any, ...], loss: float = AT_LOSS) -> Estimate | None:
    """Of the mean, on the curve of all seeds that all its arms have, between the two that lost less and more than this.
    No seed is left out for where its own curve ends."""
    known: list[tuple[BySeed, BySeed]] = []
    for arm, _, _ in curve(arms, load):
        base = arm if arm.shared else partner(arm, arms)
        over, under = ({} if one is None else one.web.get("mean_ms", {}) for one in (base, arm))
        known.append((arm.loss, {seed: math.log(over[seed] / under[seed]) for seed in over if seed in under}))
    seeds = sorted(set.intersection(*(set(lost) & set(logs) for lost, logs in known))) if known else []

    def at(some: Sequence[int]) -> float | None:
        points = [
            (np.mean([lost[seed] for seed in some]), math.exp(np.mean([logs[seed] for seed in some])))
            for lost, logs in known
        ]
        x, y = np.array(sorted(points)).T
        return float(np.interp(loss, x, y)) if x[0] <= loss <= x[-1] else None

    return inference.jackknife(seeds, at)


def falling(arms: list[Arm], load: tuple[Any, ...]) -> list[tuple[Arm, Arm, Estimate]]:
    """Steps of the curve on which more loss makes the service slower, surely: the arms, and the speed-up between."""
    points = [arm for arm, _, _ in curve(arms, load)]
    found = [
        (one, other, ratio(one.web.get("mean_ms", {}), other.web.get("mean_ms", {}))) for one, other in pairwise(points)
    ]
    return [(one, other, by) for one, other, by in found if by is not None and by.high is not None and by.high < 1]
