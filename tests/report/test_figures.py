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
from lossbench.report.tables.words import in_words
from lossbench.results.index import read_suite

from . import made

STRATEGIES = ("reliable", "ddp", "gradient_averaging", "rps", "bounded_drift")
CONDITIONS = ("clean", "loss_10")
STEPS = 40


def quickstart_row(point: dict[str, Any], seed: int) -> dict[str, Any]:
    way, lossy = (STRATEGIES.index(point["workload.options.strategy"]), point["impair.0.profile"] != "clean")
    ms = (60 if way < 2 else 5) if lossy else 5
    return {"accuracy": 0.9 - 0.02 * way * lossy + 0.001 * seed, "ms_step": ms + 0.1 * seed, "ms_step_mean": ms + seed}


def quickstart(folder: Path, *, drifting: bool = True, seeds: int = 1) -> Path:
    """Its ten lines: five ways that are one without loss, and differ with it."""
    points = [{"workload.options.strategy": s, "impair.0.profile": c} for s in STRATEGIES for c in CONDITIONS]
    place = made.suite(folder, points, seeds, quickstart_row, name="quickstart")
    for number, point in enumerate(point for point in points for _ in range(seeds)):
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ms_step", "median time of a step (ms)"),
        ("ms_step_mean", "mean time of a step (ms)"),
        ("ms_step_p99", "p99 time of a step (ms)"),
        ("wall_s", "wall (s)"),
        ("samples_s_worker", "samples per second of a worker"),
        ("sent_mb", "sent (MB)"),
        ("train_loss", "train loss"),
        ("n", "n"),
    ],
)
def test_a_measure_has_its_unit_on_the_page_as_at_an_axis(name: str, words: str, tmp_path: Path) -> None:
    """As it was: "ms step" above a column of the page, and "samples (s)" at an axis."""
    assert in_words(name) == words
    place = made.suite(tmp_path, [{"a": 1}], 2, lambda point, seed: {"ms_step": 4.0 + seed, "ms_step_mean": 5.0 + seed})
    content = gather(read_suite(place))
    page.write([content], [], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "median time of a step (ms)</th>" in text and "mean time of a step (ms)</th>" in text
    assert "what sentences and ratios of times stand on" in " ".join(content.named["results"].notes)
