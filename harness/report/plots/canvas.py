"""How plots look and how they leave: panels small enough for a phone, colours that stand on light and dark, SVG for
pages, files for papers.

Plain SVG, not a charting library: a page of six panels weighs 150 kB instead of a megabyte of scripts, the same drawing
serves papers, and it can be read with scripts turned off. What a reader wants to do with a curve, point at it and put
others away, is page.js."""

from __future__ import annotations

import html
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossbench.files import disk_errors
from lossbench.report.plots.at_lines import placed
from lossbench.report.plots.curves import Curve
from lossbench.report.plots.library import Axes, Figure, FuncFormatter, LogLocator, NullFormatter, drawing, matplotlib
from lossbench.results import measures
from lossbench.results.naming import word

INK = "#010203"  # axes and text; becomes the page's own text colour
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#999999")
SEQUENCE, FIRST, LAST = "plasma", 0.3, 0.82  # of numbers, from few to many: what shows on white and on black
MOST_CURVES = 6  # of a panel that can be read
MOST_LINES = 36  # of all panels of a picture
FEW_DECADES = 100  # from end to end
LINES = ("-", "--", ":", "-.")
WIDE, HIGH = 4.4, 3.1  # inches: at 390 px its letters have 12 px
IN_TWO_COLUMNS = 20  # characters: more do not fit beside each other below a plot
SHEET: ContextVar[Callable[[], Axes] | None] = ContextVar("SHEET", default=None)  # where panels are put, if set
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
    "legend.fontsize": 10,
    "font.size": 11.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "lines.linewidth": 1.8,
    "svg.hashsalt": "lossbench",
    "path.simplify": False,  # page.js finds the points of a curve by their number
    "axes.formatter.useoffset": False,
}


class Drawn(Figure):
    """Shows itself in a notebook, whatever drawing backend that has chosen."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        with drawing(STYLE):
            self.savefig(out, format="png", dpi=110, facecolor="white")
        return out.getvalue()


@dataclass(frozen=True)
class Key:
    """One line of a legend, and the numbers behind its curve."""

    name: str
    colour: str
    dash: str
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()


@dataclass
class Panel:
    """One pair of axes. What is drawn by `curve` and `points` can be pointed at and put away."""

    figure: Figure
    axes: Axes
    title: str = ""
    keys: list[Key] = field(default_factory=list)

    def curve(self, one: Curve, name: str, look: dict[str, Any], *, scale: float = 1.0, **more: Any) -> None:
        x, gid = one.x * scale, self._key(name, look, one.x * scale, one.y)
        self.axes.plot(x, one.y, label=label(name), gid=gid, **look, **more)
        if one.low is not None and one.high is not None:
            self.axes.fill_between(x, one.low, one.high, color=look["color"], alpha=0.2, linewidth=0, gid=f"{gid}-band")

    def points(self, x: Any, y: Any, name: str, look: dict[str, Any], *, errors: Any = None) -> None:
        """Measured points, joined; with bars only where there are intervals."""
        gid = self._key(name, look, x, y)
        drawn = self.axes.errorbar(x, y, yerr=errors, label=label(name), capsize=2, markersize=4, **look)
        drawn.lines[0].set_gid(gid)
        for part in (*drawn.lines[1], *drawn.lines[2]):
            part.set_gid(f"{gid}-band")

    def _key(self, name: str, look: dict[str, Any], x: Any, y: Any) -> str:
        numbers = [tuple(float(n) for n in some) for some in (x, y)]
        self.keys.append(Key(name, str(look["color"]), str(look.get("linestyle", "-")), *numbers))
        return f"c{len(self.keys) - 1}"

    def plain_ticks(self) -> None:
        """On a logarithmic axis numbers as people write them, whose exponents a telephone would make too small; of few
        decades several, far enough apart to be read."""
        for axis, (low, high) in ((self.axes.xaxis, self.axes.get_xlim()), (self.axes.yaxis, self.axes.get_ylim())):
            if axis.get_scale() != "log":
                continue
            axis.set_minor_formatter(NullFormatter())
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            if high < FEW_DECADES * low:
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))

    def name_lines(self) -> None:
        """Names at the ends of their lines, all that fit."""
        named = [key for key in self.keys if key.x]
        if len(named) < 2:
            return
        self.figure.draw_without_rendering()
        ends = self._ends(named)
        for at, number, text in placed([(at, key.name) for at, key in ends]):
            how: dict[str, Any] = {"color": ends[number][1].colour, "transform": self.axes.transAxes}
            self.axes.text(1.02, at, label(text), va="center", fontsize=11, linespacing=1.0, **how)

    def spread(self) -> float:
        """How far apart its lines end, as a share of its height: what an eye would see."""
        ends = [at for at, _ in self._ends([key for key in self.keys if key.x])]
        return round(max(ends) - min(ends), 2) if ends else 0.0

    def _ends(self, keys: list[Key]) -> list[tuple[float, Key]]:
        log = self.axes.get_yscale() == "log"
        span = [math.log10(v) if log and v > 0 else v for v in self.axes.get_ylim()]
        return [(at, key) for key in keys if (at := _place(key.y, span, log=log)) is not None]


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    says: str  # below it: how to read it
    panels: list[Panel]
    again: Callable[[], Picture | None] | None = None  # the same on other axes: no axes can leave their figure

    def finish(self) -> None:
        for one in self.panels:
            one.plain_ticks()
            one.name_lines()


def panel(title: str = "", *, wide: float = WIDE, high: float = HIGH) -> Panel:
    """No pyplot: nothing global, no display."""
    sheet = SHEET.get()
    axes = sheet() if sheet is not None else Drawn(figsize=(wide, high), layout="constrained").subplots()
    if title:
        axes.set_title(label(title), fontsize=11.5)
    assert isinstance(axes.figure, Figure)  # whole, not a part of one
    return Panel(axes.figure, axes, title)


def alike(panels: Sequence[Panel]) -> None:
    """Small multiples: one scale for all."""
    for which in ("x", "y"):
        ends = [getattr(one.axes, f"get_{which}lim")() for one in panels]
        for one in panels:
            getattr(one.axes, f"set_{which}lim")(min(low for low, _ in ends), max(high for _, high in ends))


def _place(y: Sequence[float], span: list[float], *, log: bool) -> float | None:
    last = next((value for value in reversed(y) if math.isfinite(value) and (value > 0 or not log)), None)
    if last is None or span[0] == span[1]:
        return None
    return min(1.0, max(0.0, ((math.log10(last) if log else last) - span[0]) / (span[1] - span[0])))


def looks(points: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Colour by what is swept first, line by the rest: equal things look equal. Numbers have a sequence of colours."""
    some = list(points)
    firsts: dict[str, int] = {}
    rests: dict[str, int] = {}
    out = []
    for point in some:
        first, *rest = [word(value) for value in point.values()] or [""]
        colour = COLOURS[firsts.setdefault(first, len(firsts)) % len(COLOURS)]
        out.append({"color": colour, "linestyle": LINES[rests.setdefault(" ".join(rest), len(rests)) % len(LINES)]})
    if len(firsts) == 1 or len(rests) == 1 or len(rests) > len(LINES):  # one thing differs: let it have the colours
        out = [{"color": colour, "linestyle": "-"} for colour in _colours(some)]
    return out


