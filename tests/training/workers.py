"""Workers as threads of one process: over simulated loss, or over real sockets on loopback where nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from lossbench.contract import Door
from lossbench.workloads.sync.channels.genuine import Genuine
from lossbench.workloads.sync.channels.simulated import Medium, Rule, Simulated
from lossbench.workloads.transport.policy import Policy


def simulated(world: int, *rules: Rule, seed: int = 0) -> list[Callable[[], Any]]:
    medium = Medium(world, [rules], seed)
    return [lambda rank=rank: Simulated(medium, rank) for rank in range(world)]


def over_loopback(world: int, policy: Policy | None = None, **keys: Any) -> list[Callable[[], Any]]:
    store = dist.HashStore()
    addresses = ("127.0.0.1",) * world
    policy = policy or Policy(send_thread="off")

    def channel(rank: int) -> Genuine:
        return Genuine.at(Door(rank=rank, world_size=world, addresses=addresses), store, policy=policy, **keys)

    return [lambda rank=rank: channel(rank) for rank in range(world)]


def together(channels: list[Callable[[], Any]], work: Callable[[Any], Any]) -> list[Any]:
    """Every worker in its own thread; results by rank; the first error is raised."""
    out: list[Any] = [None] * len(channels)
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            channel = channels[rank]()
            out[rank] = work(channel)
            channel.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(len(channels))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
        if errors:
            raise errors[0]
        assert not thread.is_alive(), "a worker hangs"
    return out


def small_model(seed: int = 0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(16, 20, generator=generator)
    return inputs, inputs[:, :5].argmax(1)
