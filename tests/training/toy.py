"""A small network trained by DDP, ZeroRedundancyOptimizer or FSDP2, unchanged, over the lossy backend and over Gloo.

Options of the run: wrapper (ddp, zero, fsdp), steps, device. The summary holds both final losses: the gap is reported.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import lossbench.workloads.collective  # noqa: F401 - registers the backend
from lossbench.contract import Door

WIDTH, CLASSES, BATCH = 64, 4, 32


def network(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, CLASSES)).to(device)


def batches(rank: int, steps: int, device: torch.device) -> Any:
    """A teacher's labels; every rank sees its own examples."""
    teacher = torch.randn(WIDTH, CLASSES, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        inputs = torch.randn(BATCH, WIDTH, generator=generator)
        yield inputs.to(device), (inputs @ teacher).argmax(1).to(device)


def wrapped(wrapper: str, device: torch.device) -> tuple[torch.nn.Module, Any]:
    model = network(device)
    if wrapper == "fsdp":
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for layer in model.children():
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.Adam(model.parameters(), 1e-3)
    model = DistributedDataParallel(model)
    if wrapper == "zero":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    return model, torch.optim.Adam(model.parameters(), 1e-3)


def train(wrapper: str, steps: int, device: torch.device) -> tuple[float, float]:
    """(first loss, mean of the last 20 losses) of this rank."""
    model, optimizer = wrapped(wrapper, device)
    losses = []
    for inputs, labels in batches(dist.get_rank(), steps, device):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses[0], sum(losses[-20:]) / 20


def main() -> None:
    door = Door.from_environment()
    torch.set_num_threads(1)
    wrapper, steps = str(door.options.get("wrapper", "ddp")), int(door.options.get("steps", 150))
    device = torch.device(str(door.options.get("device", "cpu")))
    door.ready()
    results: dict[str, Any] = {}
    data_link = os.environ.get("GLOO_SOCKET_IFNAME", "")
    for backend in ("gloo", "lossy"):
        # What is compared is the loss reached, not the time: Gloo may take the link that nothing impairs.
        os.environ["GLOO_SOCKET_IFNAME"] = "ctl0" if backend == "gloo" else data_link
        dist.init_process_group(backend)
        results[f"first_{backend}"], results[backend] = train(wrapper, steps, device)
        if backend == "lossy":
            counters = dist.group.WORLD.counters
            results |= {key: counters[key] for key in ("payload_bytes", "lost", "data_expected", "overflow", "cut")}
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    door.record("summary", **results, gap=results["lossy"] - results["gloo"])


if __name__ == "__main__":
    main()