def _colours(points: list[dict[str, Any]]) -> list[str]:
    numbers = [_only_number(point, points) for point in points]
    if len(points) > 2 and all(number is not None for number in numbers):
        ranks = {number: rank for rank, number in enumerate(sorted(set(numbers)))}  # type: ignore[type-var]
        scale = matplotlib.colormaps[SEQUENCE]
        most = max(1, len(ranks) - 1)
        return [matplotlib.colors.to_hex(scale(FIRST + (LAST - FIRST) * ranks[number] / most)) for number in numbers]
    return [COLOURS[n % len(COLOURS)] for n in range(len(points))]


def _only_number(point: dict[str, Any], points: list[dict[str, Any]]) -> float | None:
    """Of the one thing in which these points differ, if it is a number: 5, or the 5 of loss_5."""
    different = [value for key, value in point.items() if len({word(one.get(key)) for one in points}) > 1]
    if len(different) != 1:
        return None
    found = re.fullmatch(r"[a-z_ ]*?(\d+\.?\d*)\s*%?", word(different[0]))
    return 0.0 if word(different[0]) == "clean" else float(found[1]) if found else None


def label(text: str) -> str:
    """As it is: matplotlib takes $ for formulas and hides what begins with an underscore."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def svg(one: Panel, *, own: str, title: str) -> str:
    """Inline in a page: text and axes in the page's colour, ids that no other picture there has."""
    out = io.StringIO()
    with drawing(STYLE):
        one.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"^.*?(?=<svg )", "", out.getvalue(), flags=re.S)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"<[^>]*>", lambda tag: _shorter(tag[0]), text)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)
    for attribute in (' id="', 'href="#', "url(#"):
        text = text.replace(attribute, f"{attribute}{own}-")
    return text.replace(INK, "currentColor")


def _shorter(tag: str) -> str:
    """Places within a hundredth of a point; what people read stands between tags, and stays."""
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", tag)


def numbers(one: Panel) -> str:
    """The points of every curve as JSON, for whoever points at them."""
    curves = [[[measures.short(x), measures.short(y)] for x, y in zip(key.x, key.y, strict=True)] for key in one.keys]
    return json.dumps(curves, separators=(",", ":"))


def save(pictures: Iterable[Picture], folder: Path) -> list[Path]:
    """Each as SVG, PDF and PNG; black on white, with a legend."""
    out = []
    with disk_errors(folder, full="give --plots another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            for number, one in enumerate(picture.panels):
                with drawing(STYLE):
                    legend(one)
                    for suffix in ("svg", "pdf", "png"):
                        path = folder / f"{picture.name}{f'-{number + 1}' if number else ''}.{suffix}"
                        one.figure.savefig(path, dpi=160, facecolor="white")
                        out.append(path)
                    legend(one, away=True)
    return out


def legend(one: Panel, *, away: bool = False) -> None:
    """Below the axes, where it hides nothing; a page has its own."""
    if away:
        for found in one.figure.legends:
            found.remove()
        one.figure.set_size_inches(WIDE, HIGH)
    elif one.keys:
        columns = 1 if max(len(key.name) for key in one.keys) > IN_TWO_COLUMNS else 2
        one.figure.set_size_inches(WIDE, HIGH + 0.2 * math.ceil(len(one.keys) / columns))
        one.figure.legend(loc="outside lower center", ncols=columns)
