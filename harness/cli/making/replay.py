"""`lossbench replay`: does a result come again?"""

from __future__ import annotations

from pathlib import Path

import typer

from lossbench.cli.console import Terminal
from lossbench.cli.making.run import LAB, THESE_NICS
from lossbench.cli.reading.compare import MARGIN, RUN_HELP
from lossbench.cli.reading.report import IN, known_runs, need_libraries
from lossbench.errors import UsageError
from lossbench.net.host import rootless


def replay(
    run: str = typer.Argument(help=f"{RUN_HELP} Or the folder of a single run (.../003).", autocompletion=known_runs),
    row: str = typer.Argument("", help="The line of its table to run again, by name or a part of it."),
    where: Path = IN,
    out: Path | None = typer.Option(None, "--out", help="Folder for the new results; else beside the old ones."),
    lab: Path | None = LAB,
    yes_these_nics: bool = THESE_NICS,
    margin: float = MARGIN,
) -> None:
    """Run one line of a table again with the same seeds, and test whether the two means agree.

    Exit codes: 0 they agree (the whole 95 % interval of every difference is within the margin), 1 they differ, 3
    undecided (too few seeds, or something not valid).

    Examples:

      lossbench replay latest "rps loss_10"

      lossbench replay results/runs/20261115-120000_quickstart_ab12cd/003
    """
    if lab is None:
        rootless.with_rights()
    need_libraries()
    from lossbench import api
    from lossbench.cli.screen import live
    from lossbench.report import groups
    from lossbench.report.between.agreement import agreement
    from lossbench.report.between.compare import results
    from lossbench.report.tables.table import terminal
    from lossbench.results import index

    found, problems = index.pick([run], where)
    if len(found) != 1:
        raise UsageError(f"{run} names {len(found)} results", next_step=f"give one of {', '.join(s.id for s in found)}")
    old = found[0]
    errors, console = Terminal(stderr=True), Terminal()
    for text in problems:
        errors.print(text, markup=False, soft_wrap=True)
    for text in old.shared_patterns():
        errors.print(f"warning: {text} Its patterns will not come again.", markup=False, soft_wrap=True)
    for text in old.changed_programs():
        errors.print(f"warning: {text}", markup=False, soft_wrap=True)
    lines = groups.lines_of_point(old, row, number=index.number_of(run))
    with live.View(errors, quiet=False) as view:
        again = api.replay(old, lines, out=out, lab=lab, these_nics=yes_these_nics, progress=view.show)
    verdict = agreement(lines, again, margin=margin / 100)
    if verdict.lines:
        terminal(console, results(verdict.lines, margin=margin / 100))
    console.print(f"again: {again.folder}", markup=False, soft_wrap=True)
    console.print(verdict.in_words(), markup=False)
    raise typer.Exit(verdict.exit_code)
