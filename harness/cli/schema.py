"""`lossbench schema`: what users write and what runs leave, as JSON schemas."""

from __future__ import annotations

import json

import typer

from lossbench.cli.console import say


def schema(
    ctx: typer.Context,
    kind: str = typer.Argument(
        "", help="profile, experiment, campaign, lab, suite, run, result, commands or covers; empty lists them."
    ),
    markdown: bool = typer.Option(False, "--markdown", help="As tables for people instead."),
) -> None:
    """JSON schemas: of profiles, experiments, campaigns and labs that you write, and of what runs leave (suite.json,
    summary.json). covers: by what a verdict judges every condition on every backend, as a table.

    Example: lossbench schema experiment > experiment.schema.json
    """
    from lossbench import api
    from lossbench.errors import UsageError

    known = [*api.KINDS, "commands", "covers"]
    if not kind:
        say("\n".join(known))
        return
    if kind == "commands":
        from lossbench.cli.screen import manual

        say(manual.page(ctx.find_root().command), nl=False)
        return
    if kind == "covers":
        from lossbench.proof.covers import rows

        say(rows.tables(), nl=False)
        return
    if kind not in known:
        raise UsageError(f"no schema '{kind}'", next_step=f"known: {', '.join(known)}")
    if markdown:
        from lossbench.spec.asking.reference import tables

        say(tables(api.schema(kind), title=kind), nl=False)
        return
    say(json.dumps(api.schema(kind), indent=1))
