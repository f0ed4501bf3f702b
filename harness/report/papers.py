"""What papers say of a point, held against what was measured here, in a plain sentence each: reproduced, not
reproduced, or not decidable yet. Suites write it down (`stated`, `law`); nothing here knows any paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lossbench.report import inference
from lossbench.report.gathered import Gathered
from lossbench.report.groups import Group, asked_loss
from lossbench.report.inference import Difference, Slope
from lossbench.results.naming import key_of, point_name

SAID = ("arm", "impair.0.profile.loss.percent")  # keys that are said otherwise: several under one name, the loss
LEAST = 3  # points that a law can be fitted to
NEAR = 0.25  # of a paper's figure: so near it, all of an interval, is reproduced
ROUNDING = 1e-6  # of an exponent
WORK = ("strategy", "data", "model", "vocabulary", "steps", "epochs", "batch")  # what makes two runs comparable


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """Of a point, and how it came out here."""

    group: Group
    base: Group
    claim: dict[str, Any]
    change: Difference


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A law at one loss, and one slope for each of what it goes over; None where points don't tell them apart."""

    law: dict[str, Any]
    loss: float
    name: str
    points: int
    slopes: list[Slope] | None


def sentences(found: Gathered) -> list[str]:
    """Intervals hold for all claims of a suite together."""
    plans = {key_of(one.point): one.experiment for one in found.suite.plan.plan}
    groups = [group for group in found.groups if not group.row]
    if found.suite.verdict == "failed" or len(groups) < 2:
        return []
    claims, laws = _claims(groups, plans), _laws(groups, plans)
    together = sum(one.change.p is not None for one in claims) + sum(len(one.slopes or ()) for one in laws)
    return [*(_of_change(one, together) for one in claims), *(_of_law(one, together) for one in laws)]


def _claims(groups: Sequence[Group], plans: dict[str, dict[str, Any]]) -> list[Claimed]:
    out = []
    for group in groups:
        for claim in plans.get(key_of(group.point), {}).get("stated") or []:
            base, name = _loss_free(group, groups, plans), str(claim["measure"])
            change = inference.paired(base.sound(name), group.sound(name)) if base is not None else None
            if base is not None and change is not None and change.base:
                out.append(Claimed(group=group, base=base, claim=claim, change=change))
    return out


def _loss_free(group: Group, groups: Sequence[Group], plans: dict[str, dict[str, Any]]) -> Group | None:
    """The point that a claim is about: without loss, and else the same work, whatever the other tables compare with."""
    wanted = _work(plans.get(key_of(group.point), {}))
    fitting = (one for one in groups if one is not group and asked_loss(one) == 0)
    return next((one for one in fitting if _work(plans.get(key_of(one.point), {})) == wanted), None)


def _work(experiment: dict[str, Any]) -> list[Any]:
    options = (experiment.get("workload") or {}).get("options") or {}
    return [(experiment.get("topology") or {}).get("hosts"), *(options.get(name) for name in WORK)]


def _of_change(one: Claimed, together: int) -> str:
    claim, change = one.claim, inference.among(one.change, together)
    name, figure = str(claim["measure"]), float(claim["change_percent"])
    digits = max(1, len(f"{figure:g}".partition(".")[2]))
    here = 100 * change.mean / abs(change.base)
    says = f"{one.group.name}: {name.replace('_', ' ')} {here:+.{digits}f} %{_ends(change, digits, together)}"
    high = one.group.measure(name).better == "high"
    word = ("at least" if high else "at most") if claim.get("at_most") else "about"
    verdict = _verdict(change, figure, better_high=high, at_most=bool(claim.get("at_most")))
    return f"{says} against {one.base.name}; {claim['source']}: {word} {figure:+g} %: {verdict}."


