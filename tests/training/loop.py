"""All-reduces in a loop, by the lossy backend; a line per call: number, milliseconds, share that arrived, right or not.

Environment as torchrun's; LOOP_CALLS calls, LOOP_PAUSE_S between them, LOOP_LATE_S before the first, LOOP_SORT numbers
sorted before each.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from lossbench.workloads.collective.group import LossyGroup
from lossbench.workloads.transport.policy import Policy


def main() -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0)
    group = LossyGroup(store, rank, world, timedelta(seconds=60), Policy.from_environment())
    group.barrier().wait()
    time.sleep(float(os.environ.get("LOOP_LATE_S", "0")))
    busy = torch.rand(int(os.environ.get("LOOP_SORT", "0"))).tolist()
    for call in range(int(os.environ.get("LOOP_CALLS", "100"))):
        sorted(busy)  # one step of the interpreter: nothing else of Python runs meanwhile
        tensor = torch.full((300_000,), float(rank + 1))
        start = time.perf_counter()
        group.allreduce([tensor]).wait()
        took = time.perf_counter() - start
        share = min(account.fraction for account in group.accounts)
        # N times a mean of some of 1..N, whatever was lost: nothing else may come out.
        right = bool(((tensor >= world - 1e-3) & (tensor <= world * world + 1e-3)).all())
        print(f"call {call} {took * 1000:.1f} {share:.4f} {right}", flush=True)
        time.sleep(float(os.environ.get("LOOP_PAUSE_S", "0.01")))
    print("done", group.counters["strangers"], flush=True)
    group.shutdown()


if __name__ == "__main__":
    main()
