"""Names at the ends of a picture's lines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from lossbench.report.plots import at_lines, canvas
from lossbench.report.plots.curves import Curve
from lossbench.report.plots.library import drawing
from lossbench.results.naming import word
from lossbench.spec.asking import points


def at_their_lines(names: Sequence[str], ends: Sequence[float]) -> list[Any]:
    """What stands there in a panel with these curves."""
    with drawing(canvas.STYLE):
        one = canvas.panel()
        for name, end in zip(names, ends, strict=True):
            one.curve(Curve(np.array([0.0, 1.0]), np.array([0.0, end])), name, {"color": "#0072B2"})
        one.name_lines()
        one.figure.draw_without_rendering()
    return list(one.axes.texts)


def test_one_long_name_leaves_the_others_at_their_lines() -> None:
    """As it was: "gradient_averaging" has 18 letters, and no line of quickstart had a name."""
    texts = at_their_lines(["ddp", "rps", "gradient_averaging", "nobody-could-fold-this-name"], [1.0, 0.9, 0.5, 0.2])
    assert [text.get_text() for text in texts] == ["gradient_\naveraging", "rps", "ddp"]


def test_every_name_of_a_suite_of_ours_fits_at_its_line() -> None:
    found = (points.points(points.find(name), settings=[], full=False, until="") for name in points.suite_names())
    names = {word(value) for some in found for chosen, _ in some for value in chosen.values()}
    assert len(names) > 50 and [name for name in names if name and not at_lines.folded(name)] == []


def test_names_at_lines_do_not_touch_and_leave_room_for_the_curves() -> None:
    names = ["bounded_drift, mean of arrivals", "strict: gradient_averaging", "reliable", "rps", "ddp", "local"]
    texts = at_their_lines(names, [1.0, 0.99, 0.98, 0.97, 0.1, 0.0])
    figure = texts[0].figure
    boxes = sorted((text.get_window_extent() for text in texts), key=lambda box: float(box.y0))
    assert len(texts) == len(names) and all(low.y1 <= high.y0 + 2 for low, high in itertools.pairwise(boxes))
    axes = texts[0].axes.get_window_extent()
    assert axes.width > 0.4 * figure.bbox.width and max(box.x1 for box in boxes) <= figure.bbox.width


def test_more_names_than_fit_are_left_out_from_the_longest_on() -> None:
    placed = at_lines.placed([(0.5, "bounded_drift, mean of arrivals")] * 8 + [(0.1, "ddp")])
    assert 5 <= len(placed) < 9 and placed[0][2] == "ddp" and placed[0][0] == 0.1
    assert all(-0.1 < at < 1.1 for at, _, _ in placed)
