"""What a child process does before it becomes the user's program: step into its host.

Runs between fork and exec, so it only makes system calls; everything it needs was prepared before."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from harness.net import namespaces
from harness.topology import Topology

CLONE_NEWNS, CLONE_NEWUTS = 0x00020000, 0x04000000
MS_BIND, MS_REC_PRIVATE = 0x1000, 0x4000 | 0x40000
PR_SET_PDEATHSIG, SIGKILL = 1, 9


def hosts_file(topology: Topology) -> str:
    """/etc/hosts inside every host: names lead to the data link, so that programs that resolve a host meet the loss."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for host in topology.all_hosts():
        lines += [f"{address} {host.name}" for address in host.addresses(topology.family)]
        lines.append(f"{host.control_ipv4} {host.name}-ctl")
    return "\n".join(lines) + "\n"


def die_with_parent() -> None:
    """For preexec_fn: a killed lossbench takes this process with it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)


def stepper(*, namespace: str, host: str, hosts_path: Path, mortal: bool) -> Callable[[], None]:
    """For subprocess's preexec_fn: network namespace, own /etc/hosts, own /sys, own hostname. No namespace: stay
    here."""
    libc = ctypes.CDLL(None, use_errno=True)
    target = str(namespaces.FOLDER / namespace) if namespace else ""
    source, name = str(hosts_path).encode(), host.encode()
    parent = os.getpid()

    def step_in() -> None:
        if target:
            fd = os.open(target, os.O_RDONLY)
            namespaces.setns(fd)
            os.close(fd)
        if target and libc.unshare(CLONE_NEWNS | CLONE_NEWUTS) == 0:
            libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None)
            libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None)
            libc.mount(source, b"/etc/hosts", None, MS_BIND, None)
            libc.sethostname(name, len(name))
        if mortal:  # dies with its parent
            libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
            if os.getppid() != parent:  # it died before we asked
                os._exit(137)

    return step_in
