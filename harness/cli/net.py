"""`lossbench net`: a standing network for programs of your own."""

from __future__ import annotations

import json
import os
import secrets
import sys
from typing import Any

import typer
from rich.text import Text

from lossbench.cli.console import Terminal, say
from lossbench.errors import NotAbleError, RunError, UsageError
from lossbench.net.host import rootless
from lossbench.results.machine import tcp_in_words
from lossbench.results.naming import counted

app = typer.Typer(no_args_is_help=True, help="A network that stays up: bring it up and run your own programs in it.")
NET = typer.Option(None, "--net", help="Which network, if several stand.")
LOSS = typer.Option("", "--loss", metavar="3%", help="Packets lost on every host's uplink.")
BURST = typer.Option("", "--burst", metavar="8", help="With --loss: mean number of packets lost in a row.")
DELAY = typer.Option("", "--delay", metavar="20ms", help="Delay every packet by this much.")


@app.command("up")
def up(
    hosts: int = typer.Option(4, "--hosts", help="How many hosts around the switch."),
    profile: str = typer.Option("", "--profile", help="Network condition of every host's uplink, by name or file."),
    loss: str = LOSS,
    burst: str = BURST,
    delay: str = DELAY,
    rate: str = typer.Option("", "--rate", metavar="1gbit", help="Rate of every link, both directions."),
    rate_mbit: float | None = typer.Option(None, "--rate-mbit", help="The same, as a number."),
    mtu: int = typer.Option(1500, "--mtu", help="Bytes of the largest packet."),
    family: str = typer.Option("both", "--family", help="ipv4, ipv6 or both."),
    direction: str = typer.Option("uplink", "--direction", help="uplink, downlink or both."),
    backend: str = typer.Option("auto", "--backend", help="By name (lossbench doctor lists them); else automatic."),
    seed: int | None = typer.Option(None, "--seed", help="Pins the loss pattern."),
) -> None:
    """Bring up a network. It stands until `lossbench net down`.

    Examples:

      lossbench net up --hosts 3 --loss 1%

      lossbench net up --hosts 16 --rate 1gbit --profile bursty_1
    """
    _root_only()
    from lossbench.runs import standing
    from lossbench.spec.asking import adhoc

    condition, words = _condition(profile, loss, burst, delay)
    rate_mbit = adhoc.rate_mbit(rate) if rate else rate_mbit
    spec = {
        "name": "net",
        "backend": backend,
        "topology": {"hosts": hosts, "mtu": mtu, "family": family, "rate_mbit": rate_mbit},
        "impair": [{"profile": condition, "direction": direction}],
    }
    lab = standing.up(spec, seed=secrets.randbits(32) if seed is None else seed)
    say(f"{lab.id}: {hosts} hosts up (h0 to h{hosts - 1}), backend {lab.backend}, {words}")
    say(f"TCP in its hosts: {tcp_in_words(standing.tcp(lab)) or 'not known'}")
    net = f"--net {lab.id}"
    say(f"next: lossbench net exec {net} h0 -- COMMAND, lossbench net verify {net}, lossbench net down {net}")


@app.command("set")
def change(
    profile: str = typer.Option("", "--profile", help="The new network condition, by name or file."),
    loss: str = LOSS,
    burst: str = BURST,
    delay: str = DELAY,
    direction: str = typer.Option("uplink", "--direction", help="uplink, downlink or both."),
    net: str | None = NET,
) -> None:
    """Change the condition of a standing network in place; connections stay up.

    Examples:

      lossbench net set --loss 5%

      lossbench net set --profile bursty_5
    """
    _root_only()
    from lossbench.runs import standing

    if not (profile or loss or burst or delay):
        raise UsageError("set what?", next_step="--loss 5%, or --profile NAME (lossbench profile list)")
    condition, words = _condition(profile, loss, burst, delay)
    lab = standing.find(net)
    changed = standing.change(lab, [{"profile": condition, "direction": direction}])
    where = f"changed in {counted(changed, 'direction')} of links" if changed else "as before: nothing changed"
    say(f"{lab.id}: {words} in force, {where}")


def _condition(profile: str, loss: str, burst: str, delay: str) -> tuple[Any, str]:
    """(for an experiment's `profile`, in words)."""
    from lossbench.spec.asking import adhoc

    found, words = adhoc.condition(loss=loss, burst=burst, delay=delay, profile=profile)
    return (_absolute(found) if isinstance(found, str) else found), words


