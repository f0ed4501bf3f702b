"""The command and its verbs, put together; the only place that knows them all."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

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
    epilog="Exit codes: 0 valid, 1 a program or an expectation failed, 2 usage, 3 unknown, 4 not possible on this "
    "machine, 130 interrupted.",
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


class PlainFlags(TyperCommand):
    """A flag takes no value, and so has no word for one in the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_words(super().get_params(ctx))


class PlainFlagsOfGroup(TyperGroup):
    """The same for what has verbs below it."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_words(super().get_params(ctx))


class WithCommandAndPlainFlags(WithCommand, PlainFlags):
    """Of `run` and `init`."""


def _without_words(params: list[Any]) -> list[Any]:
    """typer shows the type of everything that has no word of its own."""
    for one in params:
        if getattr(one, "is_flag", False) and one.metavar is None:
            one.metavar = ""
    return params


def _say_flags_plainly(verbs: typer.Typer) -> None:
    verbs.info.cls = PlainFlagsOfGroup
    for verb in verbs.registered_commands:
        verb.cls = WithCommandAndPlainFlags if verb.cls is WithCommand else PlainFlags
    for below in verbs.registered_groups:
        below.cls = PlainFlagsOfGroup
        if below.typer_instance is not None:
            _say_flags_plainly(below.typer_instance)


_say_flags_plainly(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"lossbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    del version  # its callback has done it
