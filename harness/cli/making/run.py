"""`lossbench run`."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import typer

from lossbench import files
from lossbench.cli.console import Terminal, say
from lossbench.cli.making import preview, words
from lossbench.errors import NotAbleError, UsageError
from lossbench.net.host import rootless


def known_suites(incomplete: str) -> list[str]:
    """For shell completion."""
    from lossbench.spec.asking import points

    return [name for name in points.suite_names() if name.startswith(incomplete)]


SUITE = typer.Argument(
    None,
    help="A suite by name, an experiment file (.toml), a folder to --resume; or, behind --, your own program.",
    autocompletion=known_suites,
)
LAB = typer.Option(None, "--lab", help="On the machines of this lab.toml, not in namespaces.")
SLURM = typer.Option(False, "--slurm", help="On the nodes of this Slurm allocation; outside of one, asks for it.")
NODES = typer.Option(2, "--nodes", min=2, help="With --slurm: how many to ask for.")
INTERFACE = typer.Option("", "--interface", help="With --slurm: of the data network, such as eth1.")
SBATCH = typer.Option([], "--sbatch", help="With --slurm: an option for sbatch, such as --partition=gpu.")
SUDO = typer.Option(False, "--sudo", help="With --slurm: become root on the nodes by `sudo -n`.")
PAST_RDMA = typer.Option(False, "--past-rdma", help="With --slurm: its RDMA device is not meant, only TCP/IP is.")
THESE_NICS = typer.Option(False, "--yes-these-nics", help="In a lab: even with default route or SSH on them.")
ARMS = typer.Option([], "--arm", metavar="NAME", help="Of a suite's arms only this one; may be repeated.")
RESUME = typer.Option(False, "--resume", help="Continue an interrupted run: its folder, or the same words again.")
UNTIL = typer.Option(
    "", "--until", metavar="p99=5%", help="Stop a service's clients once its 95 % interval is this narrow."
)


def run(
    ctx: typer.Context,
    suite: str | None = SUITE,
    hosts: str = words.HOSTS,
    ranks: int | None = words.RANKS,
    loss: str = words.LOSS,
    burst: str = words.BURST,
    delay: str = words.DELAY,
    rate: str = words.RATE,
    profile: str = words.PROFILE,
    sweep: list[str] = words.SWEEP,
    time_limit: str = words.TIME_LIMIT,
    settings: list[str] = words.SETTINGS,
    arm: list[str] = ARMS,
    seeds: int | None = words.SEEDS,
    full: bool = typer.Option(False, "--full", help="The suite's large form (GPUs, hours) instead of its small one."),
    backend: str | None = words.BACKEND,
    data_dir: Path | None = words.DATA_DIR,
    out: Path = typer.Option(Path("results/runs"), "--out", help="Folder for the results."),
    resume: bool = RESUME,
    until: str = UNTIL,
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be run, and how long; change nothing."),
    capture: bool = words.CAPTURE,
    tee: bool = typer.Option(False, "--tee", help="Show what rank 0 prints, as it prints it."),
    lab: Path | None = LAB,
    slurm: bool = SLURM,
    nodes: int = NODES,
    interface: str = INTERFACE,
    sbatch: list[str] = SBATCH,
    sudo: bool = SUDO,
    past_rdma: bool = PAST_RDMA,
    yes_these_nics: bool = THESE_NICS,
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
    html: Path | None = typer.Option(None, "--html", help="A page of the results; see also `lossbench report`."),
    plots: Path | None = typer.Option(None, "--plots", help="A folder for plots (SVG, PDF, PNG)."),
    junit: Path | None = typer.Option(None, "--junit", help="Verdicts as a JUnit file, for CI."),
    github_summary: bool = typer.Option(False, "--github-summary", help="Tables into $GITHUB_STEP_SUMMARY."),
    tag: list[str] = typer.Option([], "--tag", help="Label the result, to find it later; see also `lossbench tag`."),
    note: str | None = typer.Option(None, "--note", help="A sentence on the result."),
) -> None:
    """Build the network, prove the fault, run the workload, judge, undo everything.

    Examples:

      lossbench run --hosts 4 --loss 3% -- python train.py

      lossbench run quickstart --seeds 3

      lossbench run my_experiment.toml --set topology.hosts=8 --junit verdicts.xml

      lossbench run results/runs/20261115-120000_quickstart_ab12cd --resume
    """
    if lab is None and not slurm:
        _with_rights(only_a_plan=dry_run)  # first of all: libraries that read what was asked start threads
    condition = {"hosts": hosts, "loss": loss, "burst": burst, "delay": delay, "rate": rate, "profile": profile}
    asked = words.asked(ctx, suite, **condition, sweep=sweep, time_limit=time_limit)
    words.refuse_idle(ctx, lab=lab is not None, slurm=slurm)
    if (suite is None) == (asked is None):
        raise _not_one_thing(suite, resume=resume)
    settings += words.as_settings(arms=arm, capture=capture, backend=backend, data_dir=data_dir, ranks=ranks)
    chosen: dict[str, Any] = {"settings": settings, "seeds": seeds, "full": full, "until": until, "resume": resume}
    if dry_run:
        preview.show(asked or suite or "", out=out, machines=_machines(lab, nodes, slurm=slurm), **chosen)
        raise typer.Exit
    there = _lab_of(lab, slurm=slurm, interface=interface, nodes=nodes, sbatch=sbatch, sudo=sudo, past_rdma=past_rdma)
    files_of = {"html": html, "plots": plots, "junit": junit, "github": github_summary}
    chosen |= {"out": out, "lab": there, "these_nics": yes_these_nics}
    _made(asked or suite or "", chosen, files_of, (tag, note), as_json=as_json, tee=tee)


def _not_one_thing(suite: str | None, *, resume: bool) -> UsageError:
    if suite is None and resume:
        step = "lossbench run FOLDER --resume, or the same words again; lossbench report lists folders"
        return UsageError("resume what?", next_step=step)
    if suite is None:
        return UsageError("nothing to run", next_step="a suite (lossbench run quickstart), a file, or -- and a command")
    return UsageError(f"{suite} already has a program of its own", next_step="give a suite, or -- and a command")


def _refuse_a_file(out: Path) -> None:
    """Where nobody may look, what is wrong is said when it is written."""
    if os.path.isfile(out):  # noqa: PTH113 - says no where it may not look
        raise UsageError(f"--out {out} is a file", next_step="give a folder; results/runs is the usual one")


def _made(
    suite: Any,
    chosen: dict[str, Any],
    files_of: dict[str, Any],
    marked: tuple[list[str], str | None],
    *,
    as_json: bool,
    tee: bool,
) -> None:
    """Results go to standard output, progress to standard error."""
    from lossbench.cli.reading import report

    _refuse_a_file(chosen["out"])
    report.check_targets(**files_of)
    _say_one_rank(chosen["lab"], suite)
    from lossbench import api
    from lossbench.cli.screen import live
    from lossbench.results import notes

    notes.check(marked[0])

    with live.View(Terminal(stderr=True), quiet=as_json, tee=tee, here=chosen["lab"] is None) as view:
        result = api.made(suite, **chosen, progress=view.show)
    if marked[0] or marked[1] is not None:
        notes.change(result.folder, add=marked[0], note=marked[1])
    if as_json:
        sys.stdout.write(files.as_json(result.as_json()) + "\n")
    else:
        from lossbench.cli.screen import tables

        tables.show_suite(Terminal(), result)
    if any(files_of.values()):
        report.files_of(result, **files_of)
    from lossbench.proof.verdict import EXIT_CODES

    raise typer.Exit(EXIT_CODES[result.status])


def _lab_of(lab: Path | None, *, slurm: bool, nodes: int, sbatch: list[str], interface: str, **there: Any) -> Any:
    """None: this machine. Outside of an allocation the same command is handed to sbatch, and that is all. `there`: of
    every node (sudo, past_rdma)."""
    if not slurm:
        return lab
    if lab is not None:
        raise UsageError("--slurm and --lab are two labs", next_step="give one of them")
    if not interface:
        raise UsageError("which interface is the data network's?", next_step="--interface eth1")
    from lossbench.runs.lab import slurm as allocation

    if allocation.inside():
        return allocation.lab(interface=interface, **there)
    path, said = allocation.submit(allocation.script(sys.argv[1:], nodes=nodes, options=sbatch), Path.cwd())
    say(f"{said}; its script: {path}")
    raise typer.Exit(0)


def _say_one_rank(lab: Any, suite: Any) -> None:
    """A suite of ours has one rank on each machine, whatever the lab's file says for other programs."""
    from lossbench.spec import lab as labs

    if isinstance(lab, Path) and isinstance(suite, str) and suite in known_suites(""):
        said = labs.load(lab).most_ranks()
        if said > 1:
            say(labs.ONE_RANK.format(said), err=True)


def _machines(lab: Path | None, nodes: int, *, slurm: bool) -> int:
    """How many a plan counts on; 0: namespaces of this one."""
    from lossbench.spec import lab as labs

    return len(labs.load(lab).machine) if lab is not None else nodes if slurm else 0


def _with_rights(*, only_a_plan: bool) -> None:
    """A plan can be read where nothing can be run."""
    with suppress(NotAbleError) if only_a_plan else nullcontext():
        rootless.with_rights()
