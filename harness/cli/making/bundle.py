"""`lossbench bundle`."""

from __future__ import annotations

from pathlib import Path

import typer

from lossbench.cli.console import say

TO = typer.Option(Path("lossbench-bundle.tar.gz"), "--to", metavar="FILE", help="The archive.")


def bundle(
    file: Path = typer.Argument(help="A campaign (.toml)."),
    wheels: Path = typer.Option(Path("wheelhouse"), "--wheels", help="Made by `make wheelhouse PYTHON=3.12`."),
    data_dir: Path | None = typer.Option(None, "--data-dir", help="Folder with data sets (or LOSSBENCH_DATA)."),
    to: Path = TO,
    part_mib: int = typer.Option(0, "--part-mib", min=0, help="In parts of at most so many MiB; 0: one file."),
) -> None:
    """A campaign with all it needs, for a machine without a network: wheels, code, data, an installer.

    Example: lossbench bundle results/published/gpu.toml --part-mib 60
    """
    from lossbench.runs.many import offline

    made = offline.make(file, wheels=wheels, data=data_dir, to=to, part_mib=part_mib)
    for path in made:
        say(f"{path}  {path.stat().st_size / 2**20:.1f} MiB")
    say(f"there: cat {to.name}{'.part-*' if part_mib else ''} | tar xz && sh {offline.NAME}/install.sh")