@app.command("show")
def show(net: str | None = NET, as_json: bool = typer.Option(False, "--json", help="One JSON object.")) -> None:
    """Hosts, addresses, what is in force, kernel counters, queues. Of several without --net: which there are."""
    _root_only()
    from lossbench.runs import standing

    if net is None and len(standing.books()) > 1:
        listed(as_json=as_json)
        return
    report = standing.describe(standing.find(net))
    if as_json:
        sys.stdout.write(json.dumps(report, default=str) + "\n")
        return
    _show_lab(report)


def _show_lab(report: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    console = Terminal()
    console.print(f"network {report['id']}: backend {report['backend']}, profile {', '.join(report['profiles'])}")
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("host", "data address", "control", "sent", "dropped", "running"):
        table.add_column(name, justify="right" if name in ("sent", "dropped", "running") else "left")
    for host in report["hosts"]:
        row = (
            host["name"],
            "\n".join(host["addresses"]),
            host["control"],
            *(str(host[k]) for k in ("seen", "dropped", "processes")),
        )
        table.add_row(*row)
    console.print(table)
    console.print(f"TCP in its hosts: {tcp_in_words(report['tcp']) or 'not known'}", markup=False)


@app.command("exec", context_settings={"ignore_unknown_options": True})
def execute(
    host: str = typer.Argument(help="h0, h1, ..."),
    command: list[str] = typer.Argument(None, metavar="-- COMMAND [ARGS]...", help="What to run there."),
    net: str | None = NET,
) -> None:
    """Run a program in a host. Names h0, h1, ... resolve to the lossy data link, h0-ctl to the control link.

    Examples (a server first, then who calls it):

      lossbench net exec h0 -- iperf3 -s -D

      lossbench net exec h3 -- iperf3 -c h0
    """
    _root_only()
    if not command:
        raise UsageError("no command given", next_step="lossbench net exec h0 -- COMMAND")
    from lossbench.runs import standing

    standing.become(standing.find(net), host, command)


@app.command("verify")
def verify(
    net: str | None = NET,
    packets: int = typer.Option(120_000, "--packets", min=1000, help="Probes to send; more see smaller differences."),
) -> None:
    """Prove with probes that what was asked is in force now."""
    _root_only()
    from lossbench.cli.screen import tables
    from lossbench.proof.verdict import EXIT_CODES
    from lossbench.report.tables.probes import rule_by_rule
    from lossbench.report.tables.table import terminal
    from lossbench.results.models import ProofRow
    from lossbench.runs import standing

    lab = standing.find(net)
    proof = standing.verify(lab, packets=packets)
    console = Terminal()
    rows = [ProofRow.model_validate(row.as_json()) for row in proof.rows]
    title = f"network {lab.id}, backend {lab.backend}"
    terminal(console, rule_by_rule(rows, title=title, most=len(rows)))  # nothing else is written of them
    for reason in proof.judgement.reasons():
        console.print(f"- {reason}", markup=False)
    console.print(Text.assemble("fault: ", tables.coloured(proof.judgement.status.word)))
    raise typer.Exit(EXIT_CODES[proof.judgement.status])


@app.command("down")
def down(net: str | None = NET, every: bool = typer.Option(False, "--all", help="All that stand.")) -> None:
    """Take a network down, with every program still running in it."""
    _root_only()
    from lossbench.runs import standing

    for removed in standing.down(net, every=every):
        names, pids = len(removed.names), len(removed.pids)
        ended = f"{counted(names, 'namespace')}, {counted(pids, 'process', 'processes')} ended"
        if removed.failed:
            raise RunError(f"{removed.network}: {'; '.join(removed.failed)}", next_step="lossbench clean --all")
        say(f"{removed.network}: down ({ended})")


@app.command("list")
def listed(as_json: bool = typer.Option(False, "--json", help="One JSON object.")) -> None:
    """Every standing network: who brought it up, when, what is in force."""
    _root_only()
    from lossbench.runs import standing

    found = standing.listed()
    if as_json:
        sys.stdout.write(json.dumps({"labs": found}) + "\n")
        return
    for one in found:
        say(f"{one['id']}: {one['about']}, {one['state']}; by {one['user']} since {one['since']}")
    if not found:
        say("no network is up")


def _root_only() -> None:
    if rootless.needed():
        raise NotAbleError(
            "a standing network needs root: a user namespace ends with the command that made it",
            next_step="use sudo, or put your program into an experiment file and `lossbench run` it",
        )


def _absolute(profile: str) -> str:
    return os.path.abspath(profile) if profile.endswith(".toml") else profile
