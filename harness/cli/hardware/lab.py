"""`lossbench lab`: machines over SSH."""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lossbench.cli.console import Terminal, say
from lossbench.cli.hardware.words import BURST, DELAY, LOSS, PROFILE, RATE, condition
from lossbench.errors import LossbenchError, NotAbleError, UsageError, VanishedError

if TYPE_CHECKING:
    from lossbench.net.lab.check import Checked

USUAL = Path("lab.toml")
HOST = re.compile(r"h[0-9]+")
app = typer.Typer(
    no_args_is_help=True, help="Machines over SSH (lab.toml): name them, check them, put a profile on all, revert it."
)
FILE = typer.Argument(USUAL, help="The lab's file.")
JSON = typer.Option(False, "--json", help="One JSON object.")


@app.command("init")
def init(
    file: Path = typer.Argument(USUAL, help="To be written; never over one that is there."),
    machines: list[str] = typer.Argument(None, metavar="[SSH]...", help="As ssh takes them: node0 root@node1."),
    interface: str = typer.Option("eth1", "--interface", help="Of the data network."),
) -> None:
    """Write a lab.toml to edit, with comments.

    Example: lossbench lab init lab.toml node0 root@node1 --interface eth1
    """
    from lossbench.files import disk_errors
    from lossbench.spec.asking import labfile

    if file.suffix != ".toml":
        raise UsageError(f"{file} is no .toml file", next_step="lossbench lab init lab.toml node0 node1")
    if file.exists():
        raise UsageError(f"{file} is there already", next_step="give another name")
    text = labfile.text(machines or labfile.NODES, interface=interface)
    with disk_errors(file, full="free some space"), open(file, "x", encoding="utf-8") as target:
        target.write(text)
    say(f"{file} written; look through it, then: lossbench lab check {file}")


@app.command("check")
def check(file: Path = FILE, as_json: bool = JSON) -> None:
    """Is every machine reachable, able and right: versions, clock, MTU, marks, bare loss and rate to the next one; and
    does the switch answer."""
    from lossbench.net.lab.check import check as check_lab
    from lossbench.spec import lab as labs

    found = check_lab(labs.load(file))
    if as_json:
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
    else:
        _show_check(found)
    if not found.usable():
        raise typer.Exit(NotAbleError.exit_code)


def _show_check(found: Checked) -> None:
    from rich import box
    from rich.table import Table

    console, rows = Terminal(), found.machines
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("host", "kernel", "backends", "clock ms", "to", "loss %", "Mbit/s", "MTU", "DSCP"):
        table.add_column(name, justify="left" if name in ("host", "kernel", "backends", "to") else "right")
    for row in rows:
        path = row.path
        table.add_row(
            row.name,
            row.about.get("kernel", "-"),
            ", ".join(row.about.get("backends", [])) or "-",
            f"{row.clock_ms:+.1f}" if row.clock_ms is not None else "-",
            path.get("to", "-"),
            f"{100 * path['bare_loss']:.2f}" if path else "-",
            f"{path['rate_mbit']:.0f}" if path.get("rate_mbit") else "-",
            str(path.get("mtu") or "-"),
            ("kept" if path["dscp"] else "lost") if path else "-",
        )
    console.print(table)
    for row in rows:
        for text in row.wrong:
            console.print(f"- {row.name} ({row.ssh}) can't be used: {text}", markup=False, soft_wrap=True)
        for text in row.notes:
            console.print(f"- {row.name}: {text}", markup=False, soft_wrap=True)
    for text in found.wrong:
        console.print(f"- the lab can't be used: {text}", markup=False, soft_wrap=True)
    for text in found.notes:
        console.print(f"- {text}", markup=False, soft_wrap=True)
    if found.switch is not None:
        console.print(f"- the switch answers: {len(found.switch)} queues, {sum(found.switch.values())} drops so far")
    if found.usable():
        console.print(f"all {len(rows)} machines can be used" if len(rows) > 1 else "the machine can be used")


