"""A machine with a real systemd as its first process: a namespace of processes, mounts and cgroups around the network
namespace that holds the NIC. It knows the units that are written here and none of this machine's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lossbench.net.host import namespaces
from tests.nic.wire import COMMAND, Wire, known, until

SYSTEMD = "/lib/systemd/systemd"
PROGRAMS = (SYSTEMD, "systemd-run", "systemctl", "nsenter", "unshare")
TARGETS = ("sysinit.target", "basic.target", "shutdown.target", "machine.target")
# $0: units. Only settings of its own network may be written: all others are this machine's too.
START = """
mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys &&
mount --bind /proc/sys/net /proc/sys/net && mount -o remount,rw,bind /proc/sys/net &&
mount -t tmpfs tmpfs /run && umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup &&
exec env -i container=lossbench PATH="$PATH" SYSTEMD_UNIT_PATH="$0" SYSTEMD_GENERATOR_PATH= \
  "$1" --system --unit=machine.target --log-target=console --show-status=no
"""


def cgroup2() -> Path | None:
    with open("/proc/mounts", encoding="utf-8") as file:
        return next((Path(line.split()[1]) for line in file if line.split()[2] == "cgroup2"), None)


def missing() -> str | None:
    lacks = next((f"needs {Path(name).name}" for name in PROGRAMS if shutil.which(name) is None), None)
    return lacks or (None if cgroup2() is not None else "needs cgroup2")


@dataclass(frozen=True, kw_only=True)
class Managed:
    pid: int  # of its first process

    def run(self, *command: str, expect: int | None = 0) -> str:
        line = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", *command]
        done = subprocess.run(line, capture_output=True, text=True, env=known({}), timeout=300)
        assert expect is None or done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def lossbench(self, *arguments: str) -> str:
        return self.run(*COMMAND, *arguments)

    def units(self) -> dict[str, int]:
        """Watchdogs as systemd has them: their names and the numbers of their processes, as it counts them."""
        lines = self.run("systemctl", "list-units", "--plain", "--no-legend", "lossbench-nic-*").splitlines()
        names = [line.split()[0] for line in lines]
        show = ("systemctl", "show", "--property=MainPID", "--value")
        return {name: int(self.run(*show, name).strip() or 0) for name in names}


@contextmanager
def managed(wire: Wire, folder: Path) -> Iterator[Managed]:
    """`wire.here` is its network."""
    root = cgroup2()
    assert root is not None
    units, group = folder / "units", root / wire.here
    units.mkdir()
    for name in TARGETS:
        (units / name).write_text("[Unit]\nDefaultDependencies=no\n")
    group.mkdir()
    join = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    own = ("-m", "-p", "-f", "-u", "-i", "-C", "--mount-proc", "--kill-child", "--propagation", "private")
    inside = ["nsenter", f"--net={namespaces.FOLDER / wire.here}", "unshare", *own]
    command = ["sh", "-c", join, str(group), *inside, "sh", "-c", START, str(units), SYSTEMD]
    with open(folder / "systemd.log", "wb") as log:
        outer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        assert until(lambda: children.read_text().strip()), (folder / "systemd.log").read_text()
        made = Managed(pid=int(children.read_text().split()[0]))
        up = ("systemctl", "is-active", "machine.target")
        assert until(lambda: made.run(*up, expect=None).strip() == "active"), (folder / "systemd.log").read_text()
        yield made
    finally:
        outer.send_signal(signal.SIGKILL)  # and with it the first process, and with that all others
        outer.wait()
        until(lambda: _gone(group), seconds=20)


def _gone(group: Path) -> bool:
    for path, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            os.rmdir(path)
    return not group.exists()
