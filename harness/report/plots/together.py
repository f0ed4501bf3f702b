"""A picture for Python and notebooks: all its panels on one figure, with a legend. Drawn anew every time: whoever
changes a figure changes no page."""

from __future__ import annotations

import math
from typing import Any

from lossbench.errors import UsageError
from lossbench.report.plots.canvas import HIGH, SHEET, STYLE, WIDE, Drawn, Panel, Picture, legend
from lossbench.report.plots.library import drawing
from lossbench.results.naming import counted

MOST_ABREAST = 3  # panels


def figure_of(picture: Picture, only: int | None = None) -> Any:
    """`only`: the panel of this number; none: all of them."""
    count = len(picture.panels)
    if only is not None and not 0 <= only < count:
        step = f"panel=0 to {count - 1}, or none for all on one figure" if count > 1 else "leave panel out"
        raise UsageError(
            f"picture '{picture.name}' has {counted(count, 'panel')}, none of number {only}", next_step=step
        )
    with drawing(STYLE):
        if only is None and count > 1:
            return _sheet(picture, count)
        again = _again(picture)
        again.finish()
        one = again.panels[only or 0]
        legend(one)
        return one.figure


def _again(picture: Picture) -> Picture:
    again = picture.again() if picture.again is not None else None
    assert again is not None, "what was drawn once can be drawn again"
    return again


def _sheet(picture: Picture, count: int) -> Drawn:
    wide = min(count, MOST_ABREAST)
    high = math.ceil(count / wide)
    figure = Drawn(figsize=(wide * WIDE, high * HIGH), layout="constrained")
    grid = figure.add_gridspec(high, wide)
    token = SHEET.set(lambda: figure.add_subplot(grid[0], label=str(len(figure.axes))))
    try:
        again = _again(picture)
    finally:
        SHEET.reset(token)
    for number, one in enumerate(again.panels):
        one.axes.set_subplotspec(grid[number])
    for axes in [axes for axes in figure.axes if all(axes is not one.axes for one in again.panels)]:
        axes.remove()  # of a panel that had nothing to show
    figure.suptitle(picture.title, fontsize=12)
    _legends(figure, again.panels)
    for one in again.panels:
        one.plain_ticks()
    return figure


def _legends(figure: Drawn, panels: list[Panel]) -> None:
    """One for all where a name looks the same everywhere; else each panel has its own."""
    styles = {(key.name, key.colour, key.dash) for one in panels for key in one.keys}
    if len({name for name, *_ in styles}) < len(styles):
        for one in panels:
            one.axes.legend()
        return
    known = {name: handle for one in panels for handle, name in zip(*one.axes.get_legend_handles_labels(), strict=True)}
    if known:
        figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=min(len(known), 2 * MOST_ABREAST))
