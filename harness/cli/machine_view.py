"""`lossbench doctor`, `clean` and `profile`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from harness import rootless
from harness.errors import ExitCode

if TYPE_CHECKING:
    from harness.journal import Removed

BACKLOG, MANY_CORES = 20_000, 4  # measured: 8 TCP senders on 16 cores lost .2 % in a backlog of 1000, none in this

profile_app = typer.Typer(no_args_is_help=True, help="Network conditions: list them, show one.")


def doctor(as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output.")) -> None:
    """What this machine can do, found by trying; which backend a run gets and why; what is missing, how to fix it."""
    user_namespaces = _try_user_namespaces()
    entered = ""
    if rootless.needed():
        try:
            rootless.enter()
            entered = "entered a user namespace"
        except Exception as error:  # noqa: BLE001 - said in the report
            entered = str(error)
    report = _report(user_namespaces, entered)
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        _show(report)
    raise typer.Exit(ExitCode.VALID if report["backend"]["name"] else ExitCode.NOT_ABLE)


def _try_user_namespaces() -> str | None:
    from harness import machine

    return machine.user_namespaces()


def _report(user_namespaces: str | None, entered: str) -> dict[str, Any]:
    from harness import machine
    from harness.net.impair import registry

    kernel, facts = machine.look(), machine.facts()
    able = kernel.able()
    usable = [name for name in registry.KINDS if able[name] is None]
    why = "; ".join(f"{n}: {able[n]}" for n in list(registry.KINDS) if able[n] is not None) or "first choice"
    return {
        "backend": {"name": usable[0] if usable else None, "why": why, "able": able},
        "namespaces": kernel.namespaces,
        "qdiscs": kernel.qdiscs,
        "classifiers": kernel.classifiers,
        "mirred": kernel.mirred,
        "ifb": kernel.ifb,
        "bpf": kernel.bpf,
        "offload_control": kernel.offloads,
        "user_namespaces": user_namespaces,
        "rootless": entered,
        "capabilities": rootless.capabilities(),
        "gpus": machine.gpus(),
        "tools": machine.tools(),
        **facts,
        "advice": _advice(kernel, able, user_namespaces, facts),
    }


def _advice(kernel: Any, able: dict[str, str | None], user_namespaces: str | None, facts: dict[str, Any]) -> list[str]:
    out = []
    if kernel.namespaces is not None:
        out.append("no network namespaces: run with sudo")
    if able["netem"] is not None:
        out.append(f"netem ({able['netem']}): delay, jitter, reordering need a stock kernel: lossbench vm run -- ...")
    if kernel.qdiscs and not kernel.qdiscs.get("prio"):
        out.append("prio: not in this kernel; classes use htb, which serves by priority too")
    if able["ebpf"] is not None:
        out.append(f"ebpf ({able['ebpf']}): bursty, seeded and header-matched loss need root: sudo")
    if user_namespaces is not None:
        out.append(f"user namespaces: {user_namespaces}: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0")
    backlog = str(facts.get("netdev_max_backlog", ""))
    if backlog.isdigit() and int(backlog) < BACKLOG and int(facts.get("cpus") or 1) > MANY_CORES:
        out.append(
            f"input backlog of {backlog} packets: many cores overrun it, which voids a run's fault: "
            f"sudo sysctl net.core.netdev_max_backlog={BACKLOG}"
        )
    return out


def yes(names: dict[str, bool]) -> str:
    return " ".join(f"[green]{n}[/]" if on else f"[dim]no {n}[/]" for n, on in names.items())


def works(reason: str | None) -> str:
    return "[green]works[/]" if reason is None else f"[yellow]{reason}[/]"


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("machine", f"{report['distribution']}, kernel {report['kernel']} {report['machine']}")
    table.add_row("", f"{report['cpus']} cores, {report['memory_gib']} GiB, {report['cpu']}")
    table.add_row(
        "network namespaces", works(report["namespaces"]) + (f" ({report['rootless']})" if report["rootless"] else "")
    )
    table.add_row("user namespaces", works(report["user_namespaces"]))
    table.add_row("capabilities", yes(report["capabilities"]))
    table.add_row("qdiscs", yes(report["qdiscs"]))
    table.add_row("classifiers", yes(report["classifiers"]))
    table.add_row("IFB, mirred", yes({"ifb": report["ifb"], "mirred": report["mirred"]}))
    table.add_row("BPF", works(report["bpf"]))
    table.add_row("offload control", works(report["offload_control"]))
    table.add_row("TCP", f"default {report['congestion_control']}")
    table.add_row("GPUs", ", ".join(report["gpus"]) or "none found")
    table.add_row("tools", yes({name: bool(path) for name, path in report["tools"].items()}))
    table.add_row("versions", ", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    for name, reason in report["backend"]["able"].items():
        table.add_row(f"backend {name}", works(reason))
    chosen = report["backend"]
    table.add_row("a run gets", f"[bold]{chosen['name'] or 'nothing'}[/] ({chosen['why']})")
    console.print(table)
    for line in report["advice"]:
        console.print(f"- {line}", markup=False)


def clean(every: bool = typer.Option(False, "--all", help="Also take down standing labs (lossbench net up).")) -> None:
    """Remove what crashed runs left behind: namespaces with their links and filters, processes, temporary files.

    Only what lossbench's own journal says it made; running experiments of others are left alone."""
    from harness.guest import boot, image

    for folder in boot.sweep(image.cache_folder()):
        typer.echo(f"removed {folder}, left by a guest that was killed")
    if rootless.needed():
        typer.echo("nothing more to clean: without root all ends with the run (sudo for runs made with sudo)")
        return
    from harness import journal
    from harness.errors import RunError
    from harness.interrupt import held

    removed = []
    for one in journal.networks():
        if not one.folder.exists():
            continue  # another clean was faster
        with journal.abandoned(one, wait_s=journal.WAIT_S if every and one.is_lab() else 0.0) as free:
            if not free:
                typer.echo(f"{one.id}: in use by a running lossbench, left alone")
            elif one.is_lab() and not every:
                typer.echo(f"{one.id}: a standing lab, left alone (lossbench net down --net {one.id}, or clean --all)")
            else:
                with held():
                    removed.append(one.undo())
                _say_removed(removed[-1])
    if not removed:
        typer.echo("nothing to clean")
    left = [text for one in removed for text in one.failed]
    if left:
        raise RunError("; ".join(left), next_step="what is left stays in the journal: lossbench clean tries again")


