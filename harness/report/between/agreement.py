"""Do two means agree? Of a line of a table and the same line, run again. They do where the whole interval of their
difference lies within a margin that was stated beforehand; that no difference was found is no agreement."""

from __future__ import annotations

from dataclasses import dataclass

from lossbench.errors import ExitCode
from lossbench.report.between import sameness
from lossbench.report.between.compare import Line, lines_of
from lossbench.report.groups import Group, groups_of
from lossbench.results.index import Suite

SHOWN = 3  # of the measures that are not known well enough


@dataclass(frozen=True, kw_only=True)
class Agreement:
    lines: list[Line]
    differ: list[str]
    margin: float
    """Share of the old mean."""
    doubt: str
    """Why "they agree" would say too much; empty if it does not."""

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.FAILED if self.differ else ExitCode.UNKNOWN if self.doubt else ExitCode.VALID

    def in_words(self) -> str:
        if self.differ:
            return f"the means differ: {', '.join(self.differ)}"
        if self.doubt:
            return f"undecided: {self.doubt}"
        seeds = min(line.change.n for line in self.lines)
        return f"the means agree within {self.margin:.0%} ({seeds} seeds, the 95 % interval of every difference)"


def agreement(before: list[Group], suite: Suite, *, margin: float) -> Agreement:
    after = {group.name: group for group in groups_of(suite, with_simulated=True)}
    lines = lines_of([(group, after[group.name]) for group in before if group.name in after])
    doubt = _doubt(before, after, [(line.point, line.measure) for line in lines if line.change.p is not None])
    return Agreement(
        lines=lines,
        margin=margin,
        differ=[f"{line.point} {line.measure}" for line in lines if line.change.significant],
        doubt=doubt or _open(lines, margin),
    )


def _open(lines: list[Line], margin: float) -> str:
    """What is not known well enough, and what can tell."""
    wide = [line for line in lines if line.said(margin=margin) == sameness.OPEN]
    for some, why in (
        ([line for line in wide if not line.whole], "was not valid in every seed before; run it anew"),
        ([line for line in wide if line.change.unseen], f"{sameness.ALL_ALIKE}, and no --margin"),
        (wide, f"may differ by more than {margin:.0%}; more seeds, or a wider --margin"),
    ):
        if some:
            names = [f"{line.point} {line.measure}" for line in some]
            return f"{', '.join(names[:SHOWN])}{', ...' if names[SHOWN:] else ''} {why}"
    return ""


def _doubt(before: list[Group], after: dict[str, Group], tested: list[tuple[str, str]]) -> str:
    wanted = [(group.name, name) for group in before for name in group.shown if group.sound(name)]
    if not wanted:
        return "there are no numbers that may be compared"
    for point, name in wanted:
        if point not in after or not after[point].sound(name):
            return f"{point} {name} is not there, or not valid, this time"
    for group in before:
        if any(not group.comparable(after[group.name], name) for point, name in wanted if point == group.name):
            return f"{group.name} trained for {group.lasts}, and for {after[group.name].lasts} this time"
    if any(not after[point].complete(name) for point, name in wanted):
        return "a run was not valid this time"
    if [pair for pair in wanted if pair not in tested]:
        return "a test of means needs two valid seeds on both sides; make them with --seeds 5"
    return ""
