"""`lossbench run`."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.console import Console

from lossbench import files
from lossbench.net.host import rootless


def known_suites(incomplete: str) -> list[str]:
    """For shell completion."""
    from lossbench.spec import points

    return [name for name in points.suite_names() if name.startswith(incomplete)]


def run(
    suite: str = typer.Argument(
        help="A suite by name, an experiment file (.toml), or a folder to --resume.", autocompletion=known_suites
    ),
    settings: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Change a key, e.g. topology.hosts=8."),
    seeds: int | None = typer.Option(None, "--seeds", min=1, help="Repeat every point with this many seeds."),
    full: bool = typer.Option(False, "--full", help="The suite's large form (GPUs, hours) instead of its small one."),
    backend: str | None = typer.Option(
        None, "--backend", help="By name (lossbench doctor lists them), or simulated (no network); else automatic."
    ),
    data_dir: Path | None = typer.Option(None, "--data-dir", help="Folder with data sets (or LOSSBENCH_DATA)."),
    out: Path = typer.Option(Path("results/runs"), "--out", help="Folder for the results."),
    resume: bool = typer.Option(
        False, "--resume", help="Go on with a run that was ended: give its folder, or the same suite and settings."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
    html: Path | None = typer.Option(None, "--html", help="A page of the results; see also `lossbench report`."),
    plots: Path | None = typer.Option(None, "--plots", help="A folder for plots (SVG, PDF, PNG)."),
    junit: Path | None = typer.Option(None, "--junit", help="Verdicts as a JUnit file, for CI."),
    github_summary: bool = typer.Option(False, "--github-summary", help="Tables into $GITHUB_STEP_SUMMARY."),
) -> None:
    """Build the network, prove the fault, run the workload, judge, undo everything.

    Examples:

      lossbench run quickstart

      lossbench run proof --set topology.hosts=8 --set impair.0.profile=bursty_5 --seeds 3

      lossbench run my_experiment.toml --seeds 5 --junit verdicts.xml

      lossbench run results/runs/20261115-120000_quickstart_ab12cd --resume
    """
    # Before anything starts a thread: an ordinary user needs a user namespace of their own.
    if rootless.needed():
        rootless.enter()
    from lossbench.cli import report

    report.check_targets(html=html, plots=plots, junit=junit, github=github_summary)
    from lossbench import api
    from lossbench.cli.screen import live, tables

    if backend is not None:
        settings = [*settings, f"backend={backend}"]
    if data_dir is not None:
        settings = [*settings, f"workload.options.data_dir={str(data_dir.resolve())!r}"]
    console = Console(stderr=True, highlight=False)
    with live.View(console, quiet=as_json) as view:
        result = api.run(suite, settings=settings, seeds=seeds, full=full, out=out, resume=resume, progress=view.show)
    if as_json:
        sys.stdout.write(files.as_json(result.as_json()) + "\n")
    else:
        tables.show_suite(console, result)
    if html or plots or junit or github_summary:
        report.files_of(result, html=html, plots=plots, junit=junit, github=github_summary)
    from lossbench.proof.verdict import EXIT_CODES

    raise typer.Exit(EXIT_CODES[result.status])
