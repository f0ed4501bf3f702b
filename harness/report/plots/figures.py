"""Which pictures a suite's results make; each draws itself only where its data is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lossbench.report.content import Content
from lossbench.report.groups import Group
from lossbench.report.plots.canvas import MOST_CURVES, MOST_LINES, STYLE, Panel, Picture, alike, looks, panel
from lossbench.report.plots.colocation import by_rate, cost_by_loss, speed_up_by_loss
from lossbench.report.plots.curves import Curve, Curves, without_zeros
from lossbench.report.plots.distributions import bursts, slower_than
from lossbench.report.plots.library import drawing
from lossbench.report.plots.over_time import backlog_over_time, drops_over_time, rates_over_time, uplinks_over_time
from lossbench.report.plots.paper import beside_the_paper
from lossbench.report.plots.sweeps import against_the_sweep, against_theory, times_against_loss
from lossbench.results.naming import key_of, word


def all_pictures(content: Content) -> list[Picture]:
    """In the order a reader wants them; drawn once, for page and files."""
    if content.pictures is not None:
        return content.pictures
    drawn = Curves([group for group in content.groups if not group.row], most=MOST_LINES)
    makers: list[Callable[[], Picture | None]] = [
        lambda: beside_the_paper(drawn),
        lambda: speed_up_by_loss(content),
        lambda: cost_by_loss(content),
        lambda: by_rate(content),
        lambda: against_the_sweep(content),
        lambda: times_against_loss(content),
        lambda: convergence(drawn),
        lambda: convergence_in_time(drawn),
        lambda: drift_plot(drawn),
        lambda: against_theory(content),
        lambda: slower_than(content),
        lambda: backlog_over_time(content),
        lambda: uplinks_over_time(content),
        lambda: drops_over_time(content),
        lambda: rates_over_time(content),
        lambda: bursts(content),
    ]
    content.problems += drawn.problems
    with drawing(STYLE):
        some = [replace(picture, again=make) for make in makers if (picture := make()) is not None]
        content.pictures = _telling_first(some)
        for picture in content.pictures:
            picture.finish()
    return content.pictures


def _telling_first(pictures: list[Picture]) -> list[Picture]:
    """Drift before loss where its lines lie further apart: curves that coincide are no beginning."""
    spread = {one.name: max(panel.spread() for panel in one.panels) for one in pictures}
    if spread.get("drift", 0.0) <= spread.get("convergence", math.inf):
        return pictures
    drift = next(one for one in pictures if one.name == "drift")
    others = [one for one in pictures if one is not drift]
    place = [one.name for one in others].index("convergence")
    return [*others[:place], drift, *others[place:]]


def convergence(drawn: Curves) -> Picture | None:
    panels = _panels(drawn, drawn.loss, "training loss", "step")
    says = "Mean over workers, geometric mean over seeds; a band is a 95 % t-interval over seeds (from three on)."
    says += " ?: not proven, or simulated." if any(drawn.label(g).endswith("?") for g in drawn.groups) else ""
    return Picture("convergence", "Training loss by step", says + drawn.left_out, panels) if panels else None


def convergence_in_time(drawn: Curves) -> Picture | None:
    panels = _panels(drawn, drawn.loss_in_time, "training loss", "seconds")
    says = "The same against the clock, from the end of the first step; only runs whose times are valid."
    return Picture("convergence_in_time", "Training loss by time", says + drawn.left_out, panels) if panels else None


def drift_plot(drawn: Curves) -> Picture | None:
    zero = [drawn.label(group) for group in drawn.groups if (one := drawn.drift(group)) and not float(np.max(one.y))]

    def found(group: Group) -> Curve | None:
        one = drawn.drift(group)
        return without_zeros(one) if one is not None and float(np.max(one.y)) > 0 else None

    panels = _panels(drawn, found, "squared distance", "step", log=True)
    says = "How far two workers' models are apart, on a logarithmic scale."
    says += f" Exactly zero, and not drawn: {', '.join(zero)}." if zero else ""
    return Picture("drift", "Drift", says + drawn.left_out, panels) if panels else None


def _panels(drawn: Curves, of: Callable[[Group], Curve | None], y: str, x: str, *, log: bool = False) -> list[Panel]:
    """All curves of one kind: in one panel if they are few, else in small multiples."""
    curves = {id(group): found for group in drawn.groups if (found := of(group)) is not None}
    out: list[Panel] = []
    for title, key, some in shared_out([group for group in drawn.groups if id(group) in curves]):
        one = panel(title)
        styles = _styles(drawn.groups, key)
        for group in some:
            name, look = drawn.label(group), styles[_without(group, key)]
            one.curve(curves[id(group)], (name.replace(title, "", 1).strip() if title else name) or name, look)
        one.axes.set(xlabel=x, ylabel=y)
        out.append(one)
    if out and (log or _wide([found.y for found in curves.values()])):
        for one in out:
            one.axes.set_yscale("log")
    alike(out)
    first = max(out, key=Panel.spread, default=None)  # of small multiples the one that shows most; the others as swept
    return [first, *(one for one in out if one is not first)] if first is not None else []


def _styles(groups: Sequence[Group], key: str) -> dict[str, dict[str, Any]]:
    """Of all groups, drawn here or not: a strategy has its colour in every picture."""
    points = {_without(group, key): {k: v for k, v in group.point.items() if k != key} for group in groups}
    return dict(zip(points, looks(points.values()), strict=True))


def _without(group: Group, key: str) -> str:
    return key_of({k: v for k, v in group.point.items() if k != key})


def shared_out(groups: Sequence[Group]) -> list[tuple[str, str, list[Group]]]:
    """(title, key, groups) of every panel: few curves each, by the values of a swept thing, in as few panels as
    possible; else six by six."""
    if len(groups) <= MOST_CURVES:
        return [("", "", list(groups))] if groups else []
    found: list[list[tuple[str, str, list[Group]]]] = []
    for key in dict.fromkeys(key for group in groups for key in group.point):
        parts: dict[str, list[Group]] = {}
        for group in groups:
            parts.setdefault(word(group.point.get(key, "")), []).append(group)
        if len(parts) > 1 and max(map(len, parts.values())) <= MOST_CURVES:
            found.append([(value, key, some) for value, some in parts.items()])
    if found:
        return min(found, key=len)
    return [("", "", list(groups[n : n + MOST_CURVES])) for n in range(0, len(groups), MOST_CURVES)]


def _wide(values: list[Any]) -> bool:
    low, high = (float(end([end(v) for v in values])) for end in (np.min, np.max))
    return low > 0 and high / low > 20
