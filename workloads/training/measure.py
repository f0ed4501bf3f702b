"""What is measured beside the loss: how far workers are apart, what theory says about it, how biased gradients are."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from lossbench.contract import derive_seed
from lossbench.workloads.sync.base import Strategy
from lossbench.workloads.training.crew import Control

SAMPLES = 65_536  # parameters looked at, the same on all ranks
LAGS = 16


def stated_limit(p: float) -> float:
    """Squared distance of two workers over the variance of one update, as the paper states it, by a reader's notes."""
    return 2 * p / (1 + p)


def exact_limit(p: float) -> float:
    """For independent updates with zero mean: two workers that do not own the parameter."""
    return 2 * p / (1 - p * p)


def exact_owner_limit(p: float) -> float:
    """Owner against worker."""
    return p / (1 - p)


def predicted(p: float, moved: list[float]) -> float:
    """For any updates: `moved[k-1]` is how far the true values move in k steps, squared. Two workers are stale by S
    and T steps, P(|S-T| = k) = 2 (1-p)^2 p^k / (1-p^2); what lies further back than was looked at counts as the
    last."""
    weights = [2 * (1 - p) ** 2 * p**k / (1 - p * p) for k in range(1, len(moved) + 1)]
    rest = 2 * (1 - p) / (1 + p) * p ** (len(moved) + 1) / (1 - p)
    return sum(w * m for w, m in zip(weights, moved, strict=True)) + rest * (moved[-1] if moved else 0.0)


def mixing(before: torch.Tensor, after: torch.Tensor) -> dict[str, float]:
    """What an exchange leaves of the distance of models (rows) from their mean. RPS' alpha1 is `left` over `apart`, and
    alpha2 `shifted` over `apart`: E[W W'] = alpha1 I + (1 - alpha1) A, E[W A W'] = alpha2 I + (1 - alpha2) A, with A
    the exact mean."""
    mean = before.mean(0)
    return {
        "apart": float((before - mean).square().sum()),
        "left": float((after - mean).square().sum()),
        "shifted": float(len(after) * (after.mean(0) - mean).square().sum()),
    }


class DriftMeter:
    """One rank's part in measuring drift: a sample of all parameters, and the recent past of those it owns."""

    def __init__(self, strategy: Strategy, control: Control, seed: int) -> None:
        self.strategy, self.control = strategy, control
        size = len(strategy.flat.values)
        generator = torch.Generator().manual_seed(derive_seed(seed, "drift sample"))
        chosen = torch.randperm(size, generator=generator)[:SAMPLES].sort().values
        self._scale = size / len(chosen)
        device = strategy.flat.values.device
        owner = strategy.owners_of(chosen)
        self._owner, self._own = owner.to(device), chosen[owner == strategy.channel.rank].to(device)
        self._chosen = chosen.to(device)
        self._past: deque[torch.Tensor] = deque(maxlen=LAGS + 1)

    def after_step(self) -> None:
        self.strategy.watched = self._chosen  # from now on: who measures nothing pays for nothing
        if self.strategy.owned:
            self._past.appendleft(self.strategy.flat.values[self._own])

    def measure(self, arrived: float) -> dict[str, float | list[float]]:
        """All ranks call this together. Squared distances, of the whole vector. `arrived`: share in the second half."""
        rows = self.control.gather(self.strategy.flat.values[self._chosen]).double()
        out: dict[str, float | list[float]] = {"pair": float(2 * rows.var(0).sum()) * self._scale}
        if self.strategy.owned and len(rows) > 2:
            out |= self._of_owned(rows, arrived)
        if self.strategy.before is not None:
            out |= mixing(self.control.gather(self.strategy.before).double(), rows)
        return out

    def _of_owned(self, rows: torch.Tensor, arrived: float) -> dict[str, float | list[float]]:
        apart = rows - rows[self._owner, torch.arange(rows.shape[1], device=rows.device)]
        others = len(rows) - 1
        spread = (apart.square().sum(0) - apart.sum(0).square() / others) / (others - 1)
        moved = self._moved()
        p = 1 - arrived
        out: dict[str, float | list[float]] = {
            "pair_of_workers": float(2 * spread.sum()) * self._scale,
            "owner_and_worker": float(apart.square().sum() / others) * self._scale,
        }
        if moved and 0 < p < 1:
            out |= {
                "moved": moved,
                "stated": stated_limit(p) * moved[0],
                "exact": exact_limit(p) * moved[0],
                "exact_owner": exact_owner_limit(p) * moved[0],
                "predicted": predicted(p, moved),
            }
        return out

    def _moved(self) -> list[float]:
        now, *past = self._past
        mine = torch.tensor([float((now - then).double().square().sum()) for then in past] or [0.0])
        lags = self.control.gather(mine).sum(0) * self._scale
        return [float(square) for square in lags] if past else []


def gradient_bias(strategy: Strategy, control: Control, own: torch.Tensor) -> dict[str, Any]:
    """The aggregated own block against all gradients, gathered reliably: the weight that each worker's got (1/N each if
    nothing is lost), how long the result is along their mean (1 = unbiased), how far off it is. All ranks call this."""
    if strategy.aggregated is None:
        return {}
    rows = torch.cat([control.gather(own)[:, part] for part in strategy.own_parts()], dim=1).double()
    got, true = strategy.aggregated.double(), rows.mean(0)
    weights = torch.linalg.lstsq(rows @ rows.T, rows @ got).solution  # least squares: got = sum of weight x gradient
    return {
        "weights": [float(w) for w in weights],
        "own_weight": float(weights[strategy.channel.rank]) - 1 / len(rows),
        "scale": float(got @ true / (true @ true).clamp(min=1e-30)),
        "error": float((got - true).norm() / true.norm().clamp(min=1e-30)),
    }
