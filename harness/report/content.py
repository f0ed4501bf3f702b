"""Everything a report says of one suite, gathered once; terminal, files and page only write it down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.report.differences import differences
from harness.report.groups import Group, groups_of
from harness.report.index import Suite
from harness.report.outcomes import results
from harness.report.proven import proven, reasons
from harness.report.tables import Table
from harness.report.tails import SampleSet, sample_sets, tails


@dataclass
class Content:
    suite: Suite
    groups: list[Group]
    tables: list[Table]
    sets: list[SampleSet]
    reasons: list[str]
    problems: list[str]
    warnings: list[str] = field(default_factory=list)
    pictures: list[Any] | None = None  # once they are drawn


def gather(suite: Suite, *, baseline: str = "", bootstrap: bool = False, with_simulated: bool = False) -> Content:
    groups = groups_of(suite, with_simulated=with_simulated)
    sets, problems = sample_sets(groups, with_simulated=with_simulated)
    made = []
    if groups:
        made = [
            proven(suite), results(suite, groups, bootstrap=bootstrap),
            differences(suite, groups, baseline=baseline), tails(suite, sets),
        ]  # fmt: skip
    return Content(
        suite=suite, groups=groups, sets=sets, reasons=reasons(suite), problems=[*suite.problems, *problems],
        tables=[table for table in made if table is not None],
        warnings=list(dict.fromkeys([*suite.shared_patterns(), *(t for r in suite.runs for t in r.summary.warnings)])),
    )  # fmt: skip
