"""Which pictures a suite's results make; each draws itself only where its data is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np

from lossbench.report.content import Content
from lossbench.report.groups import Group
from lossbench.report.plots.canvas import MOST_LINES, STYLE, Picture, draw, legend, looks, sheet
from lossbench.report.plots.curves import Curve, Curves
from lossbench.report.plots.distributions import bursts, slower_than
from lossbench.report.plots.paper import beside_the_paper
from lossbench.report.plots.sweeps import against_the_sweep, against_theory, times_against_loss


def all_pictures(content: Content) -> list[Picture]:
    """In the order a reader wants them; drawn once, for page and files."""
    if content.pictures is not None:
        return content.pictures
    drawn = Curves([group for group in content.groups if not group.row], most=MOST_LINES)
    makers: list[Callable[[], Picture | None]] = [
        lambda: beside_the_paper(drawn),
        lambda: convergence(drawn),
        lambda: drift_plot(drawn),
        lambda: against_the_sweep(content),
        lambda: times_against_loss(content),
        lambda: against_theory(content),
        lambda: slower_than(content),
        lambda: bursts(content),
    ]
    content.problems += drawn.problems
    with matplotlib.rc_context(STYLE):
        content.pictures = [picture for make in makers if (picture := make()) is not None]
    return content.pictures


def _lines(drawn: Curves, of: Callable[[Group], Curve | None]) -> list[tuple[Group, Curve, dict[str, Any]]]:
    styles = looks(group.point for group in drawn.groups)
    found = [(group, of(group), style) for group, style in zip(drawn.groups, styles, strict=True)]
    return [(group, one, style) for group, one, style in found if one is not None]


def convergence(drawn: Curves) -> Picture | None:
    lines = _lines(drawn, drawn.loss)
    if not lines:
        return None
    figure, (axes,) = sheet()
    for group, one, look in lines:
        draw(axes, one, drawn.label(group), look)
    _logarithmic_if_wide(axes, [one.y for _, one, _ in lines])
    axes.set(xlabel="step", ylabel="training loss")
    legend(axes)
    says = "Mean over workers, geometric mean over seeds; the band is a 95 % t-interval over seeds (from three on)."
    says += " ?: not proven, or simulated." if any(drawn.label(g).endswith("?") for g in drawn.groups) else ""
    return Picture("convergence", "Training loss", says + drawn.left_out, figure)


def drift_plot(drawn: Curves) -> Picture | None:
    lines = [(group, one, look) for group, one, look in _lines(drawn, drawn.drift) if float(np.max(one.y)) > 0]
    if not lines:
        return None
    figure, (axes,) = sheet()
    for group, one, look in lines:
        draw(axes, one, drawn.label(group), look)
    axes.set(xlabel="step", ylabel="squared distance of two workers", yscale="log")
    legend(axes)
    says = "How far two workers' models are apart, on a logarithmic scale."
    return Picture("drift", "Drift", says + drawn.left_out, figure)


def _logarithmic_if_wide(axes: Any, values: list[Any]) -> None:
    low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    if low > 0 and high / low > 20:
        axes.set_yscale("log")
