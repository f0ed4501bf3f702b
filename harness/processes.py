"""Processes that we start and end: by handles that never name somebody else, from the installed package alone."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

REAP_S = 5.0
PR_SET_PDEATHSIG = 1
PACKAGE = Path(os.path.abspath(__file__)).parent.parent  # the folder that holds `lossbench`, which may be a link


def absolute_folders(path: str | None = None) -> str:
    """Of PATH those that it names in full: an empty or relative entry means the current folder, whose files anybody may
    have put there."""
    entries = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if entry.startswith(os.sep)) or os.defpath


def inherited(**more: str) -> dict[str, str]:
    """What a program that we start finds in its environment: ours, by which it is found too (subprocess and exec look
    along the PATH that they give)."""
    return {**os.environ, **more, "PATH": absolute_folders(more.get("PATH"))}


def which(program: str) -> str | None:
    """Where a program is found that we start, or that we would."""
    return shutil.which(program, path=absolute_folders())


def module_command(module: str, *arguments: str) -> list[str]:
    """One of our own modules. -P: without the current folder, whose files anybody may have put there."""
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """In which our modules are found where we were found. Of PYTHONPATH only absolute folders (an empty entry means the
    current folder), and none that holds a package with our name."""
    asked = environment.get("PYTHONPATH", "").split(os.pathsep)
    paths = [part for part in asked if part.startswith(os.sep) and not _has_our_name(part)]
    if str(PACKAGE) not in paths and PACKAGE.name not in ("site-packages", "dist-packages"):
        paths.append(str(PACKAGE))
    found = absolute_folders(environment.get("PATH"))
    return {**environment, "PYTHONPATH": os.pathsep.join(paths), "PATH": found}


def _has_our_name(folder: str) -> bool:
    if Path(folder).resolve() == PACKAGE.resolve():
        return False
    return any(os.path.lexists(f"{folder}/lossbench{end}") for end in ("", ".py"))


def die_with_parent() -> None:
    """For preexec_fn: a killed parent takes this process with it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Running(Protocol):
    """A process that was started and is not reaped yet."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """How it ended; None while it runs."""

    def signal(self, number: int) -> None:
        """To its whole group."""

    def catches(self, number: int) -> bool:
        """Has it a handler of its own for a signal?"""

    def reap(self) -> None:
        """Only after the last signal."""


class Started:
    """A child that leads a group of its own. It is not reaped before the end: until then its number, and its group's,
    can't be given to anybody else."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self.pid = process, process.pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        if self._code is None:
            self._code = ended(self.pid)
        return self._code

    def signal(self, number: int) -> None:
        if self._process.returncode is None:  # not reaped
            signal_group(self.pid, number)

    def catches(self, number: int) -> bool:
        return catches(self.pid, number)

    def reap(self) -> None:
        """Only after the last signal. What the kernel keeps (a driver, a dead file server) is left to it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=REAP_S)


def ended(pid: int) -> int | None:
    """How a child ended; None while it runs. It stays to be reaped."""
    done = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if done is None:
        return None
    return done.si_status if done.si_code == os.CLD_EXITED else -done.si_status


def signal_group(pid: int, number: int) -> None:
    """To the group of a child that was not reaped yet."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def signal_one(descriptor: int, number: int) -> None:
    """By pidfd: to the process it was opened for, or to nobody."""
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(descriptor, number)


def catches(pid: int, number: int) -> bool:
    """Has this process a handler of its own for a signal?"""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next((int(line.split()[1], 16) for line in file if line.startswith("SigCgt")), 0)
    except OSError:
        return False
    return bool(caught >> (number - 1) & 1)
