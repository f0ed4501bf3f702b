"""What a child process does before it becomes the user's program: step into its host.

Runs between fork and exec, so it only makes system calls; everything it needs was prepared before."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lossbench.net.host import cgroups, namespaces
from lossbench.processes import PR_SET_PDEATHSIG

if TYPE_CHECKING:
    from lossbench.spec.topology import Topology

CLONE_NEWNS, CLONE_NEWUTS = 0x00020000, 0x04000000
MS_BIND, MS_REC_PRIVATE = 0x1000, 0x4000 | 0x40000
SIGKILL = 9
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def hosts_file(topology: Topology) -> str:
    """/etc/hosts inside every host: names lead to the data link, so that programs that resolve a host meet the loss."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for host in topology.all_hosts():
        lines += [f"{address} {host.name}" for address in host.addresses(topology.family)]
        lines.append(f"{host.control_ipv4} {host.name}-ctl")
    return "\n".join(lines) + "\n"


def write_host_files(folder: Path, topology: Topology) -> Path:
    """What programs of a network's hosts find in place of the machine's own. Libraries take those who have the same
    boot id for processes of one machine, and send through its memory what should meet the links (torch's TensorPipe,
    UCX). Returns the file of names."""
    hosts = folder / "hosts"
    hosts.write_text(hosts_file(topology), encoding="ascii")
    with suppress(OSError):  # a machine without one
        _, _, rest = BOOT_ID.read_text(encoding="ascii").partition("-")
        for host in topology.all_hosts():
            first = hashlib.sha256(f"{folder} {host.name}".encode()).hexdigest()[:8]
            _boot_file(hosts, host.name).write_text(f"{first}-{rest}", encoding="ascii")  # see journal.same_boot
    return hosts


def _boot_file(hosts: Path, host: str) -> Path:
    return hosts.with_name(f"boot-{host}")


def stepper(*, where: str, host: str, hosts_path: Path, mortal: bool, group: str) -> Callable[[], None]:
    """For subprocess's preexec_fn: network namespace, own /etc/hosts, own /sys, own boot id, own hostname if allowed.
    `where`: the namespace's file; empty: stay here. `group`: of processes, to be joined. What goes wrong is said on
    standard error, since an exception does not reach the parent with its text."""
    source, name = str(hosts_path).encode(), host.encode()
    has_hosts, boot = Path("/etc/hosts").exists(), _boot_file(hosts_path, host)
    own_boot = str(boot).encode() if boot.exists() else None
    parent = os.getpid()

    def step_in() -> None:
        cgroups.join(group)
        if where:
            try:
                _into(where)
                _own_mounts(source if has_hosts else None, own_boot)
                with suppress(PermissionError):  # rootless engines forbid it (seccomp), and only a name is missing
                    namespaces.call("sethostname", name, len(name))
            except OSError as error:
                os.write(2, f"lossbench: {host} can't be entered: {error}\n".encode())
                raise
        if mortal:  # dies with its parent
            namespaces.call("prctl", PR_SET_PDEATHSIG, SIGKILL)
            if os.getppid() != parent:  # it died before we asked
                os._exit(137)

    return step_in


def _into(where: str) -> None:
    fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    namespaces.setns(fd)
    os.close(fd)


def _own_mounts(hosts: bytes | None, boot: bytes | None = None) -> None:
    """Seen here and nowhere else: nothing is mounted before everything is private."""
    namespaces.call("unshare", CLONE_NEWNS | CLONE_NEWUTS)
    _make_private()
    with suppress(OSError):  # a container may forbid it; the machine's own /sys is then seen, and nothing is covered
        namespaces.call("mount", b"sysfs", b"/sys", b"sysfs", 0, None)
    if boot is not None:
        with suppress(OSError):  # likewise, and what takes hosts for one machine goes past their links
            namespaces.call("mount", boot, os.fsencode(BOOT_ID), None, MS_BIND, None)
    if hosts is not None:
        namespaces.call("mount", hosts, b"/etc/hosts", None, MS_BIND, None)


def _make_private() -> None:
    """No mount of ours reaches the machine. In a chroot "/" is no mount, and can't be made private by that name: we go
    to the root of the mount namespace, do it there, and come back."""
    try:
        namespaces.call("mount", b"none", b"/", None, MS_REC_PRIVATE, None)
        return
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    root, here = (os.open(path, os.O_PATH | os.O_CLOEXEC) for path in ("/", "."))
    mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    namespaces.call("setns", mounts, CLONE_NEWNS)
    namespaces.call("mount", b"none", b"/", None, MS_REC_PRIVATE, None)
    os.fchdir(root)
    os.chroot(".")
    os.fchdir(here)
    for descriptor in (root, here, mounts):
        os.close(descriptor)
