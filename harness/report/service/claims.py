"""What a suite was made to show, judged by the ends of intervals: strict priority leaves the service its tail, and the
lost packets leave the model its accuracy."""

from __future__ import annotations

from collections.abc import Iterable

from lossbench.report import inference
from lossbench.report.gathered import Gathered
from lossbench.report.groups import baseline_of
from lossbench.report.inference import Estimate
from lossbench.report.service import window
from lossbench.report.service.arms import Arm, partner, ratio

TAIL = 0.15  # of the service's p99 when it is alone
POINTS = 1.0  # of accuracy


def tail_against_alone(arm: Arm, arms: Iterable[Arm]) -> Estimate | None:
    """Its p99 by what it is alone, of the same requests."""
    alone = None if arm.alone else partner(arm, arms, alone=True)
    return None if alone is None else ratio(*window.tails(arm, alone))


def tails(arms: list[Arm], planned: int = 0) -> list[str]:
    """Of strict priority: is the tail what it is alone?"""
    out = []
    for arm in arms:
        tail = tail_against_alone(arm, arms) if arm.priority == 1 else None
        if tail is not None:
            verdict = _judged(tail.low, tail.high, low=1 - TAIL, high=1 + TAIL, margin=f"{TAIL:.0%}")
            where = f"Beside {arm.name}" if arm.learner else f"With {arm.name}"
            out.append(f"{where} the service's p99 is {times(tail, planned)} x what it is alone: {verdict}.")
    return out


def accuracy(found: Gathered, arms: list[Arm]) -> list[str]:
    """Of live training beside the service that lost packets, against the line that others are compared with."""
    base = baseline_of(found.groups, found.baseline) if found.groups else None
    known = base.sound("accuracy") if base is not None else {}
    said = []
    for arm in arms:
        change = inference.paired(known, arm.learning.get("accuracy", {})) if any(arm.loss.values()) else None
        if base is None or change is None or arm.priority != 1 or set(arm.folders) & {str(r.folder) for r in base.runs}:
            continue
        low, high = (None if end is None else 100 * end for end in (change.low, change.high))
        between = f"{low:+.2f} to {high:+.2f}, {change.n} seeds" if low is not None and high is not None else "one seed"
        verdict = _judged(low, high, low=-POINTS, high=POINTS, margin=f"{POINTS:g}")
        said.append(f"{arm.name} {100 * change.mean:+.2f} ({between}): {verdict}")
    return [f"Accuracy against {base.name}, in points: {'; '.join(said)}."] if base is not None and said else []


def served(arms: Iterable[Arm]) -> list[str]:
    """That arms are not alike in what answered: then they may differ for that."""
    names: dict[frozenset[str], list[str]] = {}
    for arm in arms:
        if arm.served:
            names.setdefault(arm.served, []).append(arm.name)
    if len(names) < 2 and all(len(one) < 2 for one in names):
        return []
    by = "; ".join(f"{' and '.join(sorted(which))}: {', '.join(some)}" for which, some in names.items())
    return [f'Arms were not served alike ({by}): they may differ for that. Give server = "builtin", or run anew.']


def _judged(from_: float | None, to: float | None, *, low: float, high: float, margin: str) -> str:
    """By both ends of the interval: that no difference was found is no sameness."""
    if from_ is None or to is None:
        return f"if within {margin} one seed can't tell"
    if low <= from_ and to <= high:
        return f"within {margin}"
    return f"beyond {margin}" if from_ > high or to < low else f"if within {margin} so few seeds can't tell"


def times(one: Estimate, planned: int = 0) -> str:
    """`planned`: how many seeds there should be; said where there are fewer."""
    of = f" of {planned}" if planned > one.n else ""
    if one.n == 1:
        return f"{one.mean:.2f} (one seed{of})"
    if one.low is None or one.high is None:
        return f"{one.mean:.2f} ({one.n}{of} seeds, no interval)"
    return f"{one.mean:.2f} ({one.low:.2f} to {one.high:.2f}, {one.n}{of} seeds)"
