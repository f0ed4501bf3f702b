"""`lossbench campaign`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from lossbench.cli.console import Terminal, say
from lossbench.errors import ExitCode, UsageError
from lossbench.net.host import rootless
from lossbench.results.naming import counted


def campaign(
    file: Path = typer.Argument(help="A campaign (.toml): suites in order of importance."),
    minutes: float = typer.Option(
        0.0, "--minutes", min=0, show_default=False, help="When to stop; a run that would not fit waits."
    ),
    out: Path = typer.Option(Path("results/runs"), "--out", help="Folder for the results, and where earlier ones are."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what is left to do; run nothing."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
) -> None:
    """Suites in order of importance until time is up; run the same command again to continue.

    A run that is not expected to fit is not begun. Every point with one seed, then with the next: what is there can be
    compared.

    Examples:

      lossbench campaign results/published/gpu.toml --minutes 25

      lossbench campaign results/published/gpu.toml --dry-run
    """
    if not dry_run:
        if not minutes:
            raise UsageError("how long?", next_step="--minutes 25")
        rootless.with_rights()  # before anything that starts a thread is loaded
    from lossbench import api, files
    from lossbench.cli.screen import live
    from lossbench.proof.verdict import EXIT_CODES

    if dry_run:
        from lossbench.runs.many import planning

        parts = planning.parts_of(file)
        for part in parts:
            part.find(out)
        text = [f"{part.name}: {len(part.left())} of {counted(len(part.plan), 'run')} to do" for part in parts]
        say(files.as_json({"suites": [part.as_json() for part in parts]}) if as_json else "\n".join(text))
        raise typer.Exit
    with live.View(Terminal(stderr=True), quiet=as_json) as view:
        parts = api.campaign(file, minutes=minutes, out=out, progress=view.show)
    said = [part.as_json() for part in parts]
    if as_json:
        sys.stdout.write(files.as_json({"suites": said}) + "\n")
    else:
        _show(Terminal(), said)
    if any(part.problem is not None for part in parts):
        raise typer.Exit(ExitCode.NOT_ABLE)
    raise typer.Exit(EXIT_CODES[max(part.status() for part in parts)])


def _show(console: Console, said: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from lossbench.cli.screen.tables import coloured

    table = Table("suite", "done", "minutes", "verdict", box=None, pad_edge=False)
    table.add_column("results", overflow="fold")  # a path that is cut is none
    for one in said:
        done, minutes = f"{one['done']} of {one['runs']}", f"{one['minutes']:.1f}"
        table.add_row(one["suite"], done, minutes, coloured(one["verdict"]), one["dir"] or "")
    console.print(table)
    for one in said:
        if one["problem"]:
            console.print(f"{one['suite']}: {one['problem']}", markup=False, soft_wrap=True)
    left = sum(one["runs"] - one["done"] for one in said)
    more = f"{counted(left, 'run')} {'is' if left == 1 else 'are'} left: run the same command again to continue"
    console.print(more if left else "all is done")
