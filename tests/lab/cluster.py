"""A Slurm cluster: slurmctld and a slurmd for each host, in namespaces with host names, mounts and a munge key of their
own. All lies in a folder with a short name: the path of a socket has 108 bytes, and of a test most may be gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lossbench.net.host import namespaces
from tests.lab.machines import Machines

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged", "munge", "unshare", "nsenter")
CONF = """
ClusterName=lossbench
SlurmctldHost=ctl({control})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldTimeout=300
SlurmdTimeout=300
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
# Its own host name; /run of its own, as a machine has.
START = 'hostname "$0"; mount -t tmpfs tmpfs /run; exec "$@"'


def missing() -> str | None:
    return next((f"needs {name}" for name in PROGRAMS if shutil.which(name) is None), None)


@dataclass(kw_only=True)
class Cluster:
    machines: Machines
    folder: Path
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SSH_"))}
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def inside(self, place: str, name: str, *command: str) -> list[str]:
        net = f"--net={namespaces.FOLDER / self.machines.network.star.namespace(place)}"
        private = ["unshare", "-m", "-u", "--propagation", "private"]
        return ["nsenter", net, *private, "sh", "-c", START, name, *command]

    def start(self, place: str, name: str, *command: str) -> None:
        line = self.inside(place, name, *command)
        with open(self.folder / f"{Path(command[0]).name}-{name}.out", "wb") as log:
            process = subprocess.Popen(
                line, env=self.environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.daemons.append(process)

    def run(self, *command: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Where the controller is."""
        line = self.inside(self.controller, "ctl", *command)
        return subprocess.run(
            line, env=self.environment(), capture_output=True, text=True, timeout=timeout_s, cwd=self.folder
        )

    @property
    def controller(self) -> str:
        return self.machines.network.experiment.topology.all_hosts()[-1].name

    def said(self) -> str:
        return "\n".join(
            f"== {one.name}\n{one.read_text(errors='replace')[-2000:]}" for one in self.folder.glob("*.log")
        )


@contextmanager
def cluster(made: Machines) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="lbs-"))
    for part in ("munge", "state"):
        (folder / part).mkdir(parents=True, mode=0o700)
    one = Cluster(machines=made, folder=folder)
    hosts = made.network.experiment.topology.all_hosts()
    nodes = [
        f"NodeName=node{h.rank} NodeAddr={h.control_ipv4} CPUs=2 RealMemory=1000 State=UNKNOWN" for h in made.hosts
    ]
    conf = CONF.format(control=hosts[-1].control_ipv4, folder=folder, nodes="\n".join(nodes))
    (folder / "slurm.conf").write_text(conf)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    munge = ["munged", "-F", "--force", f"--key-file={key}", f"--socket={folder}/munge/socket"]
    munge += [f"--log-file={folder}/munge/log", f"--pid-file={folder}/munge/pid", f"--seed-file={folder}/munge/seed"]
    try:
        one.start(hosts[-1].name, "ctl", *munge)
        _until(lambda: (folder / "munge" / "socket").exists(), one)
        one.start(hosts[-1].name, "ctl", "slurmctld", "-D")
        for host in made.hosts:
            one.start(host.name, f"node{host.rank}", "slurmd", "-D", "-N", f"node{host.rank}")
        _until(lambda: one.run("sinfo", "-h", "-o", "%t").stdout.split() == ["idle"], one)
        yield one
    finally:
        for process in reversed(one.daemons):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _until(ready: Callable[[], bool], one: Cluster) -> None:
    limit = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < limit, one.said()
        time.sleep(0.2)
