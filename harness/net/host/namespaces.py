"""Named network namespaces: make, enter, list who is inside, remove."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyroute2 import IPRoute

from lossbench.errors import NotAbleError
from lossbench.processes import signal_one

FOLDER = Path("/run/netns")
CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
SO_NETNS_COOKIE = 71
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED, MNT_DETACH = 0x20, 0x1000, 0x4000, 0x40000, 0x100000, 0x2
_libc = ctypes.CDLL(None, use_errno=True)


def create(name: str) -> None:
    """As `ip netns add` does it, but by a thread instead of a forked child: a child of a process with threads can hang,
    and one that is slow on a busy machine would be given up on."""
    _prepare_folder()
    path = FOLDER / name
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0))

    def make() -> None:
        call("unshare", CLONE_NEWNET)
        call("mount", b"/proc/thread-self/ns/net", str(path).encode(), b"none", MS_BIND, None)

    try:
        _in_a_thread(make)
    except OSError:
        path.unlink()
        raise


def _prepare_folder() -> None:
    """A shared mount, so that removing a namespace here removes it in every mount namespace that sees it."""
    FOLDER.mkdir(exist_ok=True)
    folder = str(FOLDER).encode()
    try:
        call("mount", b"", folder, b"none", MS_SHARED | MS_REC, None)
    except OSError:
        call("mount", folder, folder, b"none", MS_BIND | MS_REC, None)
        call("mount", b"", folder, b"none", MS_SHARED | MS_REC, None)


def remove(name: str) -> None:
    """Gone is gone: removing what is not there is no error; not getting rid of it is."""
    path = FOLDER / name
    with suppress(OSError):  # EINVAL: no mount there, only the file that a crash or a reboot left
        call("umount2", str(path).encode(), MNT_DETACH)
    with suppress(FileNotFoundError):
        path.unlink()


def open_inside(name: str) -> IPRoute:
    """A netlink handle into a namespace; its socket stays there whatever the thread does later."""
    with inside(name):
        return IPRoute()


def call(function: str, *arguments: object) -> None:
    """Of the C library, checked."""
    if getattr(_libc, function)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}")


def exists(name: str) -> bool:
    return (FOLDER / name).exists()


def setns(fd: int) -> None:
    call("setns", fd, CLONE_NEWNET)


@contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread inside a namespace, then back: sockets opened here stay in it."""
    with inside_file(FOLDER / name):
        yield


@contextmanager
def inside_file(path: Path) -> Iterator[None]:
    """The same by the file of a namespace, anybody's."""
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        target = os.open(path, os.O_RDONLY)
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


def current() -> str:
    """Which namespace this thread is in. Inodes are given again when a namespace has ended, cookies never are."""
    inode = Path("/proc/thread-self/ns/net").stat().st_ino
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            cookie = int.from_bytes(one.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), "little")
    except OSError:  # kernels before 5.14
        cookie = 0
    return f"{inode} {cookie}"


def file_of(identity: str) -> Path | None:
    """Of the namespace that `current` called so; None if nobody is in it and nothing holds it any more."""
    inode, _, _ = identity.partition(" ")
    held = FOLDER.iterdir() if FOLDER.is_dir() else iter(())
    entries = (Path("/proc", entry, "ns/net") for entry in os.listdir("/proc") if entry.isdigit())
    for path in (Path("/proc/thread-self/ns/net"), *held, *entries):
        with suppress(OSError):
            if str(path.stat().st_ino) == inode:
                with inside_file(path):
                    return path if current() == identity else None
    return None


def pids_inside(names: list[str]) -> dict[int, str]:
    """Processes whose network namespace is one of these, by the namespace's inode: exact, no guessing by name."""
    inodes, out = _inodes(names), {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            name = _inside_which(int(entry), inodes)
            if name is not None:
                out[int(entry)] = name
    return out


def _inodes(names: list[str]) -> dict[tuple[int, int], str]:
    out = {}
    for name in names:
        with suppress(OSError):
            status = (FOLDER / name).stat()
            out[(status.st_dev, status.st_ino)] = name
    return out


def _inside_which(pid: int, inodes: dict[tuple[int, int], str]) -> str | None:
    try:
        status = Path("/proc", str(pid), "ns/net").stat()
    except OSError:
        return None
    return inodes.get((status.st_dev, status.st_ino))


def kill_inside(names: list[str], *, patience_s: float = 2.0) -> list[int]:
    """End every process inside: politely first, then for good, and whoever was forked meanwhile too. Returns the pids;
    who is still there afterwards must be asked for."""
    ended: dict[int, str] = {}
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + patience_s
        while left := pids_inside(names):
            for pid in left:
                if number == signal.SIGKILL or pid not in ended:
                    _signal_inside(pid, names, number)
            ended |= left
            if time.monotonic() > deadline:
                break
            time.sleep(0.02 if number == signal.SIGTERM else 0.001)
    return list(ended)


def _signal_inside(pid: int, names: list[str], number: int) -> None:
    """By a handle, looked at again once we hold it: the number may have gone to somebody else meanwhile."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _inside_which(pid, _inodes(names)) is not None:
            signal_one(handle, number)
    finally:
        os.close(handle)


def write_sysctl(name: str, value: int | str, *, missing_ok: bool = False) -> None:
    """In the current network namespace. `missing_ok`: a kernel that has no such thing does nothing of the kind."""
    path = Path("/proc/sys/net", *name.split("/"))
    try:
        try:
            path.write_text(str(value), encoding="ascii")
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            _write_past_a_container(path, str(value))
    except FileNotFoundError:
        if not missing_ok:
            raise
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EPERM, errno.EACCES):
            raise
        if _stands(path, value):
            return
        text = f"{path} can't be written ({error.strerror}): hosts would not be as they are asked for"
        step = (
            "a container that may not remount it needs --security-opt unmask=/proc/sys (podman; docker: --privileged)"
        )
        raise NotAbleError(text, next_step=step) from None


def _stands(path: Path, value: int | str) -> bool:
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").split() == str(value).split()
    return False


def _write_past_a_container(path: Path, value: str) -> None:
    """Containers see /proc/sys read-only, that of their own network namespaces too. A thread may see it otherwise."""

    def write() -> None:
        call("unshare", CLONE_NEWNS)
        call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        call("mount", b"none", b"/proc/sys", None, MS_REMOUNT | MS_BIND, None)
        path.write_text(value, encoding="ascii")

    _in_a_thread(write)


def _in_a_thread(work: Callable[[], None]) -> None:
    """That ends with it: whatever namespaces it has entered, nobody else has."""
    failed: list[OSError] = []

    def guarded() -> None:
        try:
            work()
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
