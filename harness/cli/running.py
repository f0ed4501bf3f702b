"""`lossbench run`."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path

import typer
from rich.console import Console

from harness import rootless


def run(
    suite: str = typer.Argument(help="A suite by name, or an experiment file (.toml)."),
    settings: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Change a key, e.g. topology.hosts=8."),
    seeds: int | None = typer.Option(None, "--seeds", min=1, help="Repeat every point with this many seeds."),
    full: bool = typer.Option(False, "--full", help="The suite's large form (GPUs, hours) instead of its small one."),
    backend: str | None = typer.Option(
        None, "--backend", help="netem, ebpf, cbpf, edt, relay, or simulated (no network); else automatic."
    ),
    data_dir: Path | None = typer.Option(None, "--data-dir", help="Folder with data sets (or LOSSBENCH_DATA)."),
    out: Path = typer.Option(Path("results/runs"), "--out", help="Folder for the results."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
) -> None:
    """Build the network, prove the fault, run the workload, judge, undo everything.

    Examples:

      lossbench run quickstart

      lossbench run proof --set topology.hosts=8 --set impair.0.profile=bursty_5 --seeds 3

      lossbench run my_experiment.toml --json
    """
    # Before anything starts a thread: an ordinary user needs a user namespace of their own.
    if rootless.needed():
        rootless.enter()
    from harness import experiment
    from harness import suite as suites
    from harness.cli import tables

    if backend is not None:
        settings = [*settings, f"backend={backend}"]
    if data_dir is not None:
        settings = [*settings, f"workload.options.data_dir={str(data_dir.resolve())!r}"]
    points = experiment.points(experiment.find(suite), settings=settings, full=full)
    console = Console(stderr=True, highlight=False)
    with tables.Progress(console, quiet=as_json) as progress:
        result = suites.run_suite(points, seeds=seeds, out=out, run_id=secrets.token_hex(3), progress=progress.show)
    if as_json:
        sys.stdout.write(json.dumps(result.as_json(), default=str) + "\n")
    else:
        tables.show_suite(console, result)
    from harness.verdict import EXIT_CODES

    raise typer.Exit(EXIT_CODES[result.status])
