"""How a lossy all-reduce grows: with the tensor, with the ranks, over many calls. Minutes; ranks as processes in hosts.

python -m tests.bench.scaling [size] [ranks] [calls] [many | many:RANKS]

*many*: 64 ranks (or so many), a process each on this machine's loopback, 64 kB from all to all, beside Gloo, in turns;
a call takes as long as its slowest rank. For a machine with many cores; not among the parts that run if none is named.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import socket
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lossbench.contract import Door
from lossbench.net.kernel import Kernel
from lossbench.results.folders import RunFolder
from lossbench.runs import run
from lossbench.runs.ground import ThisMachine
from lossbench.spec.experiment import Experiment
from lossbench.spec.userfile import check
from lossbench.workloads.collective.group import LossyGroup
from lossbench.workloads.collective.where import inner_gloo
from lossbench.workloads.transport.policy import Policy

BYTES, TURNS, BURST = 64_000, 10, 10  # of each contender: so many turns of so many calls
CONTENDERS = ("lossy", "gloo")


def measure(*, hosts: int, mb: float, calls: int, profile: str = "clean") -> dict[str, Any]:
    experiment = check(
        Experiment,
        {
            "name": "scaling",
            "topology": {"hosts": hosts},
            "impair": [{"profile": profile}],
            "workload": {"name": "allreduce.loop", "options": {"mb": mb, "calls": calls}, "time_limit_s": 600},
        },
        origin="scaling",
    )
    with tempfile.TemporaryDirectory() as folder:
        result = run.execute(
            experiment,
            seed=1,
            chosen={},
            folder=RunFolder(Path(folder) / "run"),
            ground=ThisMachine(Kernel.tried()),
            progress=lambda _: None,
        )
    if not result.watched.summaries or result.verdict.columns["fault"].status:
        raise SystemExit(json.dumps(result.verdict.as_json(), indent=1))
    return {
        k: max(s[k] for s in result.watched.summaries)
        for k in result.watched.summaries[0]
        if k not in ("kind", "rank", "time_s")
    }


def size() -> None:
    print("\n== 4 ranks, growing tensors: milliseconds per MB must stay, memory at most 3 x the tensor")
    for mb in (1, 4, 16, 64, 256):
        got = measure(hosts=4, mb=mb, calls=max(4, min(20, 400 // mb)))
        ratio = got["memory_mb"] / mb
        print(f"{mb:4d} MB: p50 {got['p50_ms']:8.1f} ms, {got['p50_ms'] / mb:6.2f} ms/MB, memory {ratio:.2f} x tensor")


def ranks() -> None:
    print("\n== 8 MB, growing number of ranks: bytes on all links grow with N-1")
    for hosts in (2, 4, 8, 16):
        got = measure(hosts=hosts, mb=8, calls=10)
        print(f"{hosts:3d} ranks: p50 {got['p50_ms']:7.1f} ms, {got['p50_ms'] / (hosts - 1):6.2f} ms per further rank")


def calls() -> None:
    print("\n== 10,000 calls of 40 kB at 1 % loss: memory of the first 1000 against the last")
    got = measure(hosts=2, mb=0.04, calls=10_000, profile="loss_1")
    print(f"resident {got['early_mb']:.1f} MB after 1000 calls, {got['late_mb']:.1f} MB after 10,000; {got}")


def be_one_of_many(rank: int, world: int, port: int, shared: mmap.mmap) -> None:
    """Its times, and how many of its sums were not right, to where the others' are."""
    torch.set_num_threads(1)
    store, limit = dist.TCPStore("127.0.0.1", port, world, rank == 0), timedelta(seconds=300)
    door = Door(rank=rank, world_size=world, addresses=("127.0.0.1",) * world)
    gloo = inner_gloo(dist.PrefixStore("gloo", store), rank, world, limit)
    lossy = LossyGroup(dist.PrefixStore("lossy", store), rank, world, limit, Policy.from_environment(), door)
    times = np.frombuffer(shared, np.float64).reshape(len(CONTENDERS), TURNS * BURST + 1, world)
    tensor = torch.empty(BYTES // 4)
    for call in range(TURNS * BURST):
        for number in (0, 1) if call // BURST % 2 else (1, 0):
            tensor.fill_(rank + 1.0)
            gloo.barrier().wait()
            begun = time.perf_counter()
            (lossy if CONTENDERS[number] == "lossy" else gloo).allreduce([tensor]).wait()
            times[number, call, rank] = time.perf_counter() - begun
            times[number, -1, rank] += not bool((tensor == world * (world + 1) / 2).all())
    gloo.barrier().wait()
    lossy.shutdown()


def many(world: int = 64) -> None:
    print(f"\n== {BYTES // 1000} kB, all to all: {world} ranks, a process each, on loopback; each call's slowest rank")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = mmap.mmap(-1, len(CONTENDERS) * (TURNS * BURST + 1) * world * 8)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=be_one_of_many, args=(rank, world, port, shared)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise SystemExit(f"ranks ended with {sorted({rank.exitcode for rank in ranks}, key=str)}")
    found = np.frombuffer(shared, np.float64).reshape(len(CONTENDERS), TURNS * BURST + 1, world)
    for name, times in zip(CONTENDERS, found, strict=True):
        slowest = times[BURST:-1].max(axis=1) * 1000  # the first turn warms up
        p50, p95 = np.quantile(slowest, (0.5, 0.95))
        print(f"{name:>6}: p50 {p50:8.2f} ms, p95 {p95:8.2f} ms; sums that were not right: {times[-1].sum():.0f}")


PARTS = {"size": size, "ranks": ranks, "calls": calls}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        name, _, number = part.partition(":")
        if name == "many":
            many(*map(int, filter(None, [number])))
        else:
            PARTS[name]()
