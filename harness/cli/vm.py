"""`lossbench vm`: a stock kernel on any machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import typer

from lossbench.cli.console import say
from lossbench.errors import NotAbleError, UsageError
from lossbench.net.guest.recipe import Image

app = typer.Typer(
    no_args_is_help=True, help="A stock Debian kernel (netem, prio, fq) under QEMU, with this machine's files."
)
PASS_ON = {"ignore_unknown_options": True}
WRITABLE = typer.Option(None, "--writable", help="A folder the guest may write to; default ./results.")


@app.command("setup")
def setup() -> None:
    """Fetch qemu and the kernel into the cache now (about 85 MB), instead of at the first use."""
    _image()
    say("ready: lossbench vm run -- COMMAND")


@app.command("run", context_settings=PASS_ON)
def run(
    command: list[str] = typer.Argument(None, metavar="-- COMMAND [ARGS]...", help="What to run in the guest."),
    timeout_s: float = typer.Option(600, "--timeout-s", help="Ends the guest; exit status 124."),
    instruction_clock: bool = typer.Option(
        False,
        "--instruction-clock",
        help="The clock counts instructions: timing that does not depend on this machine's load.",
    ),
    cpus: int = typer.Option(2, "--cpus", min=1, help="Cores of the guest."),
    writable: Path | None = WRITABLE,
    wire: Path | None = typer.Option(None, "--wire", help="A name: two guests with the same one are joined by it."),
    end: int = typer.Option(1, "--end", min=1, max=2, help="Which end of the wire: eth0 is 10.99.0.1 or 10.99.0.2."),
) -> None:
    """Run a command on a stock kernel: lossbench vm run -- lossbench run proof --backend netem

    The guest sees this machine's files read-only (what it writes elsewhere than in the writable folder is gone with
    it), the same folder, the same environment; its output and exit status come back."""
    if not command:
        raise UsageError("no command given", next_step="lossbench vm run -- COMMAND")
    from lossbench.net.guest import boot

    code = boot.run(
        _image(),
        command,
        writable=_writable(writable),
        timeout_s=timeout_s,
        instruction_clock=instruction_clock,
        cpus=cpus,
        wire=_plain(wire.absolute()) if wire is not None else None,
        end=end,
    )
    raise typer.Exit(code)


@app.command("shell")
def shell(
    writable: Path | None = WRITABLE, cpus: int = typer.Option(2, "--cpus", min=1, help="Cores of the guest.")
) -> None:
    """A shell on a stock kernel; `exit` ends the guest."""
    if not os.isatty(0):
        raise UsageError("a shell needs a terminal", next_step="lossbench vm run -- COMMAND")
    from lossbench.net.guest import boot

    raise typer.Exit(boot.run(_image(), [], writable=_writable(writable), interactive=True, cpus=cpus))


def _image() -> Image:
    from lossbench.net.guest import image

    return image.prepare(lambda what: say(f"lossbench: {what}", err=True))


def _plain(path: Path) -> Path:
    from lossbench.net.guest.image import PLAIN_PATH

    if not re.fullmatch(PLAIN_PATH, str(path)):
        raise UsageError(f"'{path}' has characters that qemu can't take", next_step="give it another name")
    return path


def _writable(folder: Path | None) -> Path:
    chosen = _plain((folder or Path("results")).resolve())
    try:
        chosen.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotAbleError(f"{chosen} can't be made ({error.strerror})", next_step="give --writable") from None
    return chosen
