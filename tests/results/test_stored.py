"""Results that earlier versions left: read, reported, planned again. `stored/` was made by the commit before the house
was rebuilt (its paths are taken out)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lossbench.results.index import read_suite
from lossbench.runs import suite as suites
from lossbench.spec import about

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
    assert {one.experiment.workload.name for one in plan} == {"collectives"}
    assert about.module_of("collectives") == "lossbench.workloads.allreduce"
    assert about.module_of("collectives.loop") == "lossbench.workloads.allreduce.loop"
