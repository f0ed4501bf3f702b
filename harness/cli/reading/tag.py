"""`lossbench tag`: words on a result, to find it by."""

from __future__ import annotations

from pathlib import Path

import typer

from lossbench.cli.console import say
from lossbench.cli.reading.report import IN, known_runs
from lossbench.errors import UsageError

RUN = typer.Argument(help="A folder, id, suite name (its latest), or `latest`.", autocompletion=known_runs)


def tag(
    run: str = RUN,
    words: list[str] = typer.Argument(None, help="Tags to add."),
    note: str | None = typer.Option(None, "--note", help="A sentence; replaces the one before."),
    remove: list[str] = typer.Option([], "--remove", help="A tag to take off."),
    where: Path = IN,
) -> None:
    """Put tags and a note on a result. `lossbench report --tag baseline` lists those that have one.

    Examples:

      lossbench tag latest baseline --note "before the new switch"

      lossbench tag ab12cd --remove baseline
    """
    from lossbench.results import index, notes

    found, _ = index.pick([run], where)
    if len(found) != 1:
        folders = ", ".join(str(one.folder) for one in found)
        raise UsageError(f"{run} names {len(found)} results", next_step=f"give a folder: {folders}")
    now = notes.change(found[0].folder, add=words or [], remove=remove, note=note)
    said = ", ".join(now.tags) or "no tags"
    say(f"{found[0].name} {found[0].id}: {said}{f'; {now.note}' if now.note else ''}")
