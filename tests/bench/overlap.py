"""How much of the communication hides behind backward: DDP over the lossy backend, and strategies bucket by bucket.

torchrun --nproc-per-node 4 tests/bench/overlap.py [--device cuda] [--mb 100] [--steps 20]     a command, not a test

hidden = (compute alone + exchange alone - both together) / exchange alone: 1 if all of it hides, 0 if nothing does. The
batch is chosen so that backward takes about as long as the exchange: less of either leaves less to hide or to hide
behind. On loopback; all ranks of a GPU share it."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

import lossbench.torch  # noqa: F401 - registers the backend
from lossbench import sync

LAYERS = 12


def model_of(mb: float, device: torch.device) -> torch.nn.Module:
    width = int((mb * 1e6 / 4 / LAYERS) ** 0.5)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).to(device)


def timed(call: Callable[[], None], steps: int, device: torch.device) -> float:
    """Milliseconds of a step, median; of the slowest rank."""
    out = []
    for number in range(steps + 3):
        dist.barrier()
        begun = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number >= 3:
            out.append(1000 * (time.perf_counter() - begun))
    mine = torch.tensor([statistics.median(out)], dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return float(mine[0])


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--mb", type=float, default=100)
    asked.add_argument("--steps", type=int, default=20)
    given = asked.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("lossy")
    device, rank = torch.device(given.device), dist.get_rank()
    torch.manual_seed(0)
    model = model_of(given.mb, device)
    width, count = model[0].in_features, sum(p.numel() for p in model.parameters())
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    vector = torch.ones(count, device=device)
    exchange_ms = timed(lambda: dist.all_reduce(vector.fill_(1.0)), given.steps, device)

    def step(module: torch.nn.Module, batch: int) -> None:
        module.zero_grad(set_to_none=True)
        module(torch.ones(batch, width, device=device)).sum().backward()

    def alone(batch: int) -> None:
        with wrapped.no_sync():
            step(wrapped, batch)

    batch = 64
    while timed(partial(alone, batch), 3, device) < exchange_ms and batch < 1 << 20:
        batch *= 2
    compute_ms = timed(partial(alone, batch), given.steps, device)

    def show(name: str, together_ms: float, exchange: float) -> None:
        hidden = (compute_ms + exchange - together_ms) / exchange
        if rank == 0:
            print(
                f"{name}: compute {compute_ms:.1f} ms, exchange {exchange:.1f} ms, together {together_ms:.1f} ms, "
                f"hidden {hidden:.2f}   ({count * 4 / 1e6:.0f} MB, {dist.get_world_size()} ranks, batch {batch})",
                flush=True,
            )

    show("ddp", timed(lambda: step(wrapped, batch), given.steps, device), exchange_ms)
    for name in ("rps", "bounded_drift"):
        for buckets in (1, 8):
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
            strategy = sync.make(name, optimizer, buckets=buckets)
            only_ms = timed(strategy.step, given.steps, device)

            def both(strategy: sync.Strategy = strategy) -> None:
                step(model, batch)
                strategy.step()

            show(f"{name}, {buckets} buckets", timed(both, given.steps, device), only_ms)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
