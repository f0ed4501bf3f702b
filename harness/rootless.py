"""An ordinary user becomes root of a user namespace of their own: enough for networks with cbpf (or netem) loss.

Everything made there ends with the process that entered: there is nothing to clean up afterwards."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from harness.errors import NotAbleError

CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET = 0x10000000, 0x00020000, 0x40000000
MS_REC_PRIVATE = 0x4000 | 0x40000


def capabilities() -> dict[str, bool]:
    """Which of the rights that matter here this process has."""
    numbers = {"net_admin": 12, "net_raw": 13, "sys_admin": 21, "bpf": 39}
    with open("/proc/self/status", encoding="ascii") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff"))
    return {name: bool(effective >> number & 1) for name, number in numbers.items()}


def needed() -> bool:
    """By rights, not by user: root of a container without them is an ordinary user to us."""
    have = capabilities()
    return not (have["net_admin"] and have["sys_admin"])


def enter() -> None:
    """Must come before any thread starts. Files made afterwards belong to the user as ever."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET):
        raise _refused(os.strerror(ctypes.get_errno()))
    try:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")
    except OSError as error:
        raise _refused(str(error.strerror)) from None
    # A private /run: named namespaces and our state live there, seen by nobody else.
    if libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) or libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, None):
        raise _refused(os.strerror(ctypes.get_errno()))


def _refused(reason: str) -> NotAbleError:
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if restricted.exists() and restricted.read_text().strip() == "1":
        step = "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run with sudo"
    else:
        step = "run with sudo, or allow user namespaces (sysctl user.max_user_namespaces)"
    return NotAbleError(f"not root, and a user namespace can't be entered here ({reason})", next_step=step)
