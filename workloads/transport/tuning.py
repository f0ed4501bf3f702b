"""What TCP does in this namespace: congestion control and the floor of its retransmission timer."""

from __future__ import annotations

import errno
from pathlib import Path

SYSCTL = Path("/proc/sys/net/ipv4")


class NotHereError(Exception):
    """This kernel or namespace can't do it; why."""


def tune(*, control: str, rto_ms: float) -> None:
    """For connections made from now on in this namespace."""
    _write("tcp_congestion_control", control)
    try:
        set_rto_min(rto_ms)
    except NotHereError:
        if rto_ms != 200:  # what a kernel without the setting has
            raise


def set_rto_min(rto_ms: float) -> None:
    _write("tcp_rto_min_us", str(round(rto_ms * 1000)))


def _write(name: str, value: str) -> None:
    try:
        (SYSCTL / name).write_text(value, encoding="ascii")
    except OSError as error:
        reason = {
            errno.ENOENT: "not on this kernel",
            errno.EPERM: f"not allowed: sysctl net.ipv4.tcp_allowed_congestion_control must list {value}",
        }.get(error.errno or 0, error.strerror)
        raise NotHereError(f"{name}={value}: {reason}") from None
