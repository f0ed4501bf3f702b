"""Figures 6 and 7 of the RPS paper beside ours: what the service gains, and what a message costs, by learning loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lossbench.report import inference
from lossbench.report.content import Content
from lossbench.report.plots.canvas import COLOURS, Picture, looks, panel
from lossbench.report.plots.curves import Curve
from lossbench.report.plots.paper import paper
from lossbench.report.service.arms import Arm, arms_of, curve, loads
from lossbench.report.service.cost import costs


def speed_up_by_loss(content: Content) -> Picture | None:
    """Figure 6."""
    arms = arms_of(content.groups)
    names = loads(arms)
    lines = {load: points for load in names if len(points := curve(arms, load)) > 1}
    if not lines:
        return None
    panels = [panel(), panel()]
    drawn: set[float] = set()
    for number, load in enumerate(lines):
        look: Any = {"color": COLOURS[number % len(COLOURS)], "marker": "o"}
        for one, name in zip(panels, ("mean_ms", "p99_ms"), strict=True):
            points = curve(arms, load, name)
            x, y = [loss for _, loss, _ in points], [found.mean for _, _, found in points]
            low = [found.mean - (found.low if found.low is not None else found.mean) for _, _, found in points]
            high = [(found.high if found.high is not None else found.mean) - found.mean for _, _, found in points]
            one.points(x, y, f"ours, {names[load]}", look, errors=[low, high] if any(low) else None)
        rate = lines[load][0][0].equivalent
        theirs = paper().get("fig6", {}).get(f"lambda={rate:g}", [])
        if theirs and rate not in drawn:
            drawn.add(rate)
            panels[0].curve(
                Curve(*np.array(theirs).T), f"paper, {rate:g}/s", {"color": look["color"], "linestyle": ":"}
            )
    most = max(loss for points in lines.values() for _, loss, _ in points)
    for one, name in zip(panels, ("mean", "p99"), strict=True):
        reach = (0, min(1, 1.6 * most + 0.05))
        one.axes.set(xlabel="share of learning packets lost", ylabel=f"speed-up of the {name}", xlim=reach)
    says = "Lines: ours, genuine queues. Dotted: Yu et al. 2019, figure 6 (a packet simulation). Bars: 95 % over seeds."
    return Picture("speed_up", "What the service gains by learning loss", says, panels)


def by_rate(content: Content) -> Picture | None:
    """What the ladder of figure 7 saw: completion and learning loss at every rate that was tried."""
    ladders: dict[float, list[Arm]] = {}
    for arm in arms_of(content.groups):
        if not arm.alone and not arm.learner and arm.priority is not None and math.isfinite(arm.equivalent):
            ladders.setdefault(arm.priority, []).append(arm)
    ladders = {priority: some for priority, some in sorted(ladders.items()) if len({a.equivalent for a in some}) > 1}
    apart = len({arm.load[1:] for some in ladders.values() for arm in some}) > 1  # several buffers: not one curve
    if not ladders or apart:
        return None
    styles = looks({"priority": priority} for priority in ladders)
    names = [f"priority {priority:g}" if priority else "one queue for all" for priority in ladders]
    panels = []
    for of, words in ((_completion, "mean completion (ms)"), (_lost, "share of learning packets lost")):
        one = panel()
        for some, name, look in zip(ladders.values(), names, styles, strict=True):
            known = [(arm.equivalent, inference.estimate(of(arm))) for arm in some]
            points = sorted((rate, found.mean) for rate, found in known if found is not None)
            if points:
                x, y = np.array(points).T
                one.points(x, y, name, {**look, "marker": "o"})
        if one.keys:
            one.axes.set(xlabel="requests per second", ylabel=words)
            one.axes.set_ylim(bottom=0)
            panels.append(one)
    says = "At the modelled speed; mean over seeds. Where learning never paused its loss at that rate is not known."
    return Picture("by_rate", "Completion and learning loss by rate", says, panels) if panels else None


def _completion(arm: Arm) -> list[float]:
    return [ms / arm.factor for ms in arm.web.get("mean_ms", {}).values()]


def _lost(arm: Arm) -> list[float]:
    return list(arm.loss.values())


def cost_by_loss(content: Content) -> Picture | None:
    """Figure 7."""
    lines: dict[tuple[float, str], list[tuple[float, float]]] = {}
    for found in costs(arms_of(content.groups)):
        if found.loss is not None and found.cost is not None:
            lines.setdefault((found.target_ms, found.apart), []).append((found.loss.mean, found.cost.mean))
    lines = {key: sorted(points) for key, points in lines.items() if len(points) > 1}
    if not lines:
        return None
    one = panel()
    drawn: set[float] = set()
    for number, ((target, apart), points) in enumerate(lines.items()):
        look: Any = {"color": COLOURS[number % len(COLOURS)]}
        x, y = np.array(points).T
        one.points(x, y, f"ours, {target:g} ms" + (f", {apart}" if apart else ""), {**look, "marker": "o"})
        theirs = paper().get("fig7", {}).get(f"t={target:g}ms", [])
        if theirs and target not in drawn:
            drawn.add(target)
            one.curve(Curve(*np.array(theirs).T), f"paper, {target:g} ms", {**look, "linestyle": ":"})
    one.axes.set(xlabel="share of learning packets lost", ylabel="cost of a message", ylim=(0, 1.1))
    says = (
        "Rate that one queue for all carries at this mean completion, by the rate that this degree of priority carries."
    )
    return Picture("cost", "What a message costs by learning loss", says, [one])