@app.command("apply")
def apply(
    file: Path = FILE,
    profile: str = PROFILE,
    loss: str = LOSS,
    burst: str = BURST,
    delay: str = DELAY,
    rate: str = RATE,
    duration: str = typer.Option("10m", "--for", help="How long at most: 30s, 10m, 2h."),
    port: list[str] = typer.Option([], "--port", help="Only these ports, of either end."),
    dscp: int | None = typer.Option(None, "--dscp", min=0, max=63, help="Only packets with this mark."),
    side: str = typer.Option("egress", "--side", help="egress, ingress or both."),
    backend: str = typer.Option("auto", "--backend", help="netem where the kernel has it, else ebpf."),
    seed: int | None = typer.Option(None, "--seed", help="Pins the loss patterns (ebpf); each machine has its own."),
    confirm_within: str = typer.Option("15s", "--confirm-within", help="Until each takes it back unconfirmed."),
    yes_these_nics: bool = typer.Option(False, "--yes-these-nics", help="Even with default route or SSH on them."),
) -> None:
    """Put a profile on every machine's data interface, between the machines of the lab; on all, or on none.

    Each is confirmed by a connection made afterwards, and ends by itself when its time is over.

    Example: lossbench lab apply lab.toml --loss 3% --burst 8 --for 10m --port 29500
    """
    from lossbench.cli.hardware import nic
    from lossbench.net.lab import orders
    from lossbench.runs.interrupt import held
    from lossbench.spec import lab as labs

    lab = labs.load(file)
    chosen = condition(profile=profile, loss=loss, burst=burst, delay=delay, rate=rate)
    done = orders.apply(
        lab,
        profile=chosen.model_dump(mode="json"),
        traffic=asdict(nic.traffic_of(to=[], port=port, dscp=dscp)),
        for_s=nic.seconds(duration),
        sides=nic.sides_of(side),
        backend=backend,
        seed=secrets.randbits(32) if seed is None else seed,
        this_nic=yes_these_nics,
        confirm_s=nic.seconds(confirm_within),
        hold=held,
    )
    for rank, found in done.items():
        where = f"h{rank} ({lab.machine[rank].ssh})"
        say(f"{where}: {found['profile']} on {found['interface']} by {found['backend']}")
    say(f"it ends by itself after {duration}; lossbench lab revert {file} ends it now")


@app.command("show")
def show(file: Path = FILE, as_json: bool = JSON) -> None:
    """What stands on each machine's data interface, and what it has done to packets."""
    from lossbench.cli.hardware.nic import show_one
    from lossbench.net.lab import orders
    from lossbench.spec import lab as labs

    lab = labs.load(file)
    found = orders.ask_each(lab, "nic.show")
    if as_json:
        values = {f"h{rank}": {"error": str(o)} if isinstance(o, LossbenchError) else o for rank, o in found.items()}
        sys.stdout.write(json.dumps({"machines": values}) + "\n")
    else:
        for rank, one in found.items():
            if isinstance(one, LossbenchError):
                say(str(one))
            elif one is None:
                say(f"h{rank} ({lab.machine[rank].ssh}): nothing of ours")
            else:
                show_one({**one, "interface": f"h{rank} {one['interface']}"})
    _fail_if_any(found)


@app.command("revert")
def revert(file: Path = FILE) -> None:
    """Take it away on every machine, now; what could not be done is said, machine by machine."""
    from lossbench.net.lab import orders
    from lossbench.spec import lab as labs

    lab = labs.load(file)
    found = orders.ask_each(lab, "nic.revert")
    for rank, one in found.items():
        name = f"h{rank} ({lab.machine[rank].ssh})"
        say(f"{name}: {reverted_words(one)}")
    _fail_if_any(found)


def reverted_words(one: list[str] | LossbenchError | None) -> str:
    """Of one machine. Who does not answer any more may have done it or not; who fails has not."""
    if isinstance(one, LossbenchError):
        return f"{'not known to be taken away' if isinstance(one, VanishedError) else 'not taken away'} ({one})"
    if one:
        return f"{'; '.join(one)} (somebody else changed it meanwhile)"
    return "nothing of ours stood there" if one is None else "as it was before"


def _fail_if_any(found: dict[int, Any]) -> None:
    for one in found.values():
        if isinstance(one, LossbenchError):
            raise one


@app.command("exec", context_settings={"ignore_unknown_options": True})
def execute(
    words: list[str] = typer.Argument(
        ..., metavar="[FILE] HOST -- COMMAND [ARGS]...", help="FILE: lab.toml if none is named. HOST: h0, h1, ..."
    ),
) -> None:
    """Run a program on a machine, by your own ssh: lossbench lab exec h1 -- nvidia-smi"""
    from lossbench.net.lab.channel import ssh_command
    from lossbench.spec import lab as labs

    file, host, command = _addressed(words)
    lab = labs.load(file)
    if host not in lab.names():
        raise UsageError(f"no host '{host[:40]}'", next_step=f"hosts are {', '.join(lab.names())}")
    if not command:
        raise UsageError("no command given", next_step=f"lossbench lab exec {file} {host} -- COMMAND")
    line = ssh_command(lab, lab.machine[lab.names().index(host)], command)
    try:
        os.execvp(line[0], line)
    except OSError as error:
        raise NotAbleError(f"no ssh ({error.strerror})", next_step="install OpenSSH's client") from None


def _addressed(words: list[str]) -> tuple[Path, str, list[str]]:
    """(file, host, command): who begins with a host means the usual file."""
    first = words[0]
    if HOST.fullmatch(first):
        return USUAL, first, words[1:]
    if not first.endswith(".toml") and "/" not in first:
        raise UsageError(f"'{first[:40]}' is no lab's file, and no host", next_step="hosts are h0, h1, ...")
    if len(words) < 2:
        raise UsageError("no host given", next_step=f"lossbench lab exec {first} h0 -- COMMAND")
    return Path(first), words[1], words[2:]
