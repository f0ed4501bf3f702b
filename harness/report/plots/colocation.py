"""Figures 6 and 7 of the RPS paper beside ours: what the service gains, and what a message costs, by learning loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from lossbench.report.colocation import Arm, arms_of, curve, loads
from lossbench.report.content import Content
from lossbench.report.plots.canvas import COLOURS, Picture, panel
from lossbench.report.plots.curves import Curve
from lossbench.report.plots.paper import paper

TARGETS_MS = (2.0, 5.0, 10.0)  # mean completion at the modelled speed


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


def carried(points: list[tuple[float, float]], target_ms: float) -> float | None:
    """The highest rate whose mean completion is at most the target: (rate, mean), interpolated; None if not reached."""
    known = sorted(points)
    rates, means = np.array(known).T
    means = np.maximum.accumulate(means)
    if means[0] > target_ms or means[-1] < target_ms:
        return None
    return float(np.interp(target_ms, means, rates))


def costs(arms: list[Arm]) -> dict[tuple[float, str], list[tuple[float, float]]]:
    """(target, which buffer if there are several) -> (learning loss there, cost of a message relative to one queue for
    all), by rising loss; found seed by seed, means over those seeds in which both reach the target."""
    ladders: dict[tuple[Any, ...], dict[float, list[Arm]]] = {}
    for arm in arms:
        if not arm.alone and arm.priority is not None:
            ladders.setdefault(arm.ladder, {}).setdefault(arm.priority, []).append(arm)
    out: dict[tuple[float, str], list[tuple[float, float]]] = {}
    for target in TARGETS_MS:
        for rest, here in ladders.items():
            points = _costs(here, target)
            if len(points) > 1:
                out[target, _told_apart(rest, list(ladders))] = points
    return out


def _told_apart(rest: tuple[Any, ...], among: list[tuple[Any, ...]]) -> str:
    """What differs from the others, the buffer by its name."""
    if len(among) == 1:
        return ""
    if len({one[0] for one in among}) == len(among):
        return f"{rest[0]:g} kB"
    return ", ".join(str(part) for part in rest if part not in ("", None))


def _costs(ladders: dict[float, list[Arm]], target: float) -> list[tuple[float, float]]:
    """Of arms that differ in rate and priority alone."""
    reached = {priority: _reached(ladder, target) for priority, ladder in ladders.items()}
    points = []
    for here in reached.values():
        both = [seed for seed in here if seed in reached.get(0.0, {})]
        if both:
            cost = [reached[0.0][seed][0] / here[seed][0] for seed in both]
            points.append((float(np.mean([here[seed][1] for seed in both])), float(np.mean(cost))))
    return sorted(points)


def _reached(ladder: list[Arm], target_ms: float) -> dict[int, tuple[float, float]]:
    """seed -> (the rate that is carried at this mean, learning loss there)."""
    out = {}
    for seed in {seed for arm in ladder for seed in arm.web.get("mean_ms", {})}:
        here = [arm for arm in ladder if seed in arm.web.get("mean_ms", {}) and seed in arm.loss]
        means = [(arm.equivalent, arm.web["mean_ms"][seed] / arm.factor) for arm in here]
        rate = carried(means, target_ms) if len(means) > 2 else None
        if rate is not None:
            x, y = np.array(sorted((arm.equivalent, arm.loss[seed]) for arm in here)).T
            out[seed] = (rate, float(np.interp(rate, x, y)))
    return out


def cost_by_loss(content: Content) -> Picture | None:
    """Figure 7."""
    lines = costs(arms_of(content.groups))
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
