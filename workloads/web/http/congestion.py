"""Which congestion control a server's connections have: the host's own, or the one that was asked for. Each returns
what is in force, read back, and why it is not what was asked."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from pathlib import Path

from lossbench.contract import own_stack

NAME_BYTES = 16
SYSCTL = Path("/proc/sys/net/ipv4")
OWN = "tcp_congestion_control"


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


def of_host(asked: str) -> tuple[str, str]:
    """Of all that a host's programs open: for a server that can't be told."""
    why = ""
    if asked and not own_stack():
        why = f"{asked}: {OWN} is the machine's, which is not ours to set: the builtin server asks by itself"
    elif asked:
        try:
            (SYSCTL / OWN).write_text(asked, encoding="ascii")
        except OSError as error:
            why = f"{asked}: {_reason(error)}"
    try:
        return (SYSCTL / OWN).read_text(encoding="ascii").strip(), why
    except OSError:
        return "", why


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
