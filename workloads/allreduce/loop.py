"""Lossy all-reduces of one size, over and over: time and memory; all its packets are counted at both ends.

[workload] name = "allreduce.loop", options = { mb = 16, calls = 100 }; used by tests/bench/scaling.py
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from lossbench.contract import Door
from lossbench.workloads.collective.group import LossyGroup
from lossbench.workloads.transport.policy import Policy

QUIET_S = 0.5


def resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def right_share(tensor: torch.Tensor, world: int, *, whole: bool) -> float:
    """Of the last call: N times a mean of some of 1..N; of all of them, where nothing was lost."""
    least, most = (world * (world + 1) / 2,) * 2 if whole else (float(world), float(world * world))
    parts = tensor.split(1 << 24)
    return sum(int(((part >= least - 1e-3) & (part <= most + 1e-3)).sum()) for part in parts) / len(tensor)


def main() -> None:
    door = Door.from_environment()
    torch.set_num_threads(1)
    calls, elements = int(door.options.get("calls", 100)), int(float(door.options.get("mb", 16)) * 1e6) // 4
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), door.world_size, door.rank == 0)
    group = LossyGroup(store, door.rank, door.world_size, timedelta(seconds=60), Policy.from_environment())
    group.barrier().wait()
    door.ready()
    empty = resident_mb()
    tensor = torch.ones(elements)
    seconds, early = [], 0.0
    for call in range(calls):
        tensor.fill_(float(door.rank + 1))
        start = time.perf_counter()
        group.allreduce([tensor]).wait()
        seconds.append(time.perf_counter() - start)
        if call == min(999, calls // 2):
            early = resident_mb()
        if call % 50 == 0:
            door.record("step", step=call)
    late = resident_mb()
    group.barrier().wait()
    time.sleep(QUIET_S)  # whatever is still repeated, is repeated now; then both ends have counted everything
    counters = group.counters
    door.record("traffic", sent=counters["sent"], received=counters["received"], complete=True)
    door.record(
        "summary",
        p50_ms=float(np.median(seconds) * 1000),
        p99_ms=float(np.quantile(seconds, 0.99) * 1000),
        max_ms=max(seconds) * 1000,
        early_mb=early,
        late_mb=late,
        memory_mb=late - empty,
        right=right_share(tensor, door.world_size, whole=counters["data_arrived"] == counters["data_expected"]),
        arrived=counters["data_arrived"] / max(counters["data_expected"], 1),
        cut=counters["cut"],
        late=counters["late"],
        overflow=counters["overflow"],
    )
    sys.stdout.flush()
    os._exit(0)  # taking leave would be packets that nobody has counted


if __name__ == "__main__":
    main()
