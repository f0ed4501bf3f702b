"""Who wins where: never surer than the seeds are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lossbench.report.content import gather
from lossbench.results.index import read_suite

from . import made

POINTS = [
    {"workload.options.strategy": who, "impair.0.profile": where}
    for who in ("reliable", "rps", "gradients")
    for where in ("clean", "loss_10")
]
SLOW = {"reliable": 10.0, "rps": 2.0, "gradients": 1.0}


def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
    who, lossy = point["workload.options.strategy"], point["impair.0.profile"] != "clean"
    luck = [0.01, -0.02, 0.03, 0.0, -0.01][seed]
    cost = 0.2 + 0.01 * (seed % 2) if lossy and who == "gradients" else 0.001 * (-1) ** seed * (who == "rps")
    return {"accuracy": 0.9 + luck - cost, "ms_step": SLOW[who] * (1 + luck)}


def table(folder: Path, seeds: int) -> list[list[str]] | None:
    found = gather(read_suite(made.suite(folder, POINTS, seeds, row))).named.get("winners")
    return None if found is None else [[cell.text for cell in line] for line in found.rows]


def test_under_each_condition_it_names_the_best_the_equal_the_worse_and_the_fastest(tmp_path: Path) -> None:
    clean, lossy = table(tmp_path, 5) or []
    assert clean[0] == "clean" and clean[1] == "5" and clean[4] == "-" and clean[5].startswith("gradients\n1")
    everybody = {clean[2].split("\n")[0], *clean[3].split("\n")}
    assert everybody == {"reliable", "rps", "gradients"}
    assert lossy[0] == "loss_10" and lossy[4].startswith("gradients -2") and "gradients" not in lossy[3]
    assert lossy[5].startswith("rps\n2"), "the fastest is looked for among the good"


def test_a_contender_that_was_cut_off_does_not_win_by_the_seeds_it_had(tmp_path: Path) -> None:
    place = made.suite(tmp_path, POINTS, 5, row)
    plan = made.read(place / "suite.json")["plan"]
    for one in plan:  # gradients keep only their luckiest seed
        if one["point"]["workload.options.strategy"] == "gradients" and one["seed"] != 2:
            (place / f"{one['number']:03d}" / "summary.json").unlink()
    found = gather(read_suite(place)).named["winners"]
    for line in found.rows:
        assert "gradients" not in line[2].text and "gradients: too few seeds" in line[4].text


def test_one_seed_has_no_winners(tmp_path: Path) -> None:
    assert table(tmp_path, 1) is None
