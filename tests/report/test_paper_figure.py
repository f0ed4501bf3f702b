"""Beside a paper's figure stands only what is that figure's experiment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lossbench.report.plots import paper
from lossbench.report.plots.curves import Curve
from lossbench.spec.asking import points

FIGURES = ("4a", "4b", "4c", "5a", "5b", "5c")


def group(figure: str = "4a", **options: Any) -> Any:
    """A point of the suite's full form with 10 % (5 % for gradients) of the packets lost."""
    suite = points.find(f"rps-figure-{figure}")
    _, spec = points.points(suite, settings=[], full=True)[1 if figure[0] == "5" else 3]
    written = spec.model_dump(mode="json")
    written["workload"]["options"] |= options
    run = SimpleNamespace(manifest={"experiment": written, "path_loss": {"a": 0.1}}, simulated=False)
    return SimpleNamespace(runs=[run])


@pytest.mark.parametrize("figure", FIGURES)
def test_the_full_form_of_a_figures_suite_is_that_figure(figure: str) -> None:
    suite = points.find(f"rps-figure-{figure}")
    for _, spec in points.points(suite, settings=[], full=True):
        run = SimpleNamespace(manifest={"experiment": spec.model_dump(mode="json")})
        assert paper._paper_figure(SimpleNamespace(runs=[run])) == f"fig{figure}"  # type: ignore[arg-type]
        assert spec.workload.options["epochs"] == paper.EPOCHS[figure[1]]


@pytest.mark.parametrize(
    "changed",
    [
        {"lr": 0.05, "batch": 4, "schedule": "constant", "epochs": None, "steps": 2000},
        {"lr": 0.05},
        {"batch": 4},
        {"schedule": "constant"},
        {"warm_up": 0.2},
        {"drop_at": [0.25, 0.5]},
        {"normaliser": "world"},
        {"policy": "repair=0.98"},
        {"precision": "bf16"},
        {"optimizer_options": {"momentum": 0.9}},
        {"skew": 0.3},
        {"epochs": 300},
    ],
)
def test_what_learns_otherwise_is_not_the_papers_experiment(changed: dict[str, Any]) -> None:
    """As it was: rate, batch, schedule, normaliser, policy, precision were not looked at."""
    assert paper._paper_figure(group(**changed)) == ""


@pytest.mark.parametrize("said", [{"normaliser": "count"}, {"precision": "fp32"}, {"policy": ""}, {"target": 0.5}])
def test_what_is_said_as_it_is_anyway_changes_nothing(said: dict[str, Any]) -> None:
    assert paper._paper_figure(group(**said)) == "fig4a"


@pytest.mark.parametrize(
    ("figure", "options", "text"),
    [
        ("4a", {"epochs": 9}, "Figure 4a: 9 of 160 epochs, the schedule squeezed."),
        ("4a", {"epochs": None, "steps": 500}, "Figure 4a: 5 of 160 epochs, the schedule squeezed."),
        ("4c", {"epochs": 4}, "Figure 4c: 4 of 20 epochs."),
        ("4a", {}, ""),
    ],
)
def test_a_run_that_is_shorter_says_so_below_the_picture(figure: str, options: dict[str, Any], text: str) -> None:
    drawn: Any = SimpleNamespace(
        groups=[group(figure, **options)],
        loss=lambda _: Curve(np.array([1.0, 500.0]), np.array([2.0, 1.0])),
        epoch=lambda _: 100.0,
        label=lambda _: "ours",
    )
    picture = paper.beside_the_paper(drawn)
    assert picture is not None and picture.says.endswith(text or "16 workers)."), picture.says


@pytest.mark.parametrize(("figure", "lines"), [("4a", 11), ("5a", 10)])
def test_each_line_of_a_whole_suite_says_and_shows_what_was_lost_and_by_which_rule(figure: str, lines: int) -> None:
    """As it was: from eight lines on all of one arrival had one name and one look, packets or blocks, own or zero."""
    suite, groups = points.find(f"rps-figure-{figure}"), []
    for _, spec in points.points(suite, settings=[], full=True):
        manifest = {"experiment": spec.model_dump(mode="json"), "path_loss": spec.impair[0].profile.mean_loss()}
        groups.append(SimpleNamespace(runs=[SimpleNamespace(manifest=manifest, simulated=False)], number=len(groups)))
    drawn: Any = SimpleNamespace(
        groups=groups,
        loss=lambda one: Curve(np.array([1.0, 500.0]), np.array([2.0, 1.0 + one.number])),
        epoch=lambda _: 100.0,
        label=lambda _: "a name too long for eleven",
    )
    picture = paper.beside_the_paper(drawn)
    assert picture is not None
    ours = [key for key in picture.panels[0].keys if key.name.startswith("ours")]
    assert len(ours) == len({key.name for key in ours}) == len({(key.colour, key.dash) for key in ours}) == lines
    by_name, rule = {key.name: key for key in ours}, ", own" if figure == "5a" else ""
    packets, blocks = (by_name[f"ours 95%, {unit}{rule}"] for unit in ("packets", "blocks"))
    assert packets.colour == blocks.colour and (packets.dash, blocks.dash) == ("-", "--")
