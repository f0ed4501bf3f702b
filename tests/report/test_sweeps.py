"""Every number that is swept is drawn: of a file, and of the words of a command line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from lossbench.report.content import gather
from lossbench.report.plots.canvas import MOST_CURVES
from lossbench.report.plots.figures import all_pictures
from lossbench.results.index import read_suite
from lossbench.spec.asking import adhoc

from . import made

SWEEPS: list[tuple[dict[str, Any], str, list[tuple[str, tuple[float, ...]]]]] = [
    ({"burst": "8", "sweep": ("loss=0,2,5",)}, "loss (%)", [("mean", (0, 2, 5))]),
    ({"delay": "20ms", "sweep": ("loss=0,5",)}, "loss (%)", [("mean", (0, 5))]),
    ({"sweep": ("delay=0,20ms,1s",)}, "delay (ms)", [("mean", (0, 20, 1000))]),
    ({"sweep": ("rate=100mbit,1gbit",)}, "rate (Mbit/s)", [("mean", (100, 1000))]),
    ({"loss": "5%", "sweep": ("burst=2,8",)}, "packets lost in a row, on average", [("mean", (2, 8))]),
    ({"loss": "5%", "sweep": ("hosts=2,4",)}, "hosts", [("mean", (2, 4))]),
    ({"sweep": ("loss=0,1,5", "hosts=2,4")}, "loss (%)", [("2 hosts", (0, 1, 5)), ("4 hosts", (0, 1, 5))]),
    ({"sweep": ("loss=0,1,5", "burst=2,8")}, "loss (%)", [("bursts of 2", (0, 1, 5)), ("bursts of 8", (0, 1, 5))]),
    (
        {"sweep": ("profile=bursty_5,loss_5", "rate=10,100")},
        "rate (Mbit/s)",
        [("bursty_5", (10, 100)), ("loss_5", (10, 100))],
    ),
]


def swept(folder: Path, words: dict[str, Any]) -> list[Any]:
    """Pictures of what these words of a command line would have run."""
    arms = tomllib.loads(adhoc.text(adhoc.Asked(command=("python", "train.py"), **words)))["sweep"]["arm"]
    points = [{"arm": arm["name"]} for arm in arms]
    place = made.suite(folder, points, 1, lambda point, seed: {"wall_s": float(len(point["arm"]))})
    return [one for one in all_pictures(gather(read_suite(place))) if one.name == "sweep"]


@pytest.mark.parametrize(("words", "axis", "curves"), SWEEPS, ids=[str(words) for words, _, _ in SWEEPS])
def test_every_sweep_of_a_command_line_is_drawn(
    tmp_path: Path, words: dict[str, Any], axis: str, curves: list[tuple[str, tuple[float, ...]]]
) -> None:
    """As it was: only that of a bare loss."""
    (picture,) = swept(tmp_path, words)
    (panel,) = picture.panels
    assert panel.axes.get_xlabel() == axis
    assert [(key.name, key.x) for key in panel.keys] == curves


def test_a_condition_beside_a_clean_network_and_profiles_alone_are_no_sweep_of_a_number(tmp_path: Path) -> None:
    assert swept(tmp_path / "a", {"loss": "3%", "delay": "20ms"}) == []
    assert swept(tmp_path / "b", {"sweep": ("profile=clean,bursty_5",)}) == []


def test_many_lines_of_a_sweep_are_divided_among_panels(tmp_path: Path) -> None:
    (picture,) = swept(tmp_path, {"sweep": ("loss=0,1,2,3,4,5,6,7,8", "hosts=2,3,4,5,6,7,8,9")})
    assert [len(panel.keys) for panel in picture.panels] == [MOST_CURVES, 2]


def test_two_numbers_of_a_file_are_an_axis_and_lines(tmp_path: Path) -> None:
    points = [{"topology.hosts": hosts, "impair.0.profile.loss.percent": p} for hosts in (2, 4) for p in (0, 5, 10)]
    place = made.suite(tmp_path, points, 1, lambda point, seed: {"accuracy": 0.9})
    (picture,) = all_pictures(gather(read_suite(place)))
    assert picture.panels[0].axes.get_xlabel() == "loss (%)"
    assert [(key.name, key.x) for key in picture.panels[0].keys] == [("hosts 2", (0, 5, 10)), ("hosts 4", (0, 5, 10))]
