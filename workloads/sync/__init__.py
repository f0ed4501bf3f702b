"""Strategies: how workers stay in agreement when packets get lost. Chosen by name, three lines in any training loop.

import torch.distributed as dist, lossbench.torch
from lossbench import sync
dist.init_process_group("lossy")
strategy = sync.make("bounded_drift", optimizer)      # then strategy.step() instead of optimizer.step()

May import: workloads.collective, workloads.transport, workloads.errors."""

from __future__ import annotations

import difflib
from typing import Any

import torch

from lossbench.contract import by_path
from lossbench.workloads.sync.base import Strategy
from lossbench.workloads.sync.bounded_drift import BoundedDrift
from lossbench.workloads.sync.channels.base import Channel
from lossbench.workloads.sync.channels.genuine import Genuine
from lossbench.workloads.sync.coding import check as check_codings
from lossbench.workloads.sync.coding import coding
from lossbench.workloads.sync.coding.around import Around
from lossbench.workloads.sync.ddp import Ddp
from lossbench.workloads.sync.gradient_averaging import GradientAveraging
from lossbench.workloads.sync.local_steps import LocalSteps
from lossbench.workloads.sync.none import Alone
from lossbench.workloads.sync.optireduce import OptiReduce
from lossbench.workloads.sync.reliable import Reliable
from lossbench.workloads.sync.rps import Rps

STRATEGIES: dict[str, type[Strategy]] = {
    one.name: one for one in (Alone, Reliable, GradientAveraging, Rps, BoundedDrift, Ddp, LocalSteps, OptiReduce)
}

__all__ = ["STRATEGIES", "Around", "Channel", "Genuine", "Strategy", "check_codings", "coding", "find", "make"]


def find(name: str) -> type[Strategy]:
    """By name, or a user's own by its import path: `my_module:Mine`. ValueError says what is wrong."""
    found: Any = by_path(name) if ":" in name else STRATEGIES.get(name)
    if found is None:
        near = difflib.get_close_matches(name, STRATEGIES, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"no strategy '{name}'; {guess}known are {', '.join(STRATEGIES)}; or module:Class of your own")
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise ValueError(f"{name} is not a lossbench.sync.Strategy")
    return found


def make(name: str, optimizer: torch.optim.Optimizer, channel: Channel | None = None, **options: Any) -> Strategy:
    """A strategy by name; without a channel: over the default process group, which must be "lossy"."""
    strategy = find(name)(optimizer, channel or Genuine.of_default_group(), **options)
    strategy.join()
    return strategy
