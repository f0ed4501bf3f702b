"""An ordinary user becomes root of a user namespace of their own: enough for networks with cbpf (or netem) loss.

Everything made there ends with the process that entered: there is nothing to clean up afterwards."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from lossbench.errors import NotAbleError
from lossbench.processes import die_with_parent

CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET = 0x10000000, 0x00020000, 0x40000000
MS_REC_PRIVATE = 0x4000 | 0x40000


def capabilities() -> dict[str, bool]:
    """Which of the rights that matter here this process has."""
    numbers = {"net_admin": 12, "net_raw": 13, "sys_module": 16, "sys_admin": 21, "bpf": 39}
    with open("/proc/self/status", encoding="ascii") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff"))
    return {name: bool(effective >> number & 1) for name, number in numbers.items()}


def needed() -> bool:
    """By rights, not by user: root of a container without them is an ordinary user to us."""
    have = capabilities()
    return not (have["net_admin"] and have["sys_admin"])


def with_rights() -> None:
    """Afterwards this process may make networks: as it could before, or in a namespace of its own."""
    if needed():
        enter()


def enter() -> None:
    """Must come before any thread starts: of a library that counts (numpy), of a view that is drawn again and again.
    Files made afterwards belong to the user as ever. There is no way back to the machine's network from inside, so a
    process of ours stays there: data sets are fetched by it."""
    _Outside.line = _stay_behind()
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET):
        number = ctypes.get_errno()
        threads = len(os.listdir("/proc/self/task"))
        if number == errno.EINVAL and threads > 1:
            raise NotAbleError(
                f"not root, and a process with {threads} threads can't enter a user namespace",
                next_step="call lossbench before libraries that start threads are loaded (OMP_NUM_THREADS=1 keeps"
                " numpy from it), use its command line, or run with sudo",
            )
        raise _refused(os.strerror(number))
    try:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")
    except OSError as error:
        raise _refused(str(error.strerror)) from None
    # A private /run: named namespaces and our state live there, seen by nobody else.
    if libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) or libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, None):
        raise _refused(os.strerror(ctypes.get_errno()))


class _Outside:
    line: socket.socket | None = None  # to the process that stayed in the machine's network


def run_outside(command: list[str], *, text: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """(exit status, standard output) of a program that may need the machine's own network."""
    if _Outside.line is None:
        done = subprocess.run(
            command,
            input=text,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env=dict(environment),
            preexec_fn=_as_usual,
        )
        return done.returncode, done.stdout
    with _Outside.line.makefile("rw", encoding="utf-8") as line:
        line.write(json.dumps([command, text, dict(environment)]) + "\n")
        line.flush()
        status, output = json.loads(line.readline() or '[1, "the process that fetches data has ended"]')
    return int(status), str(output)


def _as_usual() -> None:
    """For preexec_fn: signals as a program expects them, but for Ctrl-C: a terminal sends it to all, and whoever asked
    for the program ends it and says so, once."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _stay_behind() -> socket.socket:
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        _serve(theirs)
    theirs.close()
    return ours


def _serve(line: socket.socket) -> NoReturn:
    """As long as its parent lives, and what it starts as long as itself; signals of the terminal are the parent's."""
    try:
        die_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with line.makefile("rw", encoding="utf-8") as both:
            for request in both:
                command, text, environment = json.loads(request)
                status, output = run_outside(command, text=text, environment=environment)
                both.write(json.dumps([status, output]) + "\n")
                both.flush()
    finally:
        os._exit(0)


def _refused(reason: str) -> NotAbleError:
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if restricted.exists() and restricted.read_text().strip() == "1":
        step = "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run with sudo"
    else:
        step = "run with sudo, or allow user namespaces (sysctl user.max_user_namespaces)"
    return NotAbleError(f"not root, and a user namespace can't be entered here ({reason})", next_step=step)
