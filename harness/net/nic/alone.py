"""Whether what is left to itself can outlive the command that makes it: with the first process of a pid namespace every
other one ends, watchdogs too, and a container's /run with its journal. The interface of its machine would stay."""

from __future__ import annotations

import os
from pathlib import Path

from lossbench.errors import NotAbleError

MACHINES_OWN = 0xEFFFFFFC  # the inode of every kernel's first pid namespace (PROC_PID_INIT_INO)
INITS = ("systemd", "init", "runit", "s6-svscan", "openrc-init", "dinit")  # by the names that ps shows


def ends_with_us(*, pid: int, parent: int, namespace: int, first: str) -> bool:
    """`namespace`: the inode of ours, `first`: the name of its process 1, which of a container is us, or a shell or a
    reaper (tini) that waits for us alone."""
    if namespace in (0, MACHINES_OWN):
        return False
    return pid == 1 or (parent == 1 and first not in INITS)


def refuse() -> None:
    if ends_with_us(pid=os.getpid(), parent=os.getppid(), namespace=_namespace(), first=_first()):
        text = "this container ends with this command: no watchdog and no journal of the interface would be left"
        step = "`-- COMMAND` impairs while a command runs (-- sleep 600); or say it by exec in a container that stays"
        raise NotAbleError(text, next_step=step)


def _namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _first() -> str:
    try:
        return Path("/proc/1/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
