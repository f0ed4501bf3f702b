"""Small all-reduces in a row, against Gloo and against the floor: a bare two-half exchange of datagrams, no protocol.

    python tests/bench/small_calls.py [PROFILE] [HOSTS] [KB,KB,...] [CALLS]

Starts a run of lossbench (root) in which this file is also the workload."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
PORT, WARM_UP = 7100, 0.1


class Floor:
    """Every rank to every rank, twice; the next half begins when all have come."""

    def __init__(self, rank: int, addresses: tuple[str, ...]) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((addresses[rank], PORT))
        self._socket.settimeout(5)
        self._peers = [(address, PORT) for n, address in enumerate(addresses) if n != rank]
        self._early: dict[int, int] = {}
        self._number = 0

    def call(self) -> None:
        for _ in range(2):
            self._half()

    def _half(self) -> None:
        self._number += 1
        packet = self._number.to_bytes(4, "little") + b"x" * 128
        for peer in self._peers:
            self._socket.sendto(packet, peer)
        got = self._early.pop(self._number, 0)
        while got < len(self._peers):
            number = int.from_bytes(self._socket.recv(2048)[:4], "little")
            if number == self._number:
                got += 1
            elif number > self._number:
                self._early[number] = self._early.get(number, 0) + 1


def measure(call: Callable[[], None], calls: int, seconds: float) -> list[float]:
    out, until = [], time.perf_counter() + seconds
    for _ in range(calls):
        start = time.perf_counter()
        call()
        out.append(time.perf_counter() - start)
        if time.perf_counter() > until and len(out) > 20:
            break
    return out[int(len(out) * WARM_UP) :]


def rank_main() -> None:
    import numpy as np
    import torch
    import torch.distributed as dist

    from lossbench.contract import Door
    from lossbench.workloads.collective.group import LossyGroup
    from lossbench.workloads.transport.policy import Policy

    torch.set_num_threads(1)
    door = Door.from_environment()
    world, calls, lossless = door.world_size, int(door.options["calls"]), door.options["lossless"]
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, door.rank == 0)
    limit = timedelta(seconds=120)
    lossy = LossyGroup(dist.PrefixStore("lossy", store), door.rank, world, limit, Policy.from_environment())
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), door.rank, world, limit)
    floor = Floor(door.rank, door.addresses)
    door.ready()

    def show(name: str, kb: float, seconds: list[float]) -> None:
        """A call takes as long as its slowest rank says."""
        slowest, options = torch.tensor(seconds, dtype=torch.float64), dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        gloo.allreduce([slowest], options).wait()
        ms = slowest.numpy() * 1000
        p50, p90, p99 = np.quantile(ms, [0.5, 0.9, 0.99]).round(3).tolist()
        if door.rank == 0:
            door.record("row", contender=name, kb=kb, n=len(ms), p50_ms=p50, p90_ms=p90, p99_ms=p99)

    for _ in range(3):
        if lossless:
            lossy.barrier().wait()
            show("floor", 0.13, measure(floor.call, calls, 1e9))
        for kb in door.options["kb"]:
            tensor = torch.ones(int(kb * 256))
            lossy.barrier().wait()
            show("lossy", kb, measure(lambda t=tensor: lossy.allreduce([t]).wait(), calls, 1e9))
            lossy.barrier().wait()
            few = calls if lossless else 60
            show("gloo", kb, measure(lambda t=tensor: gloo.allreduce([t]).wait(), few, 1e9))
            tensor.fill_(1.0)
            lossy.allreduce([tensor]).wait()
            if lossless:
                assert bool((tensor == world).all())
    lossy.barrier().wait()
    lossy.shutdown()


def start(profile: str = "clean", hosts: str = "4", kb: str = "1,16,64", calls: str = "1000") -> None:
    sizes = ", ".join(str(float(one)) for one in kb.split(","))
    lossless = str(profile == "clean").lower()
    text = f"""name = "small-calls"
[topology]
hosts = {hosts}
[[impair]]
profile = "{profile}"
[workload]
command = ["python", "{HERE}"]
time_limit_s = 500
options = {{ kb = [{sizes}], calls = {calls}, lossless = {lossless} }}
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "small.toml")
        path.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "lossbench.cli.main", "run", str(path), "--out", f"{folder}/runs", "--json"]
        variables = {**os.environ, "LOSSBENCH_INSIDE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    try:
        one: dict[str, Any] = json.loads(done.stdout)["summary"][0]
    except (ValueError, KeyError, IndexError):
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    print("==", profile, hosts, "ranks", one["columns"], one["reasons"]["outcome"][:1])
    for row in one.get("rows", []):
        print(
            " ".join(f"{name}={row[name]}" for name in ("contender", "kb", "n", "p50_ms", "p90_ms", "p99_ms")),
            flush=True,
        )


if __name__ == "__main__":
    rank_main() if "LOSSBENCH_INSIDE" in os.environ and "RANK" in os.environ else start(*sys.argv[1:])
