"""`lossbench list`: what there is to choose from, and what was made."""

from __future__ import annotations

import ast
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from lossbench.cli.console import Terminal
from lossbench.cli.reading.report import IN

RECENT = 10
NO_STRATEGY = ("__init__", "absence", "base", "patience")  # parts of strategies


def listing(where: Path = IN) -> None:
    """Suites, network conditions, training strategies, standing networks, recent results."""
    from lossbench.results import index
    from lossbench.spec import profile

    console = Terminal()
    _table(console, "suites: lossbench run NAME", _suites())
    _table(
        console, "conditions: lossbench run --profile NAME -- ...", {n: profile.load(n).why for n in profile.names()}
    )
    _table(console, "training strategies: --set workload.options.strategy=NAME", _strategies())
    labs = _labs()
    if labs:
        _table(console, "networks that stand: lossbench net show", labs)
    runs, _ = index.scan(where) if where.is_dir() else ([], [])
    newest = sorted(runs, key=lambda one: one.folder.name, reverse=True)[:RECENT]
    if newest:
        _table(console, f"results in {where}: lossbench report ID", {one.id: one.folder.name for one in newest})


def _table(console: Console, title: str, rows: dict[str, str]) -> None:
    console.print(title, style="bold", markup=False)
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, about in rows.items():
        table.add_row(name, about)
    console.print(table)


def _suites() -> dict[str, str]:
    from lossbench.spec.asking import points
    from lossbench.spec.userfile import read_toml

    return {name: str(read_toml(points.find(name)).get("why", "")) for name in points.suite_names()}


def _strategies() -> dict[str, str]:
    """By their files: nothing of them is loaded, torch least of all."""
    from lossbench.spec.about import SHIPPED

    out = {}
    for path in sorted((SHIPPED / "sync").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.stem not in NO_STRATEGY:
            out[path.stem] = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")
    return out


def _labs() -> dict[str, str]:
    from lossbench.net import journal

    return {one.id: str(one.owner().get("since", "")) for one in journal.networks() if one.is_lab()}