def _say_removed(removed: Removed) -> None:
    typer.echo(
        f"{removed.network}: removed {len(removed.names)} namespaces ({', '.join(removed.names) or 'none'}), "
        f"ended {len(removed.pids)} processes, "
        f"{'kept its journal' if removed.failed else 'deleted its temporary files'}"
    )


@profile_app.command("list")
def list_profiles(as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output.")) -> None:
    """The network conditions that come with lossbench."""
    from harness import lossmodel, profile

    loaded = [profile.load(name) for name in profile.names()]
    if as_json:
        sys.stdout.write(json.dumps({p.name: p.model_dump() for p in loaded}) + "\n")
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("profile", "loss", "burst", "delay", "why"):
        table.add_column(name, overflow="fold", no_wrap=name == "profile")
    for p in loaded:
        chain = p.chain()
        burst = lossmodel.burst_mean(chain) if chain is not None else 0.0
        delay = f"{p.delay.mean_ms:g} ms" if p.delay else "-"
        loss = f"{100 * p.mean_loss():.3g} %" if p.mean_loss() else "-"
        table.add_row(p.name, loss, f"{burst:.2f}" if burst else "-", delay, p.why)
    Console(highlight=False).print(table)


def known_profiles(incomplete: str) -> list[str]:
    """For shell completion."""
    from harness import profile

    return [name for name in profile.names() if name.startswith(incomplete)]


@profile_app.command("show")
def show_profile(
    name: str = typer.Argument(help="A shipped profile's name, or a .toml file.", autocompletion=known_profiles),
) -> None:
    """One profile in full, checked, with what it amounts to.

    Example: lossbench profile show bursty_5
    """
    from harness import lossmodel, profile
    from harness.net.impair import registry

    p = profile.load(name)
    body: dict[str, Any] = p.model_dump(exclude_defaults=True)
    chain = p.chain()
    body["amounts_to"] = {"mean_loss_percent": 100 * p.mean_loss()}
    if chain is not None:
        body["amounts_to"]["burst_packets_mean"] = lossmodel.burst_mean(chain)
    body["backends"] = {
        n: "can" if (why := k.refusal(p)) is None else f"can't: {why}" for n, k in registry.KINDS.items()
    }
    typer.echo(json.dumps(body, indent=2))


def schema(kind: str = typer.Argument("", help="profile, experiment, suite, run or result; empty lists them.")) -> None:
    """JSON schemas: of profiles and experiments that you write, of suite.json and summary.json that runs leave.

    Example: lossbench schema experiment > experiment.schema.json
    """
    from harness import schemas
    from harness.errors import UsageError

    if not kind:
        typer.echo("\n".join(schemas.KINDS))
        return
    if kind not in schemas.KINDS:
        raise UsageError(f"no schema '{kind}'", next_step=f"known: {', '.join(schemas.KINDS)}")
    typer.echo(json.dumps(schemas.of(kind), indent=1))
