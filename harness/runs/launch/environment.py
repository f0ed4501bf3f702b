"""What a program finds in its environment: the door's variables (contract.py), what stops libraries guessing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lossbench.contract import DATA_PORT, MASTER_PORT
from lossbench.spec.topology import Host, Topology


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
        "LOSSBENCH_RANKS_HERE": str(1 if topology.machines else topology.hosts),
        "MASTER_ADDR": topology.all_hosts()[0].control_ipv4,
        "MASTER_PORT": str(MASTER_PORT),
        "LOSSBENCH_RUN": run.run_id,
        "LOSSBENCH_TOKEN": f"{run.token:016x}",
        "LOSSBENCH_SEED": str(run.seed),
        "LOSSBENCH_INTERFACE": host.interface,
        "LOSSBENCH_CONTROL_INTERFACE": host.control_interface,
        "LOSSBENCH_CONTROL": host.control_ipv4,
        "LOSSBENCH_ADDRESSES": ",".join(h.address(topology.family) for h in topology.all_hosts()),
        "LOSSBENCH_PORT": str(DATA_PORT),
        "LOSSBENCH_STACK": "machine" if topology.machines else "own",
        "LOSSBENCH_SPEC": str(folder / "options.json"),
        "LOSSBENCH_RECORDS": str(records),
        "LOSSBENCH_GO": str(folder / "go"),
        # torch: bytes between hosts go over the data link.
        "GLOO_SOCKET_IFNAME": host.interface,
        "NCCL_SOCKET_IFNAME": host.interface,
        "NCCL_HOSTID": f"{run.run_id}-{host.name}",
        "NCCL_IB_DISABLE": "1",  # RDMA never meets a rule
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # a rank that hangs can be asked for its stack
    }
    if "NCCL_NET" not in os.environ:  # a plugin that it finds (OFI for EFA, UCX) would be taken before sockets
        out["NCCL_NET"] = "Socket"
    if not topology.machines:  # hosts of one machine take no shortcuts past their links; GPUs of one host may
        out |= {"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}
    if "OMP_NUM_THREADS" not in os.environ:
        out["OMP_NUM_THREADS"] = str(threads)
    return out


def outside_of_a_run(host: Host, topology: Topology, run: Identity, *, folder: Path, threads: int) -> dict[str, str]:
    """For a program in a network that stands by itself: nobody gave it options, nobody reads its records."""
    out = environment(host, topology, run, folder=folder, records=folder, threads=threads)
    return {
        key: value for key, value in out.items() if key not in ("LOSSBENCH_SPEC", "LOSSBENCH_RECORDS", "LOSSBENCH_GO")
    }


def gpu_for(number: int, gpus: Sequence[str], environment: Mapping[str, str], *, ranks: int = 1) -> dict[str, str]:
    """Of a machine with several, each host gets as many in turn as it has ranks, and calls the first cuda:0; else all
    hosts would take the same. Who chose some (CUDA_VISIBLE_DEVICES) keeps to these; where a host has more ranks than
    there are GPUs it sees all of them."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    known = [str(n) for n in range(len(gpus))] if chosen is None else [one for one in chosen.split(",") if one]
    if len(known) < 2 or ranks > len(known):
        return {}
    mine = [known[(number * ranks + rank) % len(known)] for rank in range(ranks)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(mine)}
