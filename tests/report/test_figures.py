"""Pictures in Python: everything on one figure; and which picture a page begins with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import lossbench
from lossbench.errors import UsageError
from lossbench.report import page
from lossbench.report.content import gather
from lossbench.report.export.handle import Results
from lossbench.report.plots.figures import all_pictures
from lossbench.results.index import read_suite

from . import made

STRATEGIES = ("reliable", "ddp", "gradient_averaging", "rps", "bounded_drift")
CONDITIONS = ("clean", "loss_10")
STEPS = 40


def quickstart(folder: Path, *, drifting: bool = True) -> Path:
    """Its ten lines: five ways that are one without loss, and differ with it."""
    points = [{"workload.options.strategy": s, "impair.0.profile": c} for s in STRATEGIES for c in CONDITIONS]
    place = made.suite(folder, points, 1, lambda point, seed: {"accuracy": 0.9}, name="quickstart")
    for number, point in enumerate(points):
        way = STRATEGIES.index(point["workload.options.strategy"]) if point["impair.0.profile"] != "clean" else 0
        run = place / f"{number:03d}"
        made.steps(run, [2.0 / (1 + n) * (1 + 0.05 * way * n / STEPS) for n in range(STEPS)])
        apart = 10.0 ** (-way) if way > 2 and drifting else 0.0
        for path in (run / "records").iterdir():
            path.write_text(re.sub(r'"pair": [\d.]+', f'"pair": {apart}', path.read_text()))
    return place


def titles(figure: Any) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def test_all_panels_of_a_picture_are_on_its_figure_with_a_legend(tmp_path: Path) -> None:
    """As it was: `plot("convergence")` of quickstart showed the clean network alone, and no name of a line."""
    (found,) = lossbench.load(str(quickstart(tmp_path)))
    figure = found.plot("convergence")
    assert sorted(titles(figure)) == ["clean", "loss_10"]
    assert [len(axes.lines) for axes in figure.axes] == [5, 5]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(STRATEGIES)
    assert figure._repr_png_()[:4] == b"\x89PNG"


def test_a_panel_may_be_asked_for_alone_and_one_that_is_not_there_is_said(tmp_path: Path) -> None:
    """As it was: IndexError."""
    found = Results.at(quickstart(tmp_path))
    assert [titles(found.plot("convergence", panel=n)) for n in (0, 1)] == [["loss_10"], ["clean"]]
    assert len(found.plot("convergence", panel=0).legends) == 1
    with pytest.raises(UsageError, match="'convergence' has 2 panels, none of number 5; panel=0 to 1, or none for all"):
        found.plot("convergence", 5)
    with pytest.raises(UsageError, match="'drift' has 1 panel, none of number -1; leave panel out"):
        found.plot("drift", -1)


def test_what_is_done_to_a_figure_changes_no_page(tmp_path: Path) -> None:
    found = Results.at(quickstart(tmp_path))
    for name in ("convergence", "drift"):
        figure = found.plot(name)
        figure.axes[0].set_title("SPOILT")
        assert "SPOILT" not in titles(found.plot(name))
    assert "SPOILT" not in found.page(tmp_path / "page.html").read_text()


def test_a_page_begins_with_the_picture_whose_lines_lie_furthest_apart(tmp_path: Path) -> None:
    """As it was: quickstart's began with five curves that coincide."""
    names = [one.name for one in all_pictures(gather(read_suite(quickstart(tmp_path / "a"))))]
    assert names[:2] == ["drift", "convergence"]
    pictures = all_pictures(gather(read_suite(quickstart(tmp_path / "b", drifting=False))))
    assert pictures[0].name == "convergence" and [one.title for one in pictures[0].panels] == ["loss_10", "clean"]
    content = gather(read_suite(quickstart(tmp_path / "c")))
    page.write([content], [], tmp_path / "page.html")
    assert re.findall(r"<h3>(.*?)</h3>", (tmp_path / "page.html").read_text())[0] == "Drift"
