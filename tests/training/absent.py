"""Training over the lossy backend that goes on without ranks that are gone; a line per step, the end in numbers.

Environment as torchrun's; STRATEGY, BUCKETS, LOOP_STEPS steps, LOOP_PAUSE_S between them; a file LOOP_UNTIL, when
there is one, says which step is the last.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import lossbench.torch
from lossbench import sync


def last_step() -> int:
    try:
        return int(Path(os.environ["LOOP_UNTIL"]).read_text()) + 1
    except (KeyError, FileNotFoundError):
        return int(os.environ["LOOP_STEPS"])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 200), torch.nn.Tanh(), torch.nn.Linear(200, 1))
    truth = torch.randn(40, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    policy = lossbench.torch.Policy.from_environment()
    dist.init_process_group("lossy", pg_options=policy)
    rank = dist.get_rank()
    strategy = sync.make(
        os.environ.get("STRATEGY", "bounded_drift"), optimizer, buckets=int(os.environ.get("BUCKETS", "1"))
    )
    print(f"begins at {strategy.steps}", flush=True)
    while strategy.steps < last_step():
        dice = torch.Generator().manual_seed(1000 * strategy.steps + rank)
        samples = torch.randn(64, 40, generator=dice)
        loss = torch.nn.functional.mse_loss(model(samples), samples @ truth)
        optimizer.zero_grad()
        loss.backward()
        strategy.step()
        values = strategy.flat.values
        print(f"step {strategy.steps - 1} {loss.item():.4f} {values.double().sum().item():.9f}", flush=True)
        time.sleep(float(os.environ.get("LOOP_PAUSE_S", "0.02")))
    print(*strategy.channel.notes, sep="\n")
    print(f"parts {strategy.buckets[0].counts}")
    print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
