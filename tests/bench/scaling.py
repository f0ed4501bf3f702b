"""How a lossy all-reduce grows: with the tensor, with the ranks, over many calls. Minutes; ranks as processes in hosts.

python -m tests.bench.scaling [size] [ranks] [calls]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from lossbench.net.kernel import Kernel
from lossbench.results.folders import RunFolder
from lossbench.runs import run
from lossbench.runs.ground import ThisMachine
from lossbench.spec.experiment import Experiment
from lossbench.spec.userfile import check


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


PARTS = {"size": size, "ranks": ranks, "calls": calls}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
