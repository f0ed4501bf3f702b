"""The command and its verbs, put together; the only place that knows them all."""

from __future__ import annotations

import typer

from lossbench import __version__
from lossbench.cli import clean, doctor, listing, net, profile, schema, vm
from lossbench.cli.console import say
from lossbench.cli.hardware import lab, nic
from lossbench.cli.making import bundle, campaign, init, replay, run
from lossbench.cli.making.words import WithCommand
from lossbench.cli.reading import archive, compare, export, report, tag

app = typer.Typer(
    name="lossbench",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Genuine packet loss for distributed training: build a lossy network, prove the loss, run in it.\n\n"
    "First steps: [bold]lossbench doctor[/], then [bold]lossbench run quickstart[/].",
    epilog="Exit codes: 0 valid, 1 an expectation failed, 2 usage, 3 unknown, 4 this machine is not able.",
)
app.command("run", cls=WithCommand)(run.run)
app.command("campaign")(campaign.campaign)
app.command("bundle")(bundle.bundle)
app.command("init", cls=WithCommand)(init.init)
app.command("list")(listing.listing)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("export")(export.export)
app.command("tag")(tag.tag)
app.command("pack")(archive.pack)
app.command("import")(archive.bring)
app.command("replay")(replay.replay)
app.command("doctor")(doctor.doctor)
app.command("clean")(clean.clean)
app.add_typer(profile.app, name="profile")
app.command("schema")(schema.schema)
app.add_typer(net.app, name="net")
app.add_typer(nic.app, name="nic")
app.add_typer(lab.app, name="lab")
app.add_typer(vm.app, name="vm")


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"lossbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    del version  # its callback has done it
