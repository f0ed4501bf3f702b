"""Who may be killed while an interface is impaired, or being impaired."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import time
from contextlib import suppress
from pathlib import Path

from lossbench.net.host import namespaces
from tests.nic.wire import COMMAND, Wire, kill, known, until, watchdogs

VICTIMS = ("holder", "maker", "watchdog", "shell")
APPLY = ("nic", "apply", "nic0", "--profile", "loss_5")
FROM_START_S = 1.5
HELD = ("--for", "60s", "--", "sleep", "60")


def drill(wire: Wire, victim: str, after_s: float) -> bool:
    """Applies, kills with SIGKILL after a while. A standing one is then left to its end, two seconds later. Whether
    there was something of ours at that moment."""
    if victim == "watchdog":
        wire.lossbench(*APPLY, "--for", "2s")
        time.sleep(after_s / 3)
        stood = impaired(wire)
        for pid in watchdogs(wire)[:1]:
            kill(pid, signal.SIGKILL)
    elif victim == "shell":
        stood = _kill_a_shell(wire, after_s)
    else:
        process = wire.start(*APPLY, *(HELD if victim == "holder" else ("--for", "2s")))
        _wait(wire, after_s)
        stood = impaired(wire)
        process.kill()
        process.wait()
    return stood


def _wait(wire: Wire, after_s: float) -> None:
    """The earlier moments count from the start, the later ones from the first thing that is there, however slow the
    machine is."""
    if after_s > FROM_START_S:
        until(lambda: impaired(wire))
        after_s -= FROM_START_S
    time.sleep(after_s)


def impaired(wire: Wire) -> bool:
    return wire.links() != ["lo", "nic0"]


def _kill_a_shell(wire: Wire, after_s: float) -> bool:
    """That it runs under in the foreground of a terminal, which hangs up with it."""
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's programs are to outlive their terminal
        line = ["nsenter", f"--net={namespaces.FOLDER / wire.here}", "sh", "-c"]
        os.execvpe(line[0], [*line, f"{shlex.join([*COMMAND, *APPLY, *HELD])}; :"], known({}))
    try:
        _wait(wire, after_s)
        stood = impaired(wire)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return stood
    finally:
        os.close(terminal)


def applying(wire: Wire) -> bool:
    """Whether the one whose shell was killed still lives: it could still make something."""
    for pid in namespaces.pids_inside([wire.here]):
        with suppress(OSError):
            if b"\0nic\0apply\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
    return False
