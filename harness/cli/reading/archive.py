"""`lossbench pack` and `lossbench import`: results from one machine to another."""

from __future__ import annotations

from pathlib import Path

import typer

from lossbench.cli.console import say
from lossbench.cli.reading.report import IN, known_runs
from lossbench.errors import UsageError
from lossbench.results.naming import counted

WHICH = typer.Argument(None, help="Folders, ids, suite names (their latest), or `latest`.", autocompletion=known_runs)


def pack(
    runs: list[str] = WHICH,
    to: Path = typer.Option(..., "--to", metavar="FILE", help="The archive, such as results.tar.gz."),
    every: bool = typer.Option(False, "--all", help="All results of the folder."),
    part_mib: int = typer.Option(0, "--part-mib", min=0, help="In parts of at most so many MiB; 0: one file."),
    light: bool = typer.Option(False, "--light", help="Without logs and captures."),
    where: Path = IN,
) -> None:
    """Results as one archive, for the way to another machine.

    Example: lossbench pack --all --to gpu.tar.gz --part-mib 16; then, there: lossbench import gpu.tar.gz
    """
    from lossbench.results import archive, index

    if bool(runs) == every:
        raise UsageError("pack what?", next_step="lossbench pack latest --to FILE, or --all")
    found = index.scan(where)[0] if every else index.pick(runs, where)[0]
    if not found:
        raise UsageError(f"no results in {where}", next_step="lossbench report lists them")
    leave = ("logs", "captures") if light else ()
    folders = [(one.folder, one.folder.resolve().name) for one in found]
    for path in archive.pack(folders, to, part_mib=part_mib, leave=leave):
        say(str(path))


def bring(
    files: list[Path] = typer.Argument(help="Archives of `lossbench pack`; of one in parts, any part."),
    where: Path = IN,
) -> None:
    """Results of an archive, into the folder of results. What is there already stays; unfinished suites are completed.

    Example: lossbench import gpu.tar.gz
    """
    from lossbench.results import archive

    for path in _once(files):
        for folder, new, known in archive.bring_in(path, where):
            said = f", {known} were there" if known else ""
            say(f"{folder}: {counted(new, 'run')}{said}")


def _once(files: list[Path]) -> list[Path]:
    """Of an archive's parts the first."""
    from lossbench.results import archive

    return list(dict.fromkeys(archive.parts_of(path)[0] for path in files))
