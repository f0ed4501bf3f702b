"""`lossbench doctor`."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from lossbench.cli.console import Terminal
from lossbench.errors import ExitCode


def doctor(as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output.")) -> None:
    """What this machine can do, found by trying; which backend a run gets and why; what is missing, how to fix it."""
    from lossbench import api

    report = api.doctor()
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        _show(report)
    raise typer.Exit(ExitCode.VALID if report["backend"]["name"] else ExitCode.NOT_ABLE)


def yes(names: dict[str, bool]) -> Text:
    """What there is; what there is not stands apart."""
    there, missing = ([name for name, on in names.items() if on is wanted] for wanted in (True, False))
    parts = [Text(" ".join(there), "green")] if there else []
    parts += [Text(f"missing: {', '.join(missing)}", "dim")] if missing else []
    return Text("; ").join(parts)


def works(reason: str | None) -> Text:
    return Text("works", "green") if reason is None else Text(reason, "yellow")


def _show(report: dict[str, Any]) -> None:
    console = Terminal()
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("machine", f"{report['distribution']}, kernel {report['kernel']} {report['machine']}")
    table.add_row("", f"{report['cpus']} cores, {report['memory_gib']} GiB, {report['cpu']}")
    as_user = f" ({report['rootless']})" if report["rootless"] else ""
    table.add_row("network namespaces", works(report["namespaces"]).append(as_user, "default"))
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
    table.add_row("a run gets", Text.assemble((chosen["name"] or "nothing", "bold"), f" ({chosen['why']})"))
    console.print(table)
    for line in report["advice"]:
        console.print(f"- {line}", markup=False)
    if chosen["name"]:
        console.print("ready: lossbench run quickstart, or lossbench run --loss 3% -- python train.py", markup=False)
    else:
        console.print("not ready: nothing here can lose packets yet (see above)", markup=False)
