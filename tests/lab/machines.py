"""Machines for a lab: namespaces with an sshd of their own each (keys, configuration in the test's folder), and one
more from which they are controlled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossbench.net.host import namespaces
from lossbench.net.journal import Journal
from lossbench.net.nic import snapshot
from lossbench.net.star.network import StarNetwork
from lossbench.spec.experiment import Experiment
from lossbench.spec.topology import Host
from lossbench.spec.userfile import check
from tests.forked import Command, begin
from tests.nic.wire import known

COMMAND = [sys.executable, "-P", "-m", "lossbench.cli.main"]
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
CONFIG = """
Port 22
ListenAddress {address}
HostKey {folder}/host{rank}
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
PermitUserRC no
SetEnv XDG_CACHE_HOME={folder}/cache{rank} TMPDIR={folder}/tmp{rank}{packages}
"""
# Every machine has a /run and a disk of its own, as machines have. Without an sshd something that stays.
START = """
mount -t tmpfs tmpfs /run && mkdir -p /run/sshd "$2" && mount -t tmpfs -o "size=$3" tmpfs "$2" || exit
[ -n "$0" ] || { echo Server listening >&2; exec sleep infinity; }
exec "$0" -D -e -f "$1"
"""
# Stands for ssh where there is no sshd: the words behind `--` are the target and one line for a shell there.
NO_SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
number=${{2#node}}
exec nsenter --target "$(cat {folder}/pid$number)" --mount --net env -i HOME=/root PATH="$PATH" \
    XDG_CACHE_HOME={folder}/cache$number TMPDIR={folder}/tmp$number{packages} sh -c "$3"
"""


def missing() -> str | None:
    for program in (SSHD, "ssh", "ssh-keygen", "nsenter", "unshare"):
        if shutil.which(program) is None:
            return f"needs {Path(program).name}"
    with suppress(OSError):
        for line in Path("/etc/shadow").read_text().splitlines():
            if line.startswith("root:!"):
                return "root's account is locked here: sshd without PAM lets nobody in"
    return None


@dataclass(kw_only=True)
class Machines:
    folder: Path
    network: StarNetwork
    over_data: bool = False
    disk: str = "1g"
    ssh: bool = True
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Without the last one, which controls them."""
        return self.network.experiment.topology.all_hosts()[:-1]

    def namespace(self, host: Host) -> str:
        return self.network.star.namespace(host.name)

    def ssh_address(self, host: Host) -> str:
        return host.address("ipv4") if self.over_data else host.control_ipv4

    @property
    def file(self) -> Path:
        return self.folder / "lab.toml"

    def write(self, **changed: Any) -> None:
        lines = [f'ssh_config = "{self.folder}/ssh_config"']
        for host in self.hosts:
            values = {"ssh": f"node{host.rank}", "interface": "eth0", "address": host.address("ipv4")}
            values |= {"python": sys.executable, **changed}
            lines += ["[[machine]]", *(f'{key} = "{value}"' for key, value in values.items())]
        self.file.write_text("\n".join(lines) + "\n")

    def lossbench(self, *arguments: str, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=200)
        assert expect is None or process.returncode == expect, f"exit {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(arguments, process.wait(), out, err)

    def start(self, *arguments: str) -> Command:
        last = self.network.experiment.topology.all_hosts()[-1]
        path = {} if self.ssh else {"PATH": f"{self.folder / 'bin'}:{os.environ.get('PATH', os.defpath)}"}
        return begin(*arguments, net=str(namespaces.FOLDER / self.namespace(last)), environment=known(path))

    def links(self, host: Host) -> list[str]:
        with namespaces.open_inside(self.namespace(host)) as ip:
            return sorted(link.get_attr("IFLA_IFNAME") for link in ip.get_links())

    def snapshots(self) -> list[Any]:
        out = []
        for host in self.hosts:
            with namespaces.inside(self.namespace(host)), namespaces.open_inside(self.namespace(host)) as ip:
                out.append((self.links(host), snapshot.of(ip.link_lookup(ifname="eth0")[0])))
        return out

    def serve(self, host: Host) -> None:
        config = self.folder / f"sshd{host.rank}"
        address = self.ssh_address(host)
        config.write_text(CONFIG.format(address=address, folder=self.folder, rank=host.rank, packages=_packages()))
        net = f"--net={namespaces.FOLDER / self.namespace(host)}"
        own = [START, SSHD if self.ssh else "", str(config), str(self.folder / f"tmp{host.rank}"), self.disk]
        command = ["nsenter", net, "unshare", "-m", "--propagation", "private", "sh", "-c", *own]
        with open(self.folder / f"sshd{host.rank}.log", "wb") as log:
            self.servers.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        (self.folder / f"pid{host.rank}").write_text(str(self.servers[-1].pid))


@contextmanager
def machines(
    folder: Path,
    *,
    count: int = 3,
    over_data: bool = False,
    disk: str = "1g",
    rate_mbit: float | None = None,
    ssh: bool = True,
    **switch: Any,
) -> Iterator[Machines]:
    """`disk`: room for temporary files on each. `rate_mbit` and `switch`: how fast the switch between them is, and its
    queues (shaping). `ssh`: real; else a program of that name which steps into the machine."""
    spec = {"name": "lab", "topology": {"hosts": count + 1, "rate_mbit": rate_mbit}, "shaping": switch}
    experiment = check(Experiment, spec, origin="test")
    book = Journal.claim(kind="run")
    network = StarNetwork(network_id=book.id, experiment=experiment, backend="ebpf")
    made = Machines(folder=folder, network=network, over_data=over_data, disk=disk, ssh=ssh)
    try:
        network.build(before_making=book.before_making)
        network.shape()
        if ssh:
            _keys(made)
        else:
            _stand_in(made)
        for host in made.hosts:
            made.serve(host)
        _wait(made)
        made.write()
        yield made
    finally:
        for server in made.servers:
            server.kill()
            server.wait()
        network.close()
        book.undo_or_say()


def _keys(made: Machines) -> None:
    folder = made.folder
    for name in ("user", *(f"host{host.rank}" for host in made.hosts)):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    known, config = "", ""
    for host in made.hosts:
        known += f"{made.ssh_address(host)} {(folder / f'host{host.rank}.pub').read_text()}"
        config += f"Host node{host.rank}\n HostName {made.ssh_address(host)}\n"
    config += f"Host *\n User root\n IdentityFile {folder}/user\n IdentitiesOnly yes\n"
    config += f" UserKnownHostsFile {folder}/known_hosts\n GlobalKnownHostsFile /dev/null\n"
    (folder / "known_hosts").write_text(known)
    (folder / "ssh_config").write_text(config)


def _packages() -> str:
    """Where this machine has them elsewhere than Python looks by itself."""
    found = os.environ.get("PYTHONPATH", "")
    return f" PYTHONPATH={found}" if found and " " not in found else ""


def _stand_in(made: Machines) -> None:
    (made.folder / "ssh_config").touch()
    program = made.folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(NO_SSH.format(folder=made.folder, packages=_packages()))
    program.chmod(0o755)


def _wait(made: Machines) -> None:
    limit = time.monotonic() + 30
    logs = [made.folder / f"sshd{host.rank}.log" for host in made.hosts]
    while not all("Server listening" in log.read_text(errors="replace") for log in logs):
        assert time.monotonic() < limit, "\n".join(log.read_text(errors="replace") for log in logs)
        time.sleep(0.05)
