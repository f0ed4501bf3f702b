"""`lossbench nic`: a profile on an interface of this machine, for a while."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import typer

from lossbench.cli.console import Terminal, say
from lossbench.cli.hardware.words import BURST, DELAY, LOSS, PROFILE, RATE, condition, network, ports
from lossbench.errors import ExitCode, LossbenchError, NotAbleError, RunError, UsageError
from lossbench.net.host import rootless

if TYPE_CHECKING:
    from lossbench.net.nic.request import Request
    from lossbench.net.nic.state import State
    from lossbench.net.nic.way.programs import Traffic
    from lossbench.net.tc.hook import Side
    from lossbench.runs.interrupt import Undo

app = typer.Typer(
    no_args_is_help=True, help="A profile on this machine's own interface, for a while; then all is as it was before."
)
LONGEST_S = 7 * 86400
_UNITS = {"s": 1, "m": 60, "h": 3600}


@app.command("apply", context_settings={"ignore_unknown_options": True})
def apply(
    interface: str = typer.Argument(help="Such as eth1."),
    command: list[str] = typer.Argument(None, metavar="[-- COMMAND [ARGS]...]", help="Only while this runs."),
    profile: str = PROFILE,
    loss: str = LOSS,
    burst: str = BURST,
    delay: str = DELAY,
    rate: str = RATE,
    duration: str = typer.Option("", "--for", help="How long at most: 30s, 2h; default 10m, or the command's time."),
    to: list[str] = typer.Option([], "--to", help="Only packets to and from these addresses or networks."),
    port: list[str] = typer.Option([], "--port", help="Only these ports, of either end: 29500 or 29400-29500."),
    dscp: int | None = typer.Option(None, "--dscp", min=0, max=63, help="Only packets with this mark."),
    protocol: str | None = typer.Option(None, "--protocol", help="tcp or udp."),
    side: str = typer.Option("egress", "--side", help="egress, ingress or both."),
    backend: str = typer.Option("auto", "--backend", help="netem where the kernel has it, else ebpf."),
    seed: int | None = typer.Option(None, "--seed", help="Pins the loss pattern (ebpf)."),
    yes_this_nic: bool = typer.Option(False, "--yes-this-nic", help="Even if it has the default route or your SSH."),
    past_rdma: bool = typer.Option(False, "--past-rdma", help="Even if RDMA traffic goes past it."),
    confirm_within: str = typer.Option("15s", "--confirm-within", help="Over SSH: until it is taken back."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be done, change nothing."),
) -> None:
    """Put a profile on an interface. Nothing of others is changed; it ends by itself, whoever is killed.

    Over SSH it waits for `lossbench nic confirm` from a new connection, else it is taken back.

    Examples:

      lossbench nic apply eth1 --profile loss_1 --for 10m --to 10.0.0.0/24 --port 29400-29500

      lossbench nic apply eth1 --loss 3% --burst 8 --delay 20ms --rate 1gbit -- torchrun train.py
    """
    _root_only()
    if command and (command[0].startswith("-") or shutil.which(command[0]) is None):
        step = "commands stand behind --; options: lossbench nic apply --help"
        raise UsageError(f"no such program: {command[0][:60]}", next_step=step)
    from lossbench.net.nic import impaired, plan
    from lossbench.net.nic.request import Request

    request = Request.of(
        condition(profile=profile, loss=loss, burst=burst, delay=delay, rate=rate),
        interface=interface,
        for_s=seconds(duration or (f"{LONGEST_S}s" if command else "10m")),
        traffic=traffic_of(to=to, port=port, dscp=dscp, protocol=protocol),
        sides=sides_of(side),
        backend=backend,
        seed=secrets.randbits(32) if seed is None else seed,
        this_nic=yes_this_nic,
        past_rdma=past_rdma,
        attached=bool(command),
        confirm_s=seconds(confirm_within),
    )
    if dry_run:
        facts, chosen = impaired.examined(request)
        for line in plan.lines(request, facts, chosen):
            say(line)
        return
    from lossbench.runs.interrupt import undoing

    with undoing() as undo:  # from the first change to the command's end: there is no moment between
        found = _applied(request, undo)
        status = _while(found, command) if command else 0
    if command:
        raise typer.Exit(status)
    say(_words(found))
    if found.phase == "unconfirmed":
        say(f"say within {confirm_within}, in a new SSH connection: lossbench nic confirm {interface}")


def sides_of(side: str) -> tuple[Side, ...]:
    known: dict[str, tuple[Side, ...]] = {"egress": ("egress",), "ingress": ("ingress",), "both": ("egress", "ingress")}
    if side not in known:
        raise UsageError(f"no side '{side[:40]}'", next_step=f"known: {', '.join(known)}")
    return known[side]


def traffic_of(*, to: list[str], port: list[str], dscp: int | None, protocol: str | None = None) -> Traffic:
    from lossbench.net.nic.way.programs import Traffic

    if protocol not in (None, "tcp", "udp"):
        raise UsageError(f"no protocol '{protocol[:40]}'", next_step="known: tcp, udp")
    peers, listed = tuple(network(one) for one in to), tuple(ports(one) for one in port)
    return Traffic(peers=peers, ports=listed, dscp=dscp, protocol=protocol)


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([smh]?)", text)
    seconds = int(found[1]) * _UNITS[found[2] or "s"] if found else 0
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"'{text[:40]}' is no duration of up to a week", next_step="30s, 10m or 2h")
    return float(seconds)


def _applied(request: Request, undo: Undo) -> State:
    """Undone at once if anything fails or interrupts. While a command runs we hold it; else it stands by itself."""
    from lossbench.net.journal import Journal
    from lossbench.net.nic import impaired, takedown
    from lossbench.runs.interrupt import held
    from lossbench.runs.run import plain_errors

    facts, backend = impaired.examined(request)
    with plain_errors():
        with held():
            book = Journal.claim(kind="nic")
            undo.later("the NIC", lambda: takedown.take_away_or_say(book))
        begun = impaired.begun(request, book, facts, backend)
        found, detours = impaired.put(request, book, facts, begun)
        impaired.closed(detours)
        if not request.attached:
            with held():
                undo.forget()
                book.release()
    return found


def _while(found: State, command: list[str]) -> int:
    """The command's own status. Was it not in force all the time, that is said, and is no success."""
    from lossbench.net.journal import Journal
    from lossbench.net.nic import impaired, standing, state, takedown

    with impaired.lease(found):
        book, before = Journal(found.id), standing.passed_late(found)
        try:
            status = subprocess.run(command, check=False).returncode
        except OSError as error:
            raise UsageError(f"'{command[0]}' can't be executed ({error.strerror})") from None
        wrong = ["it was given back before the command ended"]
        if state.read(book) is not None and not takedown.revoked(book):
            report = standing.describe(found)
            wrong = [text for one in report["sides"].values() for text in one["wrong"]]
            if late := standing.passed_late(found) - before:
                wrong.append(f"{late} packets passed untouched while its holder had slept through its lease")
        if wrong:
            say(f"lossbench: {found.interface}: {'; '.join(wrong)}", err=True)
            status = status or ExitCode.UNKNOWN
        return 128 - status if status < 0 else status


