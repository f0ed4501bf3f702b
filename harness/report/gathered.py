"""What a table is made of: a suite's results, brought together once. A user's own table takes one of these."""

from __future__ import annotations

from dataclasses import dataclass

from lossbench.report.groups import Group
from lossbench.report.samples import SampleSet
from lossbench.results.index import Suite


@dataclass(frozen=True, kw_only=True)
class Gathered:
    suite: Suite
    groups: list[Group]
    """One for each line: a point over all its seeds."""
    sets: list[SampleSet]
    """Long samples (latencies, step times), one set for each point and kind."""
    baseline: str = ""
    """The line that others are compared with; empty: the usual one (tables/differences.py)."""
    bootstrap: bool = False
    """Intervals by bootstrap, where there are seeds enough."""
