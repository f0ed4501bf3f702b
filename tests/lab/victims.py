"""Who may be killed while machines of a lab are impaired, or being impaired: the controller, an agent, a watchdog."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from lossbench.net.host import namespaces
from lossbench.spec.topology import CONTROL_INTERFACE, DATA_INTERFACE
from tests.lab.machines import Machines
from tests.nic.wire import kill, until

VICTIMS = ("controller", "agent", "watchdog")
FROM_START_S, FIRST_S = 1.0, 3.0
APPLY = ("lab", "apply", "--profile", "loss_10", "--for", "2s")
RUN = """
name = "soak"
[topology]
hosts = 2
[workload]
name = "chatter"
options = { steps = 3000, spacing_ms = 20 }
[probe]
packets = 500
[[impair]]
profile = "loss_10"
"""


def drill(lab: Machines, victim: str, after_s: float, *, run: bool, chance: random.Random) -> bool:
    """Applies, or runs; kills with SIGKILL after a while: up to FROM_START_S it is of the start, FIRST_S in all; what
    is more counts from the first thing that is there. What was applied is then left to its end. Whether there was
    something of ours at that moment."""
    process = lab.start(*_asked(lab, run=run))
    if after_s > FROM_START_S:
        until(lambda: impaired(lab) or process.poll() is not None)
        if process.poll() is not None and not impaired(lab) and (run or process.returncode):
            said = "".join(process.communicate(timeout=120))
            raise RuntimeError(f"ended by itself (status {process.returncode}) before anything stood:\n{said[-2000:]}")
        time.sleep(after_s - FROM_START_S)
    else:
        time.sleep(after_s / FROM_START_S * FIRST_S)
    stood = impaired(lab)
    if victim == "controller":
        process.kill()
    else:
        found = {"agent": agents, "watchdog": watchdogs}[victim](lab)
        for pid in chance.sample(sorted(found), min(1, len(found))):
            kill(pid, signal.SIGKILL)
        if run and victim == "watchdog":  # nobody notices: the other one starts it again
            process.kill()
    process.communicate(timeout=120)
    return stood


def _asked(lab: Machines, *, run: bool) -> list[str]:
    if not run:
        return [*APPLY[:2], str(lab.file), *APPLY[2:]]
    path = lab.folder / "soak.toml"
    path.write_text(RUN)
    return ["run", str(path), "--lab", str(lab.file), "--out", str(lab.folder / "runs")]


def impaired(lab: Machines) -> bool:
    own = sorted((DATA_INTERFACE, CONTROL_INTERFACE, "lo"))
    return any(links != own for links in map(lab.links, lab.hosts))


def inside(lab: Machines, word: bytes) -> list[int]:
    """Python processes on its machines that were started with this word."""
    out = []
    for pid in namespaces.pids_inside([lab.namespace(host) for host in lab.hosts]):
        with suppress(OSError):  # it ends meanwhile
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if word in line and b"python" in os.path.basename(line.split(b"\0")[0]):
                out.append(pid)
    return out


def agents(lab: Machines) -> list[int]:
    return inside(lab, b"zipfile.ZipFile")


def watchdogs(lab: Machines) -> list[int]:
    return inside(lab, b"lossbench.net.nic.watchdog")
