"""The command and its verbs, put together; the only place that knows them all."""

from __future__ import annotations

import typer

from harness import __version__
from harness.cli import comparing, guest_view, lab, machine_view, reporting, running

app = typer.Typer(
    name="lossbench",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Genuine packet loss for distributed training: build a lossy network, prove the loss, run in it.\n\n"
    "First steps: [bold]lossbench doctor[/], then [bold]lossbench run quickstart[/].",
    epilog="Exit codes: 0 valid, 1 an expectation failed, 2 usage, 3 unknown, 4 this machine is not able.",
)
app.command("run")(running.run)
app.command("report")(reporting.report)
app.command("compare")(comparing.compare)
app.command("replay")(comparing.replay)
app.command("doctor")(machine_view.doctor)
app.command("clean")(machine_view.clean)
app.add_typer(machine_view.profile_app, name="profile")
app.command("schema")(machine_view.schema)
app.add_typer(lab.app, name="net")
app.add_typer(guest_view.app, name="vm")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lossbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    del version  # its callback has done it
