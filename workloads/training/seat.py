"""One rank's things: model, optimizer, strategy, and its place among the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from lossbench.contract import Door
from lossbench.workloads.sync.base import Strategy
from lossbench.workloads.training.crew import Control
from lossbench.workloads.training.measure import DriftMeter


@dataclass(kw_only=True)
class Seat:
    door: Door
    model: torch.nn.Module
    strategy: Strategy
    control: Control
    meter: DriftMeter
    losses: list[float] = field(default_factory=list)
    arrived: list[list[float]] = field(default_factory=lambda: [[], []])  # per half, per step
    weights: list[list[float]] = field(default_factory=list)  # of every worker in this owner's mean, where measured
    cut: int = 0  # packets that our own deadline cut, or that a peer had no room for: not the network's doing
    expected: int = 0

    def assembled(self) -> torch.Tensor | None:
        """Every owner's part of the parameters: the true model where owners are fixed. All ranks call this together."""
        if not self.strategy.owned:
            return None
        mine = torch.zeros_like(self.strategy.flat.values)
        for own in self.strategy.own_parts():
            mine[own] = self.strategy.flat.values[own]
        return self.control.gather(mine).sum(0)

    def took(self, step: int, loss: float, compute_s: float) -> dict[str, Any]:
        """The record of a step."""
        accounts, seconds = self.strategy.accounts, self.strategy.network_s
        self.losses.append(loss)
        for half, account in enumerate(accounts[:2]):
            self.arrived[half].append(account.fraction)
            self.cut += account.cut + account.withheld
            self.expected += sum(len(bits) for bits in account.arrived.values())
        out: dict[str, Any] = {
            "step": step,
            "loss": loss,
            "compute_ms": round(1000 * compute_s, 3),
            "optimizer_ms": round(1000 * self.strategy.optimizer_s, 3),
        }
        if self.strategy.agree_s:
            out["agree_ms"] = round(1000 * self.strategy.agree_s, 3)
        for number, spent in enumerate(seconds, start=1):
            out[f"half_{number}_ms"] = round(1000 * spent, 3)
        for number, account in enumerate(accounts, start=1):
            out[f"arrived_{number}"] = round(account.fraction, 5)
            out[f"from_{number}"] = {peer: round(share, 4) for peer, share in account.per_peer().items()}
            out[f"ended_{number}"] = account.ended
            if account.cut or account.withheld:
                out[f"cut_{number}"] = account.cut + account.withheld
        return out

    def share_arrived(self, half: int) -> float | None:
        past = self.arrived[half]
        return sum(past) / len(past) if past else None
