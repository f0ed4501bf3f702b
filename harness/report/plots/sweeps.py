"""Results against what was swept: any number, the loss rate, the theory of drift."""

from __future__ import annotations

from typing import Any

import numpy as np

from lossbench.report import inference
from lossbench.report.content import Content
from lossbench.report.groups import Group, shown_of
from lossbench.report.plots.canvas import COLOURS, Picture, label, legend, looks, sheet
from lossbench.results import measures
from lossbench.results.index import Run
from lossbench.results.measures import RATIOS
from lossbench.results.naming import word


def _swept_numbers(group: Group) -> dict[str, float]:
    return {key: n for key, value in group.point.items() if (n := measures.number(value)) is not None}


def against_the_sweep(content: Content) -> Picture | None:
    """The first two results against the number that is swept; one line for each combination of the rest."""
    groups = [group for group in content.groups if _swept_numbers(group)]
    keys = {key for group in groups for key in _swept_numbers(group)}
    names = [name for name in shown_of(groups) if groups[0].measure(name).column == "outcome"][:2]
    if len(keys) != 1 or not names or len({word(g.point) for g in groups}) < 3:
        return None
    (key,) = keys
    figure, panels = sheet(len(names), width=3.6 * len(names) + 1.2)
    for axes, name in zip(panels, names, strict=True):
        for number, (line, points) in enumerate(_by_rest(groups, key, name).items()):
            x, y, half = np.array(sorted(points)).T
            look: Any = {"color": COLOURS[number % len(COLOURS)], "marker": "o", "markersize": 3, "capsize": 2}
            axes.errorbar(x, y, yerr=half if half.any() else None, label=label(line), **look)
        axes.set(
            xlabel=key.rpartition(".profile.")[2].replace(".", " ").removeprefix("workload options "),
            ylabel=name.replace("_", " "),
        )
    legend(panels[0])
    return Picture(
        "sweep",
        f"{names[0].replace('_', ' ')} against {key.rpartition('.')[2]}",
        "Mean over seeds; bars are 95 % t-intervals.",
        figure,
    )


def _by_rest(groups: list[Group], key: str, name: str) -> dict[str, list[tuple[float, float, float]]]:
    out: dict[str, list[tuple[float, float, float]]] = {}
    for group in groups:
        found = inference.estimate(list(group.sound(name).values()))
        if found is not None:
            rest = " ".join(word(value) for other, value in group.point.items() if other != key)
            line = f"{rest} {group.row}".strip() or "mean"
            out.setdefault(line, []).append((_swept_numbers(group)[key], found.mean, found.half or 0.0))
    return out


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
    figure, (axes,) = sheet()
    styles = looks({"contender": contender, "rest": rest} for contender, rest in lines)
    for (name, points), look in zip(lines.items(), styles, strict=True):
        x, y = np.array(sorted(points)).T
        axes.plot(x, y, marker="o", markersize=3, label=label(" ".join(name).strip()), **look)
    axes.set(xlabel="loss asked for (%)", ylabel="median time (ms)", yscale="log")
    legend(axes)
    says = "Median over calls; all sides on the same ports, in turns."
    says += " The machine was busy: believe the ratios, not the times." if ratios else ""
    return Picture("times", "Time of a collective against loss", says, figure)


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
    figure, (axes,) = sheet()
    x, y, half = np.array(sorted(points)).T
    line = np.linspace(0, max(0.1, 1.15 * x.max()), 200)
    axes.plot(line, 2 * line / (1 - line**2), label="exact: 2p / (1 - p²)", color=COLOURS[0])
    axes.plot(line, 2 * line / (1 + line), label="as stated: 2p / (1 + p)", color=COLOURS[1], linestyle="--")
    axes.errorbar(x, y, yerr=half if half.any() else None, fmt="o", markersize=4, color=COLOURS[2], label="measured")
    axes.set(xlabel="share lost in the broadcast, p", ylabel="drift / variance of an update")
    legend(axes)
    return Picture(
        "theory", "Drift against theory", "The exact line holds for independent updates of zero mean.", figure
    )
