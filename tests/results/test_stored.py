"""Results that earlier versions left: read, reported, planned again. `stored/` was made by the commit before the house
was rebuilt (its paths are taken out)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lossbench.results.index import read_suite
from lossbench.runs.many import suite as suites
from lossbench.spec import about
from lossbench.spec.asking import points
from lossbench.spec.experiment import as_now

STORED = Path(__file__).parent / "stored" / "20261116-020434_collectives_23bdd9"


def test_results_of_the_version_before_make_their_tables() -> None:
    pytest.importorskip("scipy")
    from lossbench.report.content import gather

    content = gather(read_suite(STORED))
    assert content.problems == [] and content.suite.verdict == "valid"
    assert [table.title.partition(" (")[0] for table in content.tables] == [
        "collectives: asked and proven",
        "collectives: results",
    ]
    (group,) = content.groups
    assert group.measure("gbit_s").better == "high" and group.measure("gbit_s").column == "timing"
    assert group.measure("vs_tcp").meaning and group.measure("p99_ms").column == "timing"


def test_they_can_be_run_again_under_the_names_of_then() -> None:
    plan = suites.planned(read_suite(STORED).plan, STORED)
    assert [one.seed for one in plan] == [0, 1]
    assert {one.experiment.workload.name for one in plan} == {"allreduce"}
    assert about.module_of("collectives") == "lossbench.workloads.allreduce"
    assert about.module_of("collectives.loop") == "lossbench.workloads.allreduce.loop"


def test_a_suite_that_was_begun_then_is_found_by_its_name_and_settings(tmp_path: Path) -> None:
    begun = tmp_path / STORED.name
    shutil.copytree(STORED, begun)
    (begun / "001" / "summary.json").unlink()
    settings = [
        "topology.hosts=2",
        "topology.mtu=1500",
        "impair.0.profile=loss_1",
        "workload.options.mb=1",
        "workload.options.repeats=3",
        "workload.options.budget_s=2",
        'workload.options.contenders=["lossy"]',
        "probe.packets=4000",
    ]
    plan = suites.plan_of(points.points(points.find("collectives"), settings=settings), seeds=2)
    assert suites.newest_unfinished(tmp_path, plan) == begun


def test_the_same_experiment_then_and_now_does_not_differ() -> None:
    pytest.importorskip("scipy")
    from lossbench.report.between import compare

    old = read_suite(STORED)
    renewed = [one.model_copy(update={"experiment": as_now(one.experiment)}) for one in old.plan.plan]
    new = replace(old, plan=old.plan.model_copy(update={"plan": renewed}))
    assert renewed[0].experiment != old.plan.plan[0].experiment
    assert compare.spec(old, new).rows == []
