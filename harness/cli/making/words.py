"""What can be asked for without a file: options of `run` and `init`, and the command behind `--`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from lossbench.cli.console import say
from lossbench.errors import UsageError
from lossbench.spec import units

if TYPE_CHECKING:
    from lossbench.spec.asking.adhoc import Asked

COMMAND = "lossbench.command"
EXAMPLE = "for example lossbench run --loss 3% -- python train.py"
BEHIND, MORE_WORDS = "a command stands behind --", "unexpected extra argument"
CONDITION = ("hosts", "loss", "burst", "delay", "rate", "profile")
KEYS = {
    "rate": "topology.rate_mbit=1gbit",
    "loss": "impair.0.profile=loss_5",
    "burst": "impair.0.profile=bursty_5",
    "delay": "impair.0.profile=wan_40ms",
    "profile": "impair.0.profile=loss_5",
    "time_limit": "workload.time_limit_s=20m",
    "ranks": "workload.torchrun=8",
}

HOSTS = typer.Option("4", "--hosts", help="How many ranks, each on a host of its own (with a command).")
LOSS = typer.Option("", "--loss", metavar="3%", help="Share of packets to lose, beside a clean run (with a command).")
BURST = typer.Option("", "--burst", metavar="8", help="With --loss: mean number of packets lost in a row.")
DELAY = typer.Option("", "--delay", metavar="20ms", help="Delay every packet by this much (with a command).")
RATE = typer.Option("", "--rate", metavar="1gbit", help="Rate of every link (with a command).")
PROFILE = typer.Option("", "--profile", help="A condition by name (lossbench profile list) or a file (with a command).")
SWEEP = typer.Option([], "--sweep", metavar="KEY=V,V", help="Several points: loss=0,1,5,10; again: all combinations.")
TIME_LIMIT = typer.Option("10m", "--time-limit", metavar="10m", help="Stop the command after this long; off: never.")


# What a file can hold too: options of `run` and of `init`.
SETTINGS = typer.Option([], "--set", metavar="KEY=VALUE", help="Change a key, e.g. topology.hosts=8.")
SEEDS = typer.Option(None, "--seeds", min=1, help="Repeat every point with this many seeds.")
CAPTURE = typer.Option(False, "--capture", help="Keep a pcap of every host (the first 100,000 packets).")
RANKS = typer.Option(None, "--ranks", min=1, max=64, help="Of a script on every host, by torchrun (with a command).")
BACKEND = typer.Option(None, "--backend", help="By name (lossbench doctor), or simulated (no network); else automatic.")
DATA_DIR = typer.Option(None, "--data-dir", help="Folder with data sets (or LOSSBENCH_DATA).")


def as_settings(
    *, capture: bool, backend: str | None, data_dir: Path | None, ranks: int | None, arms: Sequence[str] = ()
) -> list[str]:
    """What has an option of its own, as --set would say it."""
    return [
        *(f"arm={json.dumps(name)}" for name in arms),
        *(["capture.packets=100000"] if capture else []),
        *([f"backend={backend}"] if backend is not None else []),
        *([f"workload.torchrun={ranks}"] if ranks is not None else []),
        *([f"workload.options.data_dir={str(data_dir.resolve())!r}"] if data_dir is not None else []),
    ]


class WithCommand(TyperCommand):
    """Whatever stands behind `--` is a command, and no word of it an option of ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND], args = args[at + 1 :], args[:at]
            if not ctx.meta[COMMAND]:
                raise UsageError("no command behind --", next_step=EXAMPLE)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer's errors have no common base that is public
            if MORE_WORDS not in str(getattr(error, "message", "")) or COMMAND in ctx.meta:
                raise
            raise UsageError(f"{error.message}; {BEHIND}", next_step=EXAMPLE) from None  # type: ignore[attr-defined]


def _refuse_a_program(suite: str | None) -> None:
    """A script, or any file that is no experiment, where a suite belongs."""
    if suite is None or suite.endswith(".toml") or not (suite.endswith(".py") or Path(suite).is_file()):
        return
    from lossbench.spec.asking.points import suite_names

    if suite not in suite_names():
        raise UsageError(f"{suite} is no suite; {BEHIND}", next_step=EXAMPLE)


def command_of(ctx: typer.Context) -> tuple[str, ...]:
    return tuple(ctx.meta.get(COMMAND, ()))


def asked(ctx: typer.Context, suite: str | None, *, sweep: list[str], **said: str) -> Asked | None:
    """The words of the command line as an experiment to be; None without a command. Suites say themselves how their
    network is."""
    from lossbench.spec.asking.adhoc import Asked

    if command_of(ctx):
        say_of_shares(said["loss"], sweep)
        hosts = said["hosts"] if _typed(ctx, "hosts") else ""  # a lab has as many as it has
        return Asked(command=command_of(ctx), sweep=tuple(sweep), **{**said, "hosts": hosts})
    _refuse_a_program(suite)
    typed = [name for name in (*CONDITION, "sweep", "time_limit", "ranks") if _typed(ctx, name)]
    if typed:
        option = f"--{typed[0].replace('_', '-')}"
        raise UsageError(
            f"{option} applies only to a command given after --", next_step=_for_a_suite(typed[0]) if suite else EXAMPLE
        )
    return None


def say_of_shares(loss: str, sweep: Sequence[str]) -> None:
    for text in units.perhaps_shares(loss, sweep):
        say(f"warning: {text}", err=True)


def refuse_idle(ctx: typer.Context, *, lab: bool, slurm: bool) -> None:
    """Options that would do nothing here are refused, whatever their value."""
    idle = {name: "--slurm" for name in ("nodes", "interface", "sbatch", "sudo", "past_rdma") if not slurm}
    idle |= {} if lab or slurm else {"yes_these_nics": "--lab or --slurm"}
    for name, other in idle.items():
        if _typed(ctx, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} goes with {other}", next_step=f"leave {option} out")


def _for_a_suite(option: str) -> str:
    if option == "sweep":
        return "a suite's points stand in its file, under [sweep]; --set KEY=VALUE takes one of them"
    return f"for a suite use --set (lossbench run quickstart --set {KEYS.get(option, 'topology.hosts=8')})"


def _typed(ctx: typer.Context, name: str) -> bool:
    return getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
