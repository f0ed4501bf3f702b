"""Judging models: every worker's, their mean, and the one assembled from the owners' parts. Never during a timed
step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lossbench.workloads.training.data.batches import Batches
from lossbench.workloads.training.seat import Seat
from lossbench.workloads.training.tasks import Task

ITEMS = 256
CALIBRATION_ITEMS = 4096


@contextmanager
def holding(seat: Seat, vector: torch.Tensor) -> Iterator[None]:
    """The seat's model with other values, for a while."""
    kept = seat.strategy.flat.values.clone()
    seat.strategy.flat.values.copy_(vector)
    seat.strategy.flat.give_values()
    try:
        yield
    finally:
        seat.strategy.flat.values.copy_(kept)
        seat.strategy.flat.give_values()


def norms_of(model: torch.nn.Module) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]


@torch.no_grad()
def calibrate(model: torch.nn.Module, batches: Batches) -> None:
    """BatchNorm statistics of these very weights, over training data: those of an average are not the average of
    those."""
    norms = norms_of(model)
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over all batches
    model.train()
    for batch in batches.parts("train", items=ITEMS, most=CALIBRATION_ITEMS):
        model(batch[0])
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


@torch.no_grad()
def judge(model: torch.nn.Module, task: Task, batches: Batches, most: int) -> dict[str, float]:
    """Numbers on validation data, and the same on as much training data (`fit_...`)."""
    calibrate(model, batches)
    model.eval()
    out = task.judge(model, batches.parts("valid", items=ITEMS, most=most))
    seen = task.judge(model, batches.parts("train", items=ITEMS, most=most))
    model.train()
    return {**out, **{f"fit_{name}": value for name, value in seen.items()}}


def gradient_square(seat: Seat, task: Task, batches: Batches, most: int) -> float:
    """Of the mean loss over training data, at the values that the model holds now."""
    seat.model.train()
    parts = list(batches.parts("train", items=ITEMS, most=most))
    weights = [len(part[0]) for part in parts]
    total = [torch.zeros_like(parameter) for parameter in seat.strategy.flat.parameters]
    for part, weight in zip(parts, weights, strict=True):
        found = torch.autograd.grad(task.loss(seat.model, part), seat.strategy.flat.parameters)
        torch._foreach_add_(total, list(found), alpha=weight / sum(weights))
    return sum(float(one.double().square().sum()) for one in total)


def judge_all(
    seats: list[Seat], each: Any, task: Task, batches: Batches, most: int, *, gradients: bool = False
) -> dict[str, Any]:
    """Every rank here judges its own model; the mean and the owners' model are judged where rank 0 lives."""
    out: dict[str, Any] = {"workers": [judge(seat.model, task, batches, most) for seat in seats]}
    means = each(lambda n: seats[n].control.gather(seats[n].strategy.flat.values).mean(0))
    owned = each(lambda n: seats[n].assembled())
    first = seats[0]
    if first.door.rank == 0:
        with holding(first, means[0]):
            out["mean"] = judge(first.model, task, batches, most)
            if gradients:
                out["mean"]["gradient_square"] = gradient_square(first, task, batches, most)
        if owned[0] is not None:
            with holding(first, owned[0]):
                out["owners"] = judge(first.model, task, batches, most)
    return out
