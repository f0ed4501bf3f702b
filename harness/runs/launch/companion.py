"""Beside a user's own command, which knows nothing of us: starts it, looks at what the kernel knows of it, and says so
in its name when it has ended. To whoever watches it is the command: its signals, its status."""

from __future__ import annotations

import faulthandler
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from statistics import median
from typing import Any

from lossbench.contract import Door, own_stack
from lossbench.net.host.tcp import Connections
from lossbench.processes import PACKAGE, catches, die_with_parent, inherited
from lossbench.runs.launch import gate

LOOK_MS = 250
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from lossbench.runs.launch import companion; companion.main({})"
HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def command(user: list[str], *, held: bool = False) -> list[str]:
    """Without the user's PYTHON variables, which are meant for their program. `held`: it begins with the run's
    clock."""
    return [sys.executable, "-E", "-P", "-c", BOOT.format("held=True" if held else ""), str(PACKAGE), *user]


def main(*, held: bool = False) -> None:
    door = Door.from_environment()
    faulthandler.disable()
    signal.signal(signal.SIGABRT, signal.SIG_IGN)  # until the command is known to catch it
    connections = _connections(door)
    if held:
        gate.wait(door)
    for number in HEARD:  # they go to the whole group: what the command does then is its own business
        signal.signal(number, _heard)
    began = time.monotonic()
    try:
        child = subprocess.Popen(sys.argv[2:], env=inherited(), preexec_fn=_as_it_was)
    except OSError as error:
        sys.exit(f"{sys.argv[2]}: {error.strerror}")
    opening = threading.Thread(target=_open, args=(connections,), daemon=True)
    opening.start()
    _until_it_ends(child.pid, opening, connections)
    wall_s = time.monotonic() - began
    _, status, used = os.wait4(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    door.record("program", **_known(wall_s, used, connections), exit=code)
    if connections is not None:
        door.samples("rtt_ms", connections.rtt_ms, together=False)
        connections.close()
    _end_as(code)


def _heard(*_: Any) -> None:
    """And left to the command."""


def _abort_as(pid: int) -> None:
    """Whoever would like the stacks of a program that hangs looks whether it catches SIGABRT: ours says what the
    command's does. One that does not would die of it, before it is asked to end."""
    signal.signal(signal.SIGABRT, _heard if catches(pid, signal.SIGABRT) else signal.SIG_IGN)


def _as_it_was() -> None:
    """In the child: signals as a program finds them."""
    for number in (*HEARD, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent()


def _connections(door: Door) -> Connections | None:
    """None without an address to look for, or where programs beside it have connections of the same address."""
    if not door.addresses or "LOSSBENCH_BESIDE" in os.environ:
        return None
    return Connections(address=door.addresses[door.rank], alone=own_stack())


def _open(connections: Connections | None) -> None:
    """While the command loads its own libraries. Where the kernel can't be asked of single connections, it is not."""
    if connections is not None:
        with suppress(ImportError, OSError):
            connections.open()


def _until_it_ends(pid: int, opening: threading.Thread, connections: Connections | None) -> None:
    """Loading what asks the kernel takes seconds on a busy machine: the command is looked at meanwhile."""
    ending = select.poll()
    handle = os.pidfd_open(pid)
    ending.register(handle, select.POLLIN)
    while not ending.poll(LOOK_MS):
        _abort_as(pid)
        if connections is not None and not opening.is_alive():
            connections.sample()
    os.close(handle)
    opening.join()


def _known(wall_s: float, used: resource.struct_rusage, connections: Connections | None) -> dict[str, Any]:
    out = {"wall_s": wall_s, "cpu_s": used.ru_utime + used.ru_stime, "memory_mb": used.ru_maxrss * 1024 / 1e6}
    if connections is not None:
        resent, rtts = connections.resent(), connections.rtt_ms
        out |= {"tcp_resent_percent": 100 * resent} if resent is not None else {}
        out |= {"rtt_ms": median(rtts)} if rtts else {}
    return out


def _end_as(code: int) -> None:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its own
        with suppress(OSError):  # of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
