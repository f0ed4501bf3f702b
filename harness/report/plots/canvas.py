"""How plots look and how they leave: colours that stand on light and dark, SVG for pages, files for papers."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lossbench.files import disk_errors
from lossbench.report.plots.curves import Curve
from lossbench.results.naming import word

INK = "#010203"  # axes and text; becomes the page's own text colour
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#999999")
MOST_LINES = 12  # of a plot that can be read
LINES = ("-", "--", ":", "-.")
STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#8888",
    "grid.alpha": 0.35,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "font.size": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "lines.linewidth": 1.5,
    "svg.hashsalt": "lossbench",
    "axes.formatter.useoffset": False,
}


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    says: str  # below it: how to read it
    figure: Figure


def sheet(columns: int = 1, *, height: float = 3.4, width: float = 7.2) -> tuple[Figure, list[Axes]]:
    """No pyplot: nothing global, no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def looks(points: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Colour by what is swept first, line by the rest: equal things look equal."""
    firsts: dict[str, int] = {}
    rests: dict[str, int] = {}
    out = []
    for point in points:
        first, *rest = [word(value) for value in point.values()] or [""]
        colour = COLOURS[firsts.setdefault(first, len(firsts)) % len(COLOURS)]
        out.append({"color": colour, "linestyle": LINES[rests.setdefault(" ".join(rest), len(rests)) % len(LINES)]})
    if len(firsts) == 1 and len(out) > 1:  # only the rest differs: let it have the colours
        out = [{"color": COLOURS[n % len(COLOURS)], "linestyle": "-"} for n in range(len(out))]
    return out


def draw(axes: Axes, one: Curve, name: str, look: dict[str, Any], *, scale: float = 1.0) -> None:
    axes.plot(one.x * scale, one.y, label=label(name), **look)
    if one.low is not None and one.high is not None:
        axes.fill_between(one.x * scale, one.low, one.high, color=look["color"], alpha=0.2, linewidth=0)


def label(text: str) -> str:
    """As it is: matplotlib takes $ for formulas and hides what begins with an underscore."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def legend(axes: Axes) -> None:
    """Beside the plot, where it hides nothing."""
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.3)


def svg(picture: Picture, *, prefix: str) -> str:
    """Inline in a page: text and axes in the page's colour, ids that no other picture there has."""
    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        picture.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"^.*?(?=<svg )", "", out.getvalue(), flags=re.S)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(picture.title)}" ', 1)
    own = f"{re.sub('[^a-zA-Z0-9]', '', prefix)}-{picture.name}"
    for attribute in (' id="', 'href="#', "url(#"):
        text = text.replace(attribute, f"{attribute}{own}-")
    return text.replace(INK, "currentColor")


def save(pictures: Iterable[Picture], folder: Path) -> list[Path]:
    """Each as SVG, PDF and PNG; black on white."""
    out = []
    with disk_errors(folder, full="give --plots another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            for suffix in ("svg", "pdf", "png"):
                path = folder / f"{picture.name}.{suffix}"
                with matplotlib.rc_context(STYLE):
                    picture.figure.savefig(path, dpi=160, facecolor="white")
                out.append(path)
    return out
