"""What papers say, held against what was measured: never surer than the seeds allow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from lossbench.report.content import gather
from lossbench.results.index import read_suite

from . import made

CLAIM = {"measure": "perplexity", "change_percent": 2.0, "source": "A paper"}
LAW = {"measure": "gradient_square", "over": ["topology.hosts", "steps"], "exponent": -0.5, "source": "A theorem"}


def said(folder: Path, points: list[dict[str, Any]], seeds: int, row: made.Row, **written: Any) -> list[str]:
    """`written` stands in every experiment; a point's own keys, too. A point's `loss` was asked for."""
    place = made.suite(folder, points, seeds, row)
    plan = made.read(place / "suite.json")
    for one in plan["plan"]:
        one["experiment"] = {**one["experiment"], **one["point"], **written}
        path = place / f"{one['number']:03d}" / "summary.json"
        made.write(path, {**made.read(path), "asked_loss": [one["point"]["loss"]]})
    made.write(place / "suite.json", plan)
    found = gather(read_suite(place)).findings
    return [text for text in found if "paper" in text or "theorem" in text]


def costs(percent: float, noise: float) -> made.Row:
    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"perplexity": 100 * (1 + seed / 10) + (percent + noise * (-1) ** seed) * (point["loss"] > 0)}

    return row


@pytest.mark.parametrize(
    ("percent", "noise", "seeds", "verdict"),
    [
        (0.5, 0.2, 5, "reproduced"),
        (5.0, 0.2, 5, "not reproduced"),
        (2.0, 4.0, 5, "not decidable yet"),
        (0.5, 0.0, 1, "not decidable with so few seeds"),
    ],
)
def test_a_claim_is_reproduced_only_if_the_whole_interval_is_within_it(
    percent: float, noise: float, seeds: int, verdict: str, tmp_path: Path
) -> None:
    (text,) = said(tmp_path, [{"loss": 0.0}, {"loss": 0.1}], seeds, costs(percent, noise), stated=[CLAIM])
    assert text.endswith(f"A paper: at most +2.0 %: {verdict}."), text
    assert "against 0" in text and ("seed" in text)


def falls(exponent: float) -> made.Row:
    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        size = point["topology"]["hosts"] * point["steps"]
        return {
            "gradient_square": 3 * size**exponent * math.exp(0.03 * (point["topology"]["hosts"] == 4) + 0.01 * seed)
        }

    return row


def _sweep() -> list[dict[str, Any]]:
    return [
        {"loss": loss, "topology": {"hosts": hosts}, "steps": steps}
        for loss in (0.0, 0.1)
        for hosts in (2, 4, 8)
        for steps in (100, 400)
    ]


@pytest.mark.parametrize(
    ("exponent", "word"),
    [(-0.5, "agrees"), (-0.2, "the exponent here is larger"), (-0.8, "the exponent here is smaller")],
)
def test_a_law_is_fitted_over_points_with_an_interval_for_every_loss(
    exponent: float, word: str, tmp_path: Path
) -> None:
    clean, lossy = said(tmp_path, _sweep(), 2, falls(exponent), law=[LAW])
    assert "gradient square without loss" in clean and "(hosts x steps)^" in clean and "at 10 % loss" in lossy
    for text in (clean, lossy):
        assert f"^{exponent:.2f} (" in text and text.endswith(f"A theorem: -0.5: {word}.") and "6 points" in text


def test_a_slope_that_may_be_nothing_decides_nothing(tmp_path: Path) -> None:
    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"gradient_square": 5.0 if point["steps"] == 100 and point["topology"]["hosts"] == 4 else 1.0}

    clean, _ = said(tmp_path, _sweep(), 2, row, law=[LAW])
    assert clean.endswith("-0.5: not decidable yet."), clean


@pytest.mark.parametrize("other", [{"loss": 0.3}, {"loss": 0.0, "topology": {"hosts": 9}}])
def test_without_a_loss_free_point_of_the_same_work_no_claim_is_judged(other: dict[str, Any], tmp_path: Path) -> None:
    assert said(tmp_path, [other, {"loss": 0.1}], 5, costs(0.5, 0.2), stated=[CLAIM]) == []


def test_of_an_accuracy_a_claim_says_what_it_loses_at_most(tmp_path: Path) -> None:
    claim = {"measure": "accuracy", "change_percent": -1.0, "source": "A paper"}

    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"accuracy": 0.9 + seed / 100 - (0.3 + seed / 1000) * (point["loss"] > 0)}

    (text,) = said(tmp_path, [{"loss": 0.0}, {"loss": 0.1}], 5, row, stated=[claim])
    assert text.endswith("at least -1.0 %: not reproduced."), text


def test_two_points_make_no_law(tmp_path: Path) -> None:
    assert said(tmp_path, _sweep()[:2], 2, falls(-0.5), law=[LAW]) == []
