"""Which congestion control a server's connections have: the host's own, or the one that was asked for. Each returns
what is in force, read back, and why it is not what was asked."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

NAME_BYTES = 16
SYSCTL = Path("/proc/sys/net/ipv4")
PIDFD_GETFD = 438  # on every architecture

_libc = ctypes.CDLL(None, use_errno=True)


def of_socket(one: socket.socket, asked: str) -> tuple[str, str]:
    """Of one that is listened on: what was said to it holds for all that it accepts, also of its own, whatever becomes
    of the host's meanwhile."""
    why = ""
    try:
        _tell(one, asked or _told(one))
    except OSError as error:
        why = f"{asked}: {_reason(error)}" if asked else ""
    try:
        return _told(one), why
    except OSError:
        return "", why


def of_process(number: int, asked: str) -> tuple[str, str]:
    """Of a server that can't be told itself: its listening socket is. A host's sysctl would be every program's, and
    takes only what the machine allows everybody. Where we may not have it (a container that may trace nobody), what the
    host has is said."""
    try:
        with _listener(number) as one:
            return of_socket(one, asked)
    except OSError as error:
        why = f"{asked}: its socket is out of reach ({error.strerror})" if asked else ""
    try:
        return (SYSCTL / "tcp_congestion_control").read_text(encoding="ascii").strip(), why
    except OSError:
        return "", why


def _listener(number: int) -> socket.socket:
    """Ours to use, too; closing it leaves that process its own."""
    process = os.pidfd_open(number)
    try:
        for name in os.listdir(f"/proc/{number}/fd"):
            found = _libc.syscall(PIDFD_GETFD, process, int(name), 0)
            if found < 0 and ctypes.get_errno() == errno.EBADF:
                continue  # closed meanwhile
            if found < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            if (one := _listening(found)) is not None:
                return one
    finally:
        os.close(process)
    raise OSError(errno.ENOENT, "it has none")


def _listening(number: int) -> socket.socket | None:
    try:
        one = socket.socket(fileno=number)
    except OSError:
        os.close(number)  # no socket
        return None
    with suppress(OSError):
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return one
    one.close()
    return None


def _tell(one: socket.socket, name: str) -> None:
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def _told(one: socket.socket) -> str:
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_BYTES).rstrip(b"\0").decode()


def _reason(error: OSError) -> str:
    if error.errno == errno.EPERM:
        return "not allowed (sysctl net.ipv4.tcp_allowed_congestion_control)"
    with suppress(OSError):
        known = (SYSCTL / "tcp_available_congestion_control").read_text(encoding="ascii").split()
        return f"this kernel has {', '.join(known)}"
    return str(error.strerror)
