"""`lossbench compare`: are two results the same?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from lossbench.cli.report import IN, known_runs, need_libraries
from lossbench.errors import UsageError

if TYPE_CHECKING:
    from lossbench.results.index import Suite

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
    from lossbench.report import compare as comparing
    from lossbench.report.tables.table import terminal

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
    from lossbench.results import index

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
