"""Everything a report says of one suite, gathered once; terminal, files and page only write it down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lossbench.contract import by_path
from lossbench.errors import UsageError
from lossbench.report import papers
from lossbench.report.finding import brief, findings
from lossbench.report.gathered import Gathered
from lossbench.report.groups import Group, groups_of
from lossbench.report.samples import SampleSet, sample_sets
from lossbench.report.tables.colocation import colocation, cost
from lossbench.report.tables.differences import differences
from lossbench.report.tables.outcomes import results
from lossbench.report.tables.probes import probes
from lossbench.report.tables.proven import proven, reasons
from lossbench.report.tables.slowdowns import slowdowns
from lossbench.report.tables.table import Table
from lossbench.report.tables.tails import tails
from lossbench.report.tables.winners import winners
from lossbench.results.index import Suite

# In the order of a report; None where there is nothing to say. A user's own is named by its import path.
TABLES: tuple[Callable[[Gathered], Table | None], ...] = (
    probes,
    proven,
    colocation,
    cost,
    slowdowns,
    results,
    differences,
    winners,
    tails,
)


@dataclass
class Content:
    suite: Suite
    groups: list[Group]
    named: dict[str, Table]  # by the name of the function that made it
    sets: list[SampleSet]
    reasons: list[str]
    problems: list[str]
    findings: list[str] = field(default_factory=list)
    brief: list[str] = field(default_factory=list)  # of them, what a terminal shows at first
    warnings: list[str] = field(default_factory=list)
    pictures: list[Any] | None = None  # once they are drawn

    @property
    def tables(self) -> list[Table]:
        return list(self.named.values())


def gather(
    suite: Suite,
    *,
    baseline: str = "",
    bootstrap: bool = False,
    with_simulated: bool = False,
    apart: bool = False,
    more: Sequence[str] = (),
) -> Content:
    """`apart`: every seed has a line of its own. `more`: tables of the user, as `module:function`."""
    groups = groups_of(suite, with_simulated=with_simulated, apart=apart)
    sets, problems = sample_sets(groups, with_simulated=with_simulated)
    found = Gathered(suite=suite, groups=groups, sets=sets, baseline=baseline, bootstrap=bootstrap)
    said, claimed = findings(found), papers.sentences(found)
    makers = (*TABLES, *map(_own, more)) if groups else ()
    return Content(
        suite=suite,
        groups=groups,
        sets=sets,
        reasons=reasons(suite),
        findings=[*said, *claimed],
        brief=[*brief(said), *claimed],
        problems=[*suite.problems, *problems],
        named={make.__name__: table for make in makers if (table := make(found)) is not None},
        warnings=list(dict.fromkeys([*suite.remarks(), *(t for r in suite.runs for t in r.summary.warnings)])),
    )


def _own(path: str) -> Callable[[Gathered], Table | None]:
    try:
        found = by_path(path)
    except ValueError as error:
        raise UsageError(f"--table {error}") from None
    if not callable(found):
        raise UsageError(f"--table {path} is no function")
    return found  # type: ignore[no-any-return]
