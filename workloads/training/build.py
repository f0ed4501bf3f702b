"""From settings to seats: data, models that are equal at the start, channels, strategies."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lossbench.contract import Door, derive_seed
from lossbench.workloads import sync
from lossbench.workloads.errors import OptionError
from lossbench.workloads.sync.channels.base import Channel
from lossbench.workloads.sync.channels.genuine import Genuine
from lossbench.workloads.sync.channels.simulated import Medium, Rule, Simulated
from lossbench.workloads.sync.vectors.flat import Flat
from lossbench.workloads.training import engine as engines
from lossbench.workloads.training.crew import Control, Crew, LinkedControl, LocalControl, LocalTable
from lossbench.workloads.training.data.batches import Batch, Batches
from lossbench.workloads.training.data.sets import DataSet, load
from lossbench.workloads.training.data.tokens import tokenised
from lossbench.workloads.training.measure import DriftMeter
from lossbench.workloads.training.models import build as build_model
from lossbench.workloads.training.seat import Seat
from lossbench.workloads.training.settings import Settings, policy_here
from lossbench.workloads.training.tasks import TASKS, Task


class Noise:
    """Batches of `random_walk`: independent numbers with zero mean for every rank and step."""

    steps_per_epoch = 1

    def __init__(self, *, ranks: list[int], size: int, seed: int, device: torch.device) -> None:
        self._ranks, self._size, self._seed, self._device = ranks, size, seed, device

    def at(self, step: int) -> Batch:
        rows = [
            np.random.default_rng(derive_seed(self._seed, "noise", step, r)).standard_normal(self._size, np.float32)
            for r in self._ranks
        ]
        return (torch.from_numpy(np.stack(rows)).to(self._device),)


@dataclass(kw_only=True)
class Built:
    settings: Settings
    device: torch.device
    data: DataSet | None
    batches: Any
    task: Task
    crew: Crew
    seats: list[Seat]
    engine: engines.Engine

    @property
    def steps(self) -> int:
        epochs = self.settings.epochs
        return self.settings.steps if epochs is None else max(1, round(epochs * self.batches.steps_per_epoch))


def choose_device(settings: Settings) -> torch.device:
    wanted = settings.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise OptionError("workload.options.device: this machine has no GPU that torch can use; say device = cpu")
    if wanted == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def built(settings: Settings, doors: list[Door]) -> Built:
    if sync.find(settings.strategy).lone and (len(doors) > 1 or settings.simulated is not None):
        step = "one process per rank and a real network: workload.ranks_per_process = 1"
        raise OptionError(f"strategy {settings.strategy} needs {step}")
    device = choose_device(settings)
    set_threads(len(doors))
    ranks, first = [door.rank for door in doors], doors[0]
    data, batches = None, Noise(ranks=ranks, size=settings.walk_size, seed=first.seed, device=device)
    kind, about = "noise", {"size": settings.walk_size}
    if settings.data != "random_walk":
        data = loaded(settings)
        kind, about = data.kind, data.about
        batches = Batches(
            data,
            ranks=ranks,
            world=first.world_size,
            items=settings.batch,
            seed=first.seed,
            device=device,
            window=settings.window,
            skew=settings.skew,
        )
    task = TASKS[kind](about)
    crew = Crew(doors)
    seats, calls, memory = _seats(settings, crew, kind, about, device)
    keys: dict[str, Any] = {
        "calls": calls,
        "strategies": [s.strategy for s in seats],
        "loss_of": task.loss,
        "device": device,
        "precision": settings.precision,
    }
    chosen = engines.choose(
        settings.engine, device=device, ranks=len(doors), model=seats[0].model, wrapped=calls[0] is not seats[0].model
    )
    if chosen is engines.Stacked:
        keys |= {"values": memory[0], "grads": memory[1]}
    return Built(
        settings=settings,
        device=device,
        data=data,
        batches=batches,
        task=task,
        crew=crew,
        seats=seats,
        engine=chosen(**keys),
    )


def loaded(settings: Settings) -> DataSet:
    data = load(settings.data, settings.data_dir)
    return tokenised(data, settings.vocabulary) if settings.vocabulary else data


def set_threads(here: int) -> None:
    """Ranks of one machine share its cores; they do not fight for them."""
    ranks = int(os.environ.get("LOSSBENCH_RANKS_HERE", "1"))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) * here // max(ranks, here)))


def _seats(
    settings: Settings, crew: Crew, kind: str, about: dict[str, Any], device: torch.device
) -> tuple[list[Seat], list[Any], tuple[torch.Tensor, torch.Tensor]]:
    models = []
    for _ in crew.doors:
        torch.manual_seed(derive_seed(crew.doors[0].seed, "weights"))  # all ranks begin equal
        models.append(build_model("walk" if kind == "noise" else settings.model, kind=kind, about=about).to(device))
    size = sum(p.numel() for p in models[0].parameters())
    memory = (torch.zeros(len(models), size, device=device), torch.zeros(len(models), size, device=device))
    channels, controls = _links(settings, crew)
    channels = [settings.coded(channel, crew.doors[0].seed) for channel in channels]
    seats, calls = [], []
    for number, (door, model) in enumerate(zip(crew.doors, models, strict=True)):
        optimizer = settings.make_optimizer(model.parameters())
        flat = Flat([model.parameters()], (memory[0][number], memory[1][number]))
        strategy = sync.make(
            settings.strategy,
            optimizer,
            channels[number],
            flat=flat,
            seed=door.seed,
            clip_norm=settings.clip_norm,
            **settings.of_strategy(),
        )
        calls.append(strategy.wrap(model))
        meter = DriftMeter(strategy, controls[number], door.seed)
        seats.append(Seat(door=door, model=model, strategy=strategy, control=controls[number], meter=meter))
    return seats, calls, memory


def _links(settings: Settings, crew: Crew) -> tuple[list[Channel], list[Control]]:
    """The channel that loses packets, and the control beside it."""
    world, all_here = crew.doors[0].world_size, len(crew.doors) == crew.doors[0].world_size
    local = LocalTable(world) if all_here else None
    crew.barriers += [local.barrier] if local else []
    if settings.simulated is not None:
        if not all_here:
            raise OptionError(
                "simulated loss needs all ranks in one process: workload.ranks_per_process = topology.hosts"
            )
        policy = policy_here(settings.policy)
        if policy.repair or policy.deadline_ms or policy.close_fraction < 1:
            raise OptionError("workload.options.policy: simulated loss has no transport that repairs or ends early")
        layers = [[Rule(**rule) for rule in rules] for rules in settings.simulated]
        medium = Medium(world, layers, crew.doors[0].seed)
        assert local is not None
        crew.barriers.append(medium.barrier)
        return [Simulated(medium, d.rank) for d in crew.doors], [LocalControl(local, d.rank) for d in crew.doors]
    policy = policy_here(settings.policy)

    def connect(number: int) -> tuple[Channel, Control]:
        door = crew.doors[number]
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        control: Control
        if local is not None:
            control = LocalControl(local, door.rank)
            store = dist.TCPStore(address, port, world, door.rank == 0, wait_for_workers=False)
        else:
            control = linked = LinkedControl(door, os.environ.get("LOSSBENCH_CONTROL_INTERFACE", ""))
            store = dist.TCPStore(address, port, world, door.rank == 0, wait_for_workers=False)
            linked.connect(store)
        channel = Genuine.at(
            door,
            store,
            policy=policy,
            trusted=settings.trusted,
            rto_min_ms=settings.rto_min_ms,
            rto_max_ms=settings.rto_max_ms,
            tcp=settings.tcp,
        )
        return channel, control

    pairs = crew.each(connect)
    return [channel for channel, _ in pairs], [control for _, control in pairs]
