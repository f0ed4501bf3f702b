"""`lossbench compare` and `lossbench replay`: are two results the same, and does a result come again?"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from harness import rootless
from harness.cli.reporting import IN, known_runs, need_libraries
from harness.errors import ExitCode, UsageError
from harness.naming import key_of

if TYPE_CHECKING:
    from harness import suite as suites
    from harness.report.groups import Group
    from harness.report.index import Suite

RUN_HELP = "A folder, id, suite name (its latest), commit, or `latest`."


def compare(
    a: str = typer.Argument(help=RUN_HELP, autocompletion=known_runs),
    b: str = typer.Argument(help="The other one.", autocompletion=known_runs),
    where: Path = IN,
    with_simulated: bool = typer.Option(False, "--with-simulated", help="Compare simulated runs too."),
) -> None:
    """What differs between two runs in spec, machine and result, with significance.

    Examples:

      lossbench compare ab12cd 98fe76

      lossbench compare 3c39f4a b15d59f        everything made with two commits, suite by suite

    Exit code 0, whatever differs; `replay` has one that says it.
    """
    need_libraries()
    from harness.report import compare as comparing
    from harness.report.tables import terminal

    console = Console(highlight=False)
    for left, right in _matched(a, b, where):
        console.print(f"A: {left.name} {left.id}, {left.folder}", markup=False, soft_wrap=True)
        console.print(f"B: {right.name} {right.id}, {right.folder}", markup=False, soft_wrap=True)
        for text in (*left.shared_patterns(), *right.shared_patterns()):
            console.print(f"warning: {text}", markup=False, soft_wrap=True)
        for table in (comparing.spec(left, right), comparing.machine(left, right)):
            if table.rows:
                terminal(console, table)
            else:
                console.print(f"{table.title}: no difference")
        lines = comparing.result_lines(left, right, with_simulated=with_simulated)
        if lines:
            terminal(console, comparing.results(lines))
        else:
            console.print("results: no line in common that is valid on both sides")


def _matched(a: str, b: str, where: Path) -> list[tuple[Suite, Suite]]:
    """One pair; of commits, the latest of each suite that both have."""
    from harness.report import index

    (left, first), (right, second) = (index.pick([word], where) for word in (a, b))
    for text in dict.fromkeys([*first, *second]):
        Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    by_name = [{suite.name: suite for suite in some} for some in (left, right)]
    common = [name for name in by_name[0] if name in by_name[1]]
    if not common:
        raise UsageError(f"{a} and {b} have no suite in common", next_step="`lossbench report` lists them")
    return [(by_name[0][name], by_name[1][name]) for name in common]


def replay(
    run: str = typer.Argument(help=f"{RUN_HELP} Or the folder of a single run (.../003).", autocompletion=known_runs),
    row: str = typer.Argument("", help="The line of its table to run again, by name or a part of it."),
    where: Path = IN,
    out: Path | None = typer.Option(None, "--out", help="Folder for the new results; else beside the old ones."),
) -> None:
    """Run one line of a table again with the same seeds, and test whether the two means differ.

    Exit codes: 0 they agree, 1 they differ, 3 it can't be said (one seed only, or something not valid).

    Examples:

      lossbench replay latest "rps loss_10"

      lossbench replay results/runs/20261115-120000_quickstart_ab12cd/003
    """
    if rootless.needed():
        rootless.enter()
    need_libraries()
    from harness import suite as suites
    from harness.cli import live
    from harness.report import index

    found, problems = index.pick([run], where)
    if len(found) != 1:
        raise UsageError(f"{run} names {len(found)} results", next_step=f"give one of {', '.join(s.id for s in found)}")
    old = found[0]
    console = Console(stderr=True, highlight=False)
    for text in problems:
        console.print(text, markup=False, soft_wrap=True)
    for text in old.shared_patterns():
        console.print(f"warning: {text} Its patterns will not come again.", markup=False, soft_wrap=True)
    groups = _rows(old, _number_of(run), row)
    with live.View(console, quiet=False) as view:
        result = suites.run_suite(
            _again(old, groups[0]), out=out or old.folder.parent, run_id=secrets.token_hex(3), progress=view.show,
            name=old.name.removesuffix(index.REPLAYED) + index.REPLAYED,
        )  # fmt: skip
    raise typer.Exit(_agree(groups, index.read_suite(result.folder)))


def _number_of(run: str) -> int | None:
    """The run's number, if its own folder was given."""
    path = Path(run)
    return int(path.name) if (path / "manifest.json").exists() and path.name.isdecimal() else None


def _rows(suite: Suite, number: int | None, wanted: str) -> list[Group]:
    """All lines of the table that the runs of one point made."""
    from harness.report.groups import groups_of

    groups = groups_of(suite, with_simulated=True)
    if number is not None:
        groups = [group for group in groups if any(one.number == number for one in group.runs)]
    found = [group for group in groups if group.name == wanted] or [group for group in groups if wanted in group.name]
    points = {key_of(group.point) for group in found}
    if len(points) != 1:
        known = ", ".join(f"'{group.name}'" for group in found or groups) or "none that ended"
        raise UsageError(f"{'no line' if not found else 'several lines'} '{wanted}'", next_step=f"known: {known}")
    return [group for group in groups if key_of(group.point) in points]


def _again(old: Suite, group: Group) -> list[suites.Planned]:
    """Every seed that was planned for it, under new numbers."""
    from dataclasses import replace

    from harness import suite as suites

    everything = suites.planned(old.plan, old.folder)
    chosen = [one for one in everything if key_of(one.chosen) == key_of(group.point)]
    return [replace(one, number=number) for number, one in enumerate(chosen)]


def _agree(before: list[Group], suite: Suite) -> ExitCode:
    from harness.report import compare as comparing
    from harness.report.groups import groups_of
    from harness.report.tables import terminal

    console = Console(highlight=False)
    after = {group.name: group for group in groups_of(suite, with_simulated=True)}
    pairs = [(group, after[group.name]) for group in before if group.name in after]
    lines = comparing.lines_of(pairs)
    if lines:
        terminal(console, comparing.results(lines))
    console.print(f"again: {suite.folder}", markup=False, soft_wrap=True)
    differ = [f"{line.point} {line.measure}" for line in lines if line.change.significant]
    if differ:
        console.print(f"the means differ: {', '.join(differ)}", markup=False)
        return ExitCode.FAILED
    doubt = _doubt(before, after, [(line.point, line.measure) for line in lines if line.change.p is not None])
    if doubt:
        console.print(f"it can't be said: {doubt}", markup=False)
        return ExitCode.UNKNOWN
    seeds = min(line.change.n for line in lines)
    console.print(f"the means agree as far as {seeds} seeds can tell: no difference beyond chance")
    return ExitCode.VALID


def _doubt(before: list[Group], after: dict[str, Group], tested: list[tuple[str, str]]) -> str:
    """Why "they agree" would say too much; empty if it does not."""
    wanted = [(group.name, name) for group in before for name in group.shown if group.sound(name)]
    if not wanted:
        return "there are no numbers that may be compared"
    for point, name in wanted:
        if point not in after or not after[point].sound(name):
            return f"{point} {name} is not there, or not valid, this time"
    if any(not after[point].complete(name) for point, name in wanted):
        return "a run was not valid this time"
    if [pair for pair in wanted if pair not in tested]:
        return "a test of means needs two valid seeds on both sides; make them with --seeds 5"
    return ""
