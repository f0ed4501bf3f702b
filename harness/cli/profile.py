"""`lossbench profile`."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer
from rich import box
from rich.table import Table

from lossbench.cli.console import Terminal, say

app = typer.Typer(no_args_is_help=True, help="Network conditions: list them, show one.")


@app.command("list")
def list_profiles(as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output.")) -> None:
    """The network conditions that come with lossbench."""
    from lossbench.spec import lossmodel, profile

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
    Terminal().print(table)


def known_profiles(incomplete: str) -> list[str]:
    """For shell completion."""
    from lossbench.spec import profile

    return [name for name in profile.names() if name.startswith(incomplete)]


@app.command("show")
def show_profile(
    name: str = typer.Argument(help="A shipped profile's name, or a .toml file.", autocompletion=known_profiles),
) -> None:
    """One profile in full, checked, with what it amounts to.

    Example: lossbench profile show bursty_5
    """
    from lossbench.net.impair import registry
    from lossbench.spec import lossmodel, profile

    p = profile.load(name)
    body: dict[str, Any] = p.model_dump(exclude_defaults=True)
    chain = p.chain()
    body["amounts_to"] = {"mean_loss_percent": 100 * p.mean_loss()}
    if chain is not None:
        body["amounts_to"]["burst_packets_mean"] = lossmodel.burst_mean(chain)
    body["backends"] = {
        n: "can" if (why := k.refusal(p)) is None else f"can't: {why}" for n, k in registry.KINDS.items()
    }
    say(json.dumps(body, indent=2))
