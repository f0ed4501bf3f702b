"""What papers say of a point, held against what was measured here, in a plain sentence each: reproduced, not
reproduced, or not decidable yet. Suites write it down (`stated`, `law`); nothing here knows any paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lossbench.report import inference
from lossbench.report.gathered import Gathered
from lossbench.report.groups import Group, asked_loss
from lossbench.report.inference import Difference
from lossbench.results.naming import key_of, point_name

SAID = ("arm", "impair.0.profile.loss.percent")  # keys that are said otherwise: several under one name, the loss
LEAST = 3  # points that a law can be fitted to
WORK = ("strategy", "data", "model", "vocabulary", "steps", "epochs", "batch")  # what makes two runs comparable


def sentences(found: Gathered) -> list[str]:
    plans = {key_of(one.point): one.experiment for one in found.suite.plan.plan}
    groups = [group for group in found.groups if not group.row]
    if found.suite.verdict == "failed" or len(groups) < 2:
        return []
    said = [
        _of_change(base, group, claim)
        for group in groups
        for claim in plans.get(key_of(group.point), {}).get("stated") or []
        if (base := _loss_free(group, groups, plans)) is not None
    ]
    return [text for text in (*said, *_of_laws(groups, plans)) if text]


def _loss_free(group: Group, groups: Sequence[Group], plans: dict[str, dict[str, Any]]) -> Group | None:
    """The point that a claim is about: without loss, and else the same work, whatever the other tables compare with."""
    wanted = _work(plans.get(key_of(group.point), {}))
    fitting = (one for one in groups if one is not group and asked_loss(one) == 0)
    return next((one for one in fitting if _work(plans.get(key_of(one.point), {})) == wanted), None)


def _work(experiment: dict[str, Any]) -> list[Any]:
    options = (experiment.get("workload") or {}).get("options") or {}
    return [(experiment.get("topology") or {}).get("hosts"), *(options.get(name) for name in WORK)]


def _of_change(base: Group, group: Group, claim: dict[str, Any]) -> str:
    """`claim`: at most so much more than without loss, in percent; of what should be high at least."""
    name, most = str(claim["measure"]), float(claim["change_percent"])
    change = inference.paired(base.sound(name), group.sound(name))
    if change is None or not change.base:
        return ""
    here = 100 * change.mean / abs(change.base)
    says = f"{group.name}: {name.replace('_', ' ')} {here:+.1f} %{_ends(change)} against {base.name}"
    high = group.measure(name).better == "high"
    return f"{says}; {claim['source']}: at {'least' if high else 'most'} {most:+.1f} %: {_verdict(change, most, high)}."


def _ends(change: Difference) -> str:
    if change.low is None or change.high is None:
        return f" ({change.n} {'seed' if change.n == 1 else 'seeds'})"
    low, high = (100 * end / abs(change.base) for end in (change.low, change.high))
    return f" ({low:+.1f} to {high:+.1f}, {change.n} seeds)"


def _verdict(change: Difference, said: float, better_high: bool) -> str:
    if change.low is None or change.high is None or change.unseen:
        return "not decidable with so few seeds"
    low, high = (100 * end / abs(change.base) for end in (change.low, change.high))
    within, beyond = (low >= said, high < said) if better_high else (high <= said, low > said)
    return "reproduced" if within else "not reproduced" if beyond else "not decidable yet"


def _of_laws(groups: Sequence[Group], plans: dict[str, dict[str, Any]]) -> list[str]:
    """One sentence for every law and loss (and whatever else is swept): the slope between the logarithms of points,
    each the mean of its seeds."""
    laws = {key_of(law): law for plan in plans.values() for law in plan.get("law") or []}
    out = []
    for law in laws.values():
        alike: dict[tuple[float, str], list[tuple[float, float]]] = {}
        for group in groups:
            mean = inference.estimate(list(group.sound(law["measure"]).values()))
            size = _size(plans.get(key_of(group.point), {}), law["over"])
            if mean is not None and mean.mean > 0 and size > 0:
                place = (asked_loss(group), _besides(group, law["over"]))
                alike.setdefault(place, []).append((math.log(size), math.log(mean.mean)))
        out += [_fitted(law, *place, points) for place, points in sorted(alike.items()) if len(points) >= LEAST]
    return out


def _fitted(law: dict[str, Any], loss: float, name: str, points: list[tuple[float, float]]) -> str:
    slope = inference.slope(points)
    if slope is None:
        return ""
    what = " x ".join(str(key).rpartition(".")[2] for key in law["over"])
    wanted = float(law["exponent"])
    if slope.low <= wanted <= slope.high:
        agrees = "not decidable yet" if slope.low <= 0 <= slope.high else "agrees"
    else:
        agrees = "the exponent here is smaller" if slope.high < wanted else "the exponent here is larger"
    at = f"at {100 * loss:g} % loss" if loss else "without loss"
    what_else = f" ({name})" if name else ""
    says = f"{law['measure'].replace('_', ' ')} {at}{what_else} goes as ({what})^{slope.mean:.2f}"
    ends = f"({slope.low:.2f} to {slope.high:.2f}, {len(points)} points)"
    return f"{says} {ends}; {law['source']}: {wanted:g}: {agrees}."


def _besides(group: Group, over: Sequence[str]) -> str:
    """What else is swept there, by name."""
    others = {
        k: v for k, v in group.point.items() if k not in SAID and not any(f"{o}.".startswith(f"{k}.") for o in over)
    }
    return point_name(others) if others else ""


def _size(experiment: dict[str, Any], keys: Sequence[str]) -> float:
    """The product of what stands under these dotted keys; 0 where one of them does not."""
    out = 1.0
    for key in keys:
        value: Any = experiment
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return 0.0
        out *= value
    return out
