"""`lossbench schema`: what users write and what runs leave, as JSON schemas."""

from __future__ import annotations

import json

import typer


def schema(
    kind: str = typer.Argument("", help="profile, experiment, suite, run or result; empty lists them."),
    markdown: bool = typer.Option(False, "--markdown", help="As tables for people instead."),
) -> None:
    """JSON schemas: of profiles and experiments that you write, of suite.json and summary.json that runs leave.

    Example: lossbench schema experiment > experiment.schema.json
    """
    from lossbench import api
    from lossbench.errors import UsageError

    if not kind:
        typer.echo("\n".join(api.KINDS))
        return
    if kind not in api.KINDS:
        raise UsageError(f"no schema '{kind}'", next_step=f"known: {', '.join(api.KINDS)}")
    if markdown:
        from lossbench.spec.reference import tables

        typer.echo(tables(api.schema(kind), title=kind), nl=False)
        return
    typer.echo(json.dumps(api.schema(kind), indent=1))
