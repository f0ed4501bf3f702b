"""`lossbench export`: stored results for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lossbench.cli.console import Terminal
from lossbench.cli.reading.report import IN, RUNS, gather_all, need_libraries
from lossbench.errors import UsageError
from lossbench.results.naming import counted

if TYPE_CHECKING:
    from lossbench.results.index import Run, Suite


def export(
    runs: list[str] = RUNS,
    where: Path = IN,
    csv: Path | None = typer.Option(None, "--csv", help="A folder for results.csv, runs.csv, steps.csv."),
    parquet: Path | None = typer.Option(None, "--parquet", help="The same as Parquet files."),
    tensorboard: Path | None = typer.Option(None, "--tensorboard", help="A log folder for TensorBoard."),
    wandb_offline: Path | None = typer.Option(None, "--wandb-offline", help="A folder that `wandb sync` can upload."),
    goal: Path | None = typer.Option(
        None, "--goal", help="A training run as a GOAL file, for LogGOPSim and its kin: the first, or a run's folder."
    ),
    with_simulated: bool = typer.Option(False, "--with-simulated", help="Average simulated runs too; labels stay."),
) -> None:
    """Results for other programs: tables, trackers, network simulators.

    Examples:

      lossbench export latest --parquet out/

      lossbench export quickstart --tensorboard logs/

      lossbench export latest --goal steps.goal
    """
    if not runs:
        raise UsageError("export what?", next_step="lossbench export latest --csv out/")
    if not (csv or parquet or tensorboard or wandb_offline or goal):
        raise UsageError("nothing to export to", next_step="--csv, --parquet, --tensorboard, --wandb-offline or --goal")
    _refuse_files({"csv": csv, "parquet": parquet, "tensorboard": tensorboard, "wandb-offline": wandb_offline})
    need_libraries()
    from lossbench.report.export import frames, trackers
    from lossbench.report.export import goal as goals
    from lossbench.results import index

    console = Terminal(soft_wrap=True)
    suites, _ = index.pick(runs, where)
    contents = gather_all(suites, with_simulated=with_simulated)
    for folder, is_parquet in ((csv, False), (parquet, True)):
        for path in frames.write(contents, folder, parquet=is_parquet) if folder is not None else ():
            console.print(str(path), markup=False)
    if tensorboard is not None:
        console.print(
            f"{counted(trackers.tensorboard(contents, tensorboard), 'run')}: tensorboard --logdir {tensorboard}"
        )
    if wandb_offline is not None:
        console.print(
            f"{counted(trackers.wandb(contents, wandb_offline), 'run')}: wandb sync {wandb_offline}/wandb/offline-run-*"
        )
    if goal is not None:
        first = _first(suites, index.number_of(runs[0]))
        console.print(f"{goal}: {counted(goals.write(first, goal), 'step')} of {first.name}, seed {first.summary.seed}")


def _refuse_files(folders: dict[str, Path | None]) -> None:
    """A folder that is called as one of its files would be is a mistake, too."""
    for option, folder in folders.items():
        if folder is not None and not folder.is_dir() and (folder.exists() or folder.suffix in (".csv", ".parquet")):
            raise UsageError(f"--{option} {folder}: a folder is meant", next_step=f"for example --{option} out/")


def _first(suites: list[Suite], number: int | None) -> Run:
    """That has ended; the one whose own folder was given."""
    every = [run for suite in suites for run in suite.runs] if number is None else suites[0].runs
    found = next((run for run in every if number in (None, run.number)), None)
    if found is None:
        raise UsageError("no run of these has ended", next_step="lossbench report lists results")
    return found
