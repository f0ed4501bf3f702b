"""Who belongs to a network, whatever namespaces a process makes for itself: a group of the kernel's (cgroup v2) for
each, below our own, so that limits and accounts of whoever started us hold. Where none can be made (no cgroup v2, no
right to it) a process is known by the environment that it was started with."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lossbench.processes import signal_one

WAIT_S = 2.0
PREFIX = "lossbench-"


def folder(network_id: str) -> Path | None:
    """Where the group of a network would be; None: this machine has no such groups, or we are root of a part of it
    only: there everything ends with that part."""
    if Path("/proc/self/uid_map").read_text(encoding="ascii").split() != ["0", "0", "4294967295"]:
        return None
    try:
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    for root, point, _ in _mounts():
        if own.startswith(root):
            return Path(point, own.removeprefix(root).lstrip("/"), f"{PREFIX}{network_id}")
    return None


def of_process(pid: int) -> Path | None:
    """The group of a network that it is in, or in a group below that."""
    own = next((line[3:] for line in _said(pid, "cgroup").splitlines() if line.startswith("0::")), "")
    for root, point, _ in _mounts():
        if own.startswith(root):
            here = Path(point, own.removeprefix(root).lstrip("/"))
            return next((one for one in (here, *here.parents) if one.name.startswith(PREFIX)), None)
    return None


def pids(path: Path) -> list[int]:
    """In it and in groups below it."""
    with suppress(OSError):
        return [pid for one in (path, *(one for one in path.rglob("*") if one.is_dir())) for pid in _pids(one)]
    return []


def used_us(path: Path) -> int | None:
    """CPU time of all that ever ran in it."""
    with suppress(OSError, ValueError, StopIteration):
        lines = (path / "cpu.stat").read_text(encoding="ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("usage_usec ")))
    return None


def waited_us(path: Path) -> int | None:
    """How long at least one in it waited for a core (PSI; a number that the kernel renews every other second)."""
    with suppress(OSError, ValueError, StopIteration):
        lines = (path / "cpu.pressure").read_text(encoding="ascii").splitlines()
        return int(next(line.rpartition("total=")[2] for line in lines if line.startswith("some ")))
    return None


def _mounts() -> list[tuple[str, str, str]]:
    """(which part of the tree, where, its device) of every mounted cgroup v2."""
    with suppress(OSError):
        lines = [line.split() for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
        return [(words[3], words[4], words[2]) for words in lines if "cgroup2" in words[words.index("-") :][1:2]]
    return []


def exists(path: Path) -> bool:
    """Also where it can't be looked at: in a host something else lies over the tree of groups."""
    if path.is_dir():
        return True
    for _, point, device in _mounts():
        if path.is_relative_to(point):
            there = Path(point).stat().st_dev
            return f"{os.major(there)}:{os.minor(there)}" != device
    return False


def make(path: Path) -> bool:
    """False: we may not."""
    try:
        path.mkdir()
    except OSError:
        return False
    return (path / "cgroup.procs").exists()


def to_join(path: Path | None) -> str:
    """The file to write "0" to; empty: there is no such group."""
    return str(path / "cgroup.procs") if path is not None and path.is_dir() else ""


def join(file: str) -> None:
    """This process, between fork and exec: system calls alone. Whoever may not (a delegated part of the tree) is known
    by its environment."""
    if file:
        with suppress(OSError):
            handle = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
            os.write(handle, b"0")
            os.close(handle)


def remove(path: Path) -> list[int]:
    """With everything in it, and in groups that were made below it; whoever asks for it steps out. Returns the pids
    that were ended."""
    if os.getpid() in _pids(path):
        join(str(path.parent / "cgroup.procs"))
    ended: dict[int, None] = {}
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        every = [path, *(one for one in sorted(path.rglob("*")) if one.is_dir())]
        pids = [pid for one in every for pid in _pids(one)]
        ended |= dict.fromkeys(pids)
        _kill(path, pids)
        with suppress(OSError):
            for one in reversed(every):
                one.rmdir()
            break
        time.sleep(0.005)
    return list(ended)


def _pids(path: Path) -> list[int]:
    with suppress(OSError):
        return [int(line) for line in (path / "cgroup.procs").read_text().split()]
    return []


def _kill(path: Path, pids: list[int]) -> None:
    try:
        (path / "cgroup.kill").write_text("1")
    except OSError:  # before Linux 5.14
        for pid in pids:
            _end(pid, lambda one: any(line.endswith(f"/{path.name}") for line in _said(one, "cgroup").splitlines()))


def end_started_for(network_id: str) -> list[int]:
    """Processes of this machine (not of containers, nor of users' own namespaces) whose environment, as they were
    started, names the network: what stepped out of its namespaces, and of its group or there is none."""
    ended: dict[int, None] = {}
    deadline = time.monotonic() + WAIT_S

    def ours(pid: int) -> bool:
        return f"LOSSBENCH_RUN={network_id}" in _said(pid, "environ").split("\0") and _with_us(pid)

    while time.monotonic() < deadline:
        every = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]
        left = [pid for pid in every if ours(pid)]
        if not left:
            break
        for pid in left:
            _end(pid, ours)
        ended |= dict.fromkeys(left)
        time.sleep(0.005)
    return list(ended)


def _said(pid: int, file: str) -> str:
    try:
        return Path("/proc", str(pid), file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _with_us(pid: int) -> bool:
    """In the same user and pid namespace."""
    with suppress(OSError):
        ends = [[Path("/proc", who, "ns", kind).readlink() for kind in ("user", "pid")] for who in (str(pid), "self")]
        return ends[0] == ends[1]
    return False


def _end(pid: int, ours: Callable[[int], bool]) -> None:
    """By a handle, looked at again once we hold it: the number may have gone to somebody else meanwhile."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if ours(pid):
            signal_one(handle, signal.SIGKILL)
    finally:
        os.close(handle)