def _words(found: State) -> str:
    from lossbench.net.nic import state

    left = found.until - state.now()
    return (
        f"{found.interface}: {found.profile} at {' and '.join(found.sides)} by {found.backend}, {found.phase}, "
        f"{left:.0f} s left ({found.id})"
    )


@app.command("confirm")
def confirm(interface: str = typer.Argument(help="Such as eth1.")) -> None:
    """From a new SSH connection: the interface still lets you in, so what was applied may stay."""
    _root_only()
    from lossbench.net.nic import standing
    from lossbench.net.nic.facts import ssh_connection

    found = standing.confirm(interface, ssh_connection(os.environ), at_console=os.isatty(0))
    say(_words(found))


@app.command("revert")
def revert(
    interface: str = typer.Argument("", help="Such as eth1."),
    every: bool = typer.Option(False, "--all", help="All interfaces that something of ours stands on."),
) -> None:
    """Take away what `lossbench nic apply` put there, now."""
    _root_only()
    from lossbench.net.nic import standing

    if not interface and not every:
        raise UsageError("which interface?", next_step="lossbench nic revert eth1, or --all")
    differs: dict[str, list[str]] = {}
    failed: dict[str, LossbenchError] = {}
    for name in [one.interface for _, one in standing.standing()] if every else [interface]:
        try:
            differs[name] = standing.revert(name)
        except LossbenchError as error:
            if not every:
                raise
            failed[name] = error
    for name, found in differs.items():
        if not found:
            say(f"{name}: as it was before")
    _say_elsewhere()
    _complain(differs, failed)


def _complain(differs: dict[str, list[str]], failed: dict[str, LossbenchError]) -> None:
    """What could not be taken away is not gone: it is said apart from what somebody else changed."""
    changed = [f"{name}: {'; '.join(found)}" for name, found in differs.items() if found]
    if failed:
        wrong = [f"{name} was not taken away: {error.message}" for name, error in failed.items()]
        raise RunError("; ".join([*wrong, *changed]), next_step=next(iter(failed.values())).next_step)
    if changed:
        raise RunError("; ".join(changed), next_step="somebody else changed it meanwhile; what we added is gone")


def _say_elsewhere() -> None:
    from lossbench.net.nic import standing

    others = len(standing.standing(everywhere=True)) - len(standing.standing())
    if others:
        say(f"{others} more in other network namespaces: lossbench clean --all ends them")


@app.command("show")
def show(
    interface: str = typer.Argument("", help="Such as eth1."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """What stands on which interface, for how long, and what it has done to packets so far."""
    _root_only()
    from lossbench.net.nic import standing

    found = [standing.find(interface)] if interface else standing.standing()
    reports = [standing.describe(one) for _, one in found]
    if as_json:
        sys.stdout.write(json.dumps({"nics": reports}) + "\n")
        return
    if not reports:
        say("nothing of ours stands on any interface")
    _say_elsewhere()
    for report in reports:
        show_one(report)


def show_one(report: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    console = Terminal()
    console.print(
        f"{report['interface']}: {report['profile']} ({100 * report['asked_loss']:g} % loss asked) by "
        f"{report['backend']}, {report['phase']}, {report['left_s']:.0f} s left, {report['watchdogs']} watchdogs",
        markup=False,
    )
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("side", "packets", "dropped", "percent", "never touched", "not asked for"):
        table.add_column(name, justify="left" if name == "side" else "right")
    for side, one in report["sides"].items():
        share = f"{100 * one['dropped'] / one['seen']:.3f}" if one["seen"] else "-"
        table.add_row(side, *(str(n) for n in (one["seen"], one["dropped"], share, one["protected"], one["other"])))
    console.print(table)
    for side, one in report["sides"].items():
        for text in one["wrong"]:
            console.print(f"- {text}", markup=False)
        if one["lost_in_detour"] or one["super_packets"]:
            text = f"{one['lost_in_detour']} packets lost beside the rule, {one['super_packets']} not cut to the MTU"
            console.print(f"- {side}: {text}", markup=False)


def _root_only() -> None:
    if rootless.needed():
        raise NotAbleError("a machine's own interface needs root", next_step="use sudo")
