"""What TCP does in this namespace: congestion control and the floor of its retransmission timer."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lossbench.contract import own_stack

SYSCTL = Path("/proc/sys/net/ipv4")
NAME_BYTES = 16
ATTEMPTS = "255"


class NotHereError(Exception):
    """This kernel or namespace can't do it; why."""


@contextmanager
def tuned(*, control: str, rto_ms: float) -> Iterator[None]:
    """Connections that this process makes within. Where a namespace may not choose (the initial one's
    tcp_allowed_congestion_control), each connection is told by itself, as root may. Looked at afterwards."""
    with suppress(NotHereError):
        _write("tcp_congestion_control", control)
    try:
        set_rto_min(rto_ms)
    except NotHereError:
        if rto_ms != 200:  # what a kernel without the setting has
            raise
    before = set(_connections())
    yield
    for number in set(_connections()) - before:
        tell(number, control)


def tell(number: int, control: str) -> None:
    """A connection, by the number of its file."""
    try:
        one = socket.socket(fileno=number)
    except OSError:
        return  # closed meanwhile
    try:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        found = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_BYTES).rstrip(b"\0").decode()
    except OSError as error:
        raise NotHereError(f"{control}: {error.strerror}") from None
    finally:
        one.detach()  # it is not ours
    if found != control:
        raise NotHereError(f"{control}: a connection has {found}")


def check(control: str) -> None:
    """Does this kernel have it? Asked of a connection, which loads what is a module."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        try:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        except OSError as error:
            has = (SYSCTL / "tcp_available_congestion_control").read_text(encoding="ascii").split()
            if error.errno != errno.EPERM or control not in has:  # what is not for everybody a rank may be allowed
                raise NotHereError(f"{control}: this kernel has {', '.join(has)}") from None


def own(address: str) -> dict[int, str]:
    """This process's TCP connections from this address: number of the file -> congestion control, asked of each."""
    out = {}
    for number in _connections():
        with suppress(OSError):
            one = socket.socket(fileno=number)
            try:
                if one.getsockname()[0] == address:
                    name = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_BYTES)
                    out[number] = name.rstrip(b"\0").decode()
            finally:
                one.detach()
    return out


def set_rto_min(rto_ms: float) -> None:
    _write("tcp_rto_min_us", str(round(rto_ms * 1000)))


def set_rto_max(rto_ms: float) -> None:
    """How far it backs off while nothing comes through; the kernel's least is a second. As many attempts as ever would
    then be over in seconds, and the connection with them."""
    _write("tcp_rto_max_ms", str(round(rto_ms)))
    _write("tcp_retries2", ATTEMPTS)


def _connections() -> list[int]:
    """File numbers of this process's TCP connections."""
    out = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # no socket, or one that has just been closed
            one = socket.socket(fileno=int(name))
            with suppress(OSError):
                stream = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
                if stream and one.getpeername():
                    out.append(int(name))
            one.detach()
    return out


def _write(name: str, value: str) -> None:
    if not own_stack():
        raise NotHereError(f"{name}={value}: a sysctl of the machine, which is not ours to set")
    try:
        (SYSCTL / name).write_text(value, encoding="ascii")
    except OSError as error:
        reason = {
            errno.ENOENT: "not on this kernel",
            errno.EPERM: f"not allowed: sysctl net.ipv4.tcp_allowed_congestion_control must list {value}",
        }.get(error.errno or 0, error.strerror)
        raise NotHereError(f"{name}={value}: {reason}") from None
