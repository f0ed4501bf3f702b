"""What a program finds in its environment: the door's variables (contract.py), what stops libraries guessing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lossbench.contract import DATA_PORT
from lossbench.spec.topology import CONTROL_INTERFACE, DATA_INTERFACE, Host, Topology

MASTER_PORT = 29500


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What tells a run from all others."""

    run_id: str
    token: int
    seed: int


def environment(
    host: Host, topology: Topology, run: Identity, *, folder: Path, records: Path, threads: int
) -> dict[str, str]:
    """Of the rank on this host."""
    out = {
        "RANK": str(host.rank),
        "WORLD_SIZE": str(topology.hosts),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "LOSSBENCH_RANKS_HERE": str(topology.hosts),
        "MASTER_ADDR": topology.all_hosts()[0].control_ipv4,
        "MASTER_PORT": str(MASTER_PORT),
        "LOSSBENCH_RUN": run.run_id,
        "LOSSBENCH_TOKEN": f"{run.token:016x}",
        "LOSSBENCH_SEED": str(run.seed),
        "LOSSBENCH_INTERFACE": DATA_INTERFACE,
        "LOSSBENCH_CONTROL_INTERFACE": CONTROL_INTERFACE,
        "LOSSBENCH_ADDRESSES": ",".join(h.address(topology.family) for h in topology.all_hosts()),
        "LOSSBENCH_PORT": str(DATA_PORT),
        "LOSSBENCH_SPEC": str(folder / "options.json"),
        "LOSSBENCH_RECORDS": str(records),
        "LOSSBENCH_GO": str(folder / "go"),
        # torch: bytes go over the data link; ranks of one machine do not take shortcuts past it.
        "GLOO_SOCKET_IFNAME": DATA_INTERFACE,
        "NCCL_SOCKET_IFNAME": DATA_INTERFACE,
        "NCCL_HOSTID": f"{run.run_id}-{host.name}",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # a rank that hangs can be asked for its stack
    }
    if "OMP_NUM_THREADS" not in os.environ:
        out["OMP_NUM_THREADS"] = str(threads)
    return out
