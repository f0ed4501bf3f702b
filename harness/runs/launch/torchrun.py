"""A user's program, started by torchrun on every host: static rendezvous on the control network, explicit node ranks,
so that nothing is guessed. Then in every worker: is the world as large as was asked?

    python -P -m lossbench.runs.launch.torchrun RANKS -- train.py ...      (on each host, with the door's variables)
"""

from __future__ import annotations

import io
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

from lossbench.processes import module_command

MODULE = "lossbench.runs.launch.torchrun"
WORKER = "worker"
OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # torchrun gives every worker its own


def command(ranks: int, user: list[str]) -> list[str]:
    """`user`: python and a script with its arguments."""
    return module_command(MODULE, str(ranks), "--", *user[1:])


def torchrun(ranks: int, script: list[str], environment: Mapping[str, str]) -> list[str]:
    """This host is a node; its number is the rank that we gave it."""
    where = ["--master-addr", environment["MASTER_ADDR"], "--master-port", environment["MASTER_PORT"]]
    own = ["--local-addr", environment["LOSSBENCH_CONTROL"]] if environment.get("LOSSBENCH_CONTROL") else []
    nodes = ["--nnodes", environment["WORLD_SIZE"], "--node-rank", environment["RANK"], "--nproc-per-node", str(ranks)]
    static = ["--rdzv-backend", "static", "--max-restarts", "0"]
    worker = ["-m", MODULE, WORKER, str(ranks * int(environment["WORLD_SIZE"])), *script]
    return [sys.executable, "-P", "-m", "torch.distributed.run", *nodes, *static, *where, *own, *worker]


def work(expected: int, script: list[str]) -> None:
    """In a worker, as if it had been started by itself."""
    world = int(os.environ["WORLD_SIZE"])
    if world != expected:
        sys.exit(f"torchrun made a world of {world} ranks, {expected} were asked for")
    addresses = os.environ.get("LOSSBENCH_ADDRESSES", "").split(",")
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    os.environ["LOSSBENCH_ADDRESSES"] = ",".join(one for one in addresses for _ in range(here))
    os.environ["LOSSBENCH_PORT"] = str(int(os.environ["LOSSBENCH_PORT"]) + int(os.environ["LOCAL_RANK"]))
    os.environ["LOSSBENCH_RANKS_HERE"] = str(int(os.environ.get("LOSSBENCH_RANKS_HERE", "1")) * here)
    for stream in (sys.stdout, sys.stderr):  # workers share a log: their lines must not tangle
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
    sys.argv = script
    sys.path.insert(0, str(Path(script[0]).resolve().parent))
    runpy.run_path(script[0], run_name="__main__")


def main() -> None:
    first, *rest = sys.argv[1:]
    if first == WORKER:
        work(int(rest[0]), rest[1:])
        return
    line = torchrun(int(first), rest[1:], os.environ)
    for name in OURS:
        os.environ.pop(name, None)
    os.execvp(line[0], line)


if __name__ == "__main__":
    main()
