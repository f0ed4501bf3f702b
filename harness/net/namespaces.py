"""Named network namespaces: make, enter, list who is inside, remove."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyroute2 import netns

FOLDER = Path("/run/netns")
CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def create(name: str) -> None:
    netns.create(name)


def remove(name: str) -> None:
    """Gone is gone: removing what is not there is no error."""
    with suppress(FileNotFoundError):
        netns.remove(name)


def exists(name: str) -> bool:
    return (FOLDER / name).exists()


def setns(fd: int, kind: int = CLONE_NEWNET) -> None:
    if _libc.setns(fd, kind):
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")


@contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread inside a namespace, then back: sockets opened here stay in it."""
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        target = os.open(FOLDER / name, os.O_RDONLY)
        try:
            setns(target)
        finally:
            os.close(target)
        try:
            yield
        finally:
            setns(back)
    finally:
        os.close(back)


def pids_inside(names: list[str]) -> dict[int, str]:
    """Processes whose network namespace is one of these, by the namespace's inode: exact, no guessing by name."""
    inodes = {}
    for name in names:
        with suppress(OSError):
            status = os.stat(FOLDER / name)
            inodes[(status.st_dev, status.st_ino)] = name
    out = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError):
                status = os.stat(f"/proc/{entry}/ns/net")
                if (status.st_dev, status.st_ino) in inodes:
                    out[int(entry)] = inodes[(status.st_dev, status.st_ino)]
    return out


def kill_inside(names: list[str], *, patience_s: float = 2.0) -> list[int]:
    """End every process inside: politely first, then for good. Returns the pids."""
    ended = list(pids_inside(names))
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = pids_inside(names)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + patience_s
        while left and time.monotonic() < deadline:
            time.sleep(0.02)
            left = pids_inside(names)
        if not left:
            break
    return ended


def write_sysctl(name: str, value: int | str, *, missing_ok: bool = False) -> None:
    """In the current network namespace."""
    try:
        Path("/proc/sys/net", *name.split("/")).write_text(str(value), encoding="ascii")
    except OSError:
        if not missing_ok:
            raise