def _ends(change: Difference, digits: int, together: int) -> str:
    if change.low is None or change.high is None:
        return f" ({change.n} {'seed' if change.n == 1 else 'seeds'})"
    low, high = (100 * end / abs(change.base) for end in (change.low, change.high))
    of_all = f", 95 % of all {together} claims together" if together > 1 else ""
    return f" ({low:+.{digits}f} to {high:+.{digits}f}, {change.n} seeds{of_all})"


def _verdict(change: Difference, figure: float, *, better_high: bool, at_most: bool) -> str:
    if change.low is None or change.high is None or change.unseen:
        return "not decidable with so few seeds"
    low, high = (100 * end / abs(change.base) for end in (change.low, change.high))
    if at_most:
        within, beyond = (low >= figure, high < figure) if better_high else (high <= figure, low > figure)
        return "reproduced" if within else "not reproduced" if beyond else "not decidable yet"
    if abs(low - figure) <= NEAR * abs(figure) and abs(high - figure) <= NEAR * abs(figure):
        return "reproduced"
    if high < figure or low > figure:
        return f"not reproduced, {'below' if high < figure else 'above'} the paper's"
    return "not decidable yet"


def _laws(groups: Sequence[Group], plans: dict[str, dict[str, Any]]) -> list[Fitted]:
    """For every law and loss (and whatever else is swept): slopes between the logarithms of points, each the mean of
    its seeds. One slope over the product would let the one variable answer for the other."""
    laws = {key_of(law): law for plan in plans.values() for law in plan.get("law") or []}
    out = []
    for law in laws.values():
        alike: dict[tuple[float, str], list[tuple[list[float], float]]] = {}
        for group in groups:
            mean = inference.estimate(list(group.sound(law["measure"]).values()))
            sizes = [_size(plans.get(key_of(group.point), {}), key) for key in law["over"]]
            if mean is not None and mean.mean > 0 and min(sizes) > 0:
                place = (asked_loss(group), _besides(group, law["over"]))
                alike.setdefault(place, []).append(([math.log(size) for size in sizes], math.log(mean.mean)))
        out += [
            Fitted(law=law, loss=loss, name=name, points=len(points), slopes=inference.slopes(points))
            for (loss, name), points in sorted(alike.items())
            if len(points) >= LEAST
        ]
    return out


def _of_law(one: Fitted, together: int) -> str:
    law, bound = one.law, float(one.law["exponent"])
    at = f"at {100 * one.loss:g} % loss" if one.loss else "without loss"
    says = f"{law['measure'].replace('_', ' ')} {at}{f' ({one.name})' if one.name else ''}"
    names = [str(key).rpartition(".")[2] for key in law["over"]]
    beside = f" ({law['beside']})" if law.get("beside") else ""
    held = f"{law['source']}: at most {bound:g} of each{beside}"
    if one.slopes is None:
        return f"{says}: {one.points} points do not tell {' from '.join(names)}; {held}: not decided."
    ends = [slope.ends(together) for slope in one.slopes]
    if all(high <= bound + ROUNDING for _, high in ends):
        verdict = "consistent"
    else:
        verdict = "slower than the bound" if any(low > bound + ROUNDING for low, _ in ends) else "not decided"
    parts = [
        f"{name}^{slope.mean:.2f} ({low:.2f} to {high:.2f})"
        for name, slope, (low, high) in zip(names, one.slopes, ends, strict=True)
    ]
    of_all = f", 95 % of all {together} together" if together > 1 else ""
    return f"{says} goes as {' x '.join(parts)}, {one.points} points{of_all}; {held}: {verdict}."


def _besides(group: Group, over: Sequence[str]) -> str:
    """What else is swept there, by name."""
    others = {
        k: v for k, v in group.point.items() if k not in SAID and not any(f"{o}.".startswith(f"{k}.") for o in over)
    }
    return point_name(others) if others else ""


def _size(experiment: dict[str, Any], key: str) -> float:
    """What stands under this dotted key; 0 where no number does."""
    value: Any = experiment
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return 0.0 if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
