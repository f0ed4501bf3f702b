"""Results against what was swept: any number, the loss rate, the theory of drift."""

from __future__ import annotations

import numpy as np

from lossbench.report import inference
from lossbench.report.content import Content
from lossbench.report.groups import shown_of
from lossbench.report.plots import swept
from lossbench.report.plots.canvas import COLOURS, MOST_CURVES, MOST_LINES, Picture, alike, looks, panel
from lossbench.report.plots.curves import Curve
from lossbench.report.service.arms import arms_of
from lossbench.report.tables.words import in_words
from lossbench.results.index import Run
from lossbench.results.measures import RATIOS
from lossbench.results.naming import word

OF_ANY_PROGRAM = ("wall_s", "tcp_resent_percent")


def against_the_sweep(content: Content) -> Picture | None:
    """The first two results against the number that is swept; one line for each combination of the rest."""
    if arms_of(content.groups):
        return None  # a service has pictures of its own; what it was asked for is no result
    key = swept.key_of(content.groups)
    lines = swept.lines_of(content.groups, key)
    groups = [group for line in lines for _, group in line.groups]
    shown = shown_of(groups)
    names = [name for name in shown if groups[0].measure(name).column == "outcome"][:2]
    if set(OF_ANY_PROGRAM) & set(shown):
        names = [name for name in OF_ANY_PROGRAM if any(group.sound(name) for group in groups)]
    if not names or all(len({x for x, _ in line.groups}) < 2 for line in lines):
        return None
    panels, intervals = [], False
    for name in names:
        curves = {line.name: points for line in lines if (points := _points(line, name))}
        for first in range(0, min(len(curves), MOST_LINES), MOST_CURVES):
            some, one = dict(list(curves.items())[first : first + MOST_CURVES]), panel()
            for (line, points), look in zip(some.items(), looks({"": line} for line in some), strict=True):
                x, y, half = np.array(sorted(points)).T
                intervals |= bool(half.any())
                one.points(x, y, line, {**look, "marker": "o"}, errors=half if half.any() else None)
            one.axes.set(xlabel=swept.axis(key), ylabel=in_words(name))
            panels.append(one)
    if not panels:
        return None
    says = "Mean over seeds; bars are 95 % t-intervals." if intervals else "One seed: no interval."
    return Picture("sweep", f"{in_words(names[0])} by {swept.axis(key)}", says, panels)


def _points(line: swept.Line, name: str) -> list[tuple[float, float, float]]:
    estimates = [(x, inference.estimate(list(group.sound(name).values()))) for x, group in line.groups]
    return [(x, found.mean, found.half or 0.0) for x, found in estimates if found is not None]


def times_against_loss(content: Content) -> Picture | None:
    """Median time of a collective against the (independent) loss asked for, by contender and what else was swept."""
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    ratios = False
    for group in content.groups:
        contender = group.row
        values = [v.number for v in group.values.get("p50_ms", []) if v.void in ("", RATIOS)]
        ratios |= any(v.void for v in group.values.get("p50_ms", []))
        if contender and values and all(_independent(run) for run in group.runs):
            asked = [loss for run in group.runs for loss in run.summary.asked_loss]
            rest = " ".join(word(value) for key, value in group.point.items() if "profile" not in key)
            lines.setdefault((contender, rest), []).append(
                (100 * float(np.mean(asked or [0.0])), float(np.median(values)))
            )
    lines = {name: points for name, points in lines.items() if len({x for x, _ in points}) > 1}
    if not lines:
        return None
    panels = []
    for first in range(0, len(lines), MOST_CURVES):
        some, one = dict(list(lines.items())[first : first + MOST_CURVES]), panel()
        styles = looks({"contender": contender, "rest": rest} for contender, rest in some)
        for (name, points), look in zip(some.items(), styles, strict=True):
            x, y = np.array(sorted(points)).T
            one.points(x, y, " ".join(name).strip(), {**look, "marker": "o"})
        one.axes.set(xlabel="loss asked for (%)", ylabel="median time (ms)", yscale="log")
        panels.append(one)
    alike(panels)
    says = "Median over calls; all sides on the same ports, in turns."
    says += " The machine was busy: believe the ratios, not the times." if ratios else ""
    return Picture("times", "Time of a collective by loss", says, panels)


def _independent(run: Run) -> bool:
    profiles = run.manifest.get("profiles")
    losses = (
        [one.get("loss") for one in profiles.values() if isinstance(one, dict)] if isinstance(profiles, dict) else []
    )
    return all(loss.get("model", "iid") == "iid" for loss in losses if isinstance(loss, dict))


def against_theory(content: Content) -> Picture | None:
    """Measured drift over the variance of one update, beside the paper's formula and the exact one."""
    points: list[tuple[float, float, float]] = []
    for group in content.groups:
        found = inference.estimate(list(group.sound("over_exact").values()))
        arrived = inference.estimate(list(group.sound("arrived_2").values()))
        if found is not None and arrived is not None and 0 < arrived.mean < 1:
            p = 1 - arrived.mean
            exact = 2 * p / (1 - p * p)
            points.append((p, exact * found.mean, exact * (found.half or 0.0)))
    if len({round(p, 2) for p, _, _ in points}) < 2:
        return None
    one = panel()
    x, y, half = np.array(sorted(points)).T
    line = np.linspace(0, max(0.1, 1.15 * x.max()), 200)
    one.curve(Curve(line, 2 * line / (1 - line**2)), "exact: 2p / (1 - p²)", {"color": COLOURS[0]})
    stated = {"color": COLOURS[1], "linestyle": "--"}
    one.curve(Curve(line, 2 * line / (1 + line)), "as stated: 2p / (1 + p)", stated)
    look = {"color": COLOURS[2], "linestyle": "none", "marker": "o"}
    one.points(x, y, "measured", look, errors=half if half.any() else None)
    one.axes.set(xlabel="share lost in the broadcast, p", ylabel="drift / variance of an update")
    says = "The exact line holds for independent updates of zero mean."
    return Picture("theory", "Drift and its theory", says, [one])
