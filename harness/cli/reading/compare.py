"""`lossbench compare`: are two results the same?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from lossbench.cli.console import Terminal
from lossbench.cli.reading.report import IN, known_runs, need_libraries
from lossbench.errors import ExitCode, UsageError
from lossbench.results.naming import counted

if TYPE_CHECKING:
    from lossbench.report.between.compare import Line
    from lossbench.report.between.limits import Limit
    from lossbench.results.index import Suite

RUN_HELP = "A folder, id, suite name (its latest), commit, or `latest`."
MARGIN = typer.Option(10.0, "--margin", min=0.0, help="Percent of A's (the old) mean: within it means are the same.")


def compare(
    a: str = typer.Argument(help=RUN_HELP, autocompletion=known_runs),
    b: str = typer.Argument(help="The other one.", autocompletion=known_runs),
    where: Path = IN,
    with_simulated: bool = typer.Option(False, "--with-simulated", help="Compare simulated runs too."),
    margin: float = MARGIN,
    fail_if: list[str] = typer.Option(
        [], "--fail-if", metavar="'wall_s > +5%'", help="Exit code 1 if B's number moved further than this from A's."
    ),
) -> None:
    """What differs between two runs in spec, machine and result; what is the same within a margin, or open.

    Examples:

      lossbench compare ab12cd 98fe76

      lossbench compare 3c39f4a b15d59f   # everything made with two commits, suite by suite

      lossbench compare main mine --fail-if 'wall_s > +5%' --fail-if 'accuracy < -0.01'

    A number is called what --json calls it (lost_percent); step_ms_p99 is a percentile of samples, one of each seed
    that has enough of them.

    A number is the same only where the whole 95 % interval of its change lies within --margin. Exit code 0, whatever
    differs, unless --fail-if asks: then 0 if limits are kept (by that whole interval, so by two seeds at least), 1 if
    one is broken (by the mean, and with several seeds beyond chance, corrected for the lines that limits name), 3 if
    nobody can tell: neither of these, no valid line has such a number, or only one side has it.
    """
    need_libraries()
    from lossbench.report.between import compare as comparing
    from lossbench.report.between import partners
    from lossbench.report.between.limits import Limit
    from lossbench.report.between.sameness import summed_up
    from lossbench.report.tables.table import terminal

    limits = [Limit.read(text) for text in fail_if]
    limited = {limit.measure for limit in limits}
    named: list[Line] = []
    unknown: list[tuple[str, str, str]] = []
    console = Terminal()
    pairs = _matched(a, b, where)
    for left, right in pairs:
        console.print(f"A: {left.name} {left.id}, {left.folder}", markup=False, soft_wrap=True)
        console.print(f"B: {right.name} {right.id}, {right.folder}", markup=False, soft_wrap=True)
        for text in (*left.remarks(), *right.remarks()):
            console.print(f"warning: {text}", markup=False, soft_wrap=True)
        for table in (comparing.spec(left, right), comparing.machine(left, right)):
            if table.rows:
                terminal(console, table)
            else:
                console.print(f"{table.title}: no difference")
        lines = comparing.result_lines(left, right, with_simulated=with_simulated)
        named += comparing.result_lines(left, right, with_simulated=with_simulated, measures=limited)
        unknown += partners.unknown_lines(left, right, with_simulated=with_simulated, measures=limited)
        if lines:
            unequal = partners.unequal(left, right, with_simulated=with_simulated)
            note = partners.unequal_note(unequal)
            terminal(console, comparing.results(lines, margin=margin / 100, unequal=note))
            found = [line.said(margin=margin / 100) for line in lines]
            gone = partners.on_one_side(left, right, with_simulated=with_simulated)
            said = summed_up(found, gone, margin=margin / 100, unequal=len(unequal))
            console.print(said, markup=False, soft_wrap=True)
        else:
            console.print(partners.nothing_in_common(left, right), markup=False, soft_wrap=True)
    if limits:
        known = comparing.measures_of(*(suite for pair in pairs for suite in pair))
        raise typer.Exit(_judged(console, limits, comparing.corrected(named), unknown, known))


def _judged(
    console: Console, limits: list[Limit], lines: list[Line], unknown: list[tuple[str, str, str]], known: list[str]
) -> ExitCode:
    """Every limit in words."""
    found = [_one(console, limit, limit.about(lines), limit.unmet(unknown), known) for limit in limits]
    return next(code for code in (ExitCode.FAILED, ExitCode.UNKNOWN, ExitCode.VALID) if code in found)


def _one(console: Console, limit: Limit, lines: list[Line], unknown: list[str], known: list[str]) -> ExitCode:
    broken = [f"broken: {limit.words(line)}" for line in lines if limit.broken(line)]
    open_ = [line for line in lines if limit.doubtful(line) or limit.unsure(line)]
    doubts = [f"unknown: {limit.words(line)}: {limit.why_open(line)}" for line in open_]
    doubts += [f"unknown: {text}" for text in unknown]
    if not (lines or unknown):
        from lossbench.spec.userfile import did_you_mean

        meant = f"; {did_you_mean(limit.measure, known)}" if known and limit.measure not in known else ""
        doubts = [f"unknown: {limit.measure}: no valid line has such a number on both sides{meant}"]
    kept = [f"kept: {limit.measure} in {counted(len(lines), 'line')}, by the whole 95 % interval"]
    for text in broken + doubts or kept:
        console.print(text, markup=False, soft_wrap=True)
    return ExitCode.FAILED if broken else ExitCode.UNKNOWN if doubts else ExitCode.VALID


def _matched(a: str, b: str, where: Path) -> list[tuple[Suite, Suite]]:
    """One pair; of commits, the latest of each suite that both have."""
    from lossbench.results import index

    (left, first), (right, second) = (index.pick([word], where) for word in (a, b))
    for text in dict.fromkeys([*first, *second]):
        Terminal(stderr=True).print(text, markup=False, soft_wrap=True)
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    by_name = [{suite.name: suite for suite in some} for some in (left, right)]
    common = [name for name in by_name[0] if name in by_name[1]]
    if not common:
        raise UsageError(f"{a} and {b} have no suite in common", next_step="`lossbench report` lists them")
    return [(by_name[0][name], by_name[1][name]) for name in common]
