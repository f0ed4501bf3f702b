"""`lossbench`: reads the command line, calls the harness, turns errors into one line and an exit code."""

from __future__ import annotations

import errno
import signal
import sys
from typing import Any

import typer
from rich.console import Console

from harness import __version__
from harness.cli import comparing, guest_view, lab, machine_view, reporting, running
from harness.errors import ExitCode, LossbenchError

INTERRUPTED = "interrupted: networks that were made have been undone"
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


def main() -> None:
    """Entry point. SIGTERM and a hang-up undo everything, as Ctrl-C does."""
    # A lost ssh session is a hang-up; and a shell's background job would have Ctrl-C ignored from the start.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    try:
        code = app(prog_name="lossbench", standalone_mode=False)
        if code == ExitCode.INTERRUPTED:  # typer's way of passing on Ctrl-C
            _say(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)
    except LossbenchError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say(INTERRUPTED)
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.exit(ExitCode.FAILED)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise  # our mistake, and it stays loud
        _say(f"{error.filename or 'the output'} can't be written or read ({error.strerror})")
        sys.exit(ExitCode.NOT_ABLE)
    except Exception as error:  # noqa: BLE001 - typer's errors have no common base that is public
        sys.exit(_usage(error))


def _terminate(*_: Any) -> None:
    raise KeyboardInterrupt


def _usage(error: Exception) -> int:
    """typer's own errors know how to say themselves; anything else is our mistake and stays loud."""
    if type(error).__name__ == "Abort":
        _say(INTERRUPTED)
        return ExitCode.INTERRUPTED
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "lossbench"
    if message():  # without a command typer has shown the help already
        _say(f"{message().rstrip('.')}; see {command} --help")
    return ExitCode.USAGE


def _say(text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"lossbench: {text}", markup=False)


if __name__ == "__main__":
    main()
