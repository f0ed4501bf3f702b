"""Where programs wait that know nothing of us: they begin with the run's clock, once all were launched. Whoever is to
wait in their place says "ready" for them, waits, and becomes the program, or starts it (companion, nursery)."""

from __future__ import annotations

import os
import signal
import sys

from lossbench.contract import Door
from lossbench.processes import PACKAGE

BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from lossbench.runs.launch import gate; gate.main()"
OF_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # that it ignores, and a program would inherit


def command(program: list[str]) -> list[str]:
    """Without the PYTHON variables, which are meant for the program."""
    return [sys.executable, "-E", "-P", "-c", BOOT, str(PACKAGE), *program]


def wait(door: Door) -> None:
    """Until it opens. Told to end, a process ends here as any other; with its harness gone it never begins."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    door.record("ready")
    gate = os.open(door.go_path, os.O_RDONLY)
    opened = os.read(gate, 1)
    os.close(gate)
    signal.signal(signal.SIGINT, before)
    if not opened:
        sys.exit("the run ended before its programs began")


def main() -> None:
    wait(Door.from_environment())
    for number in OF_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"{sys.argv[2]}: {error.strerror}")
