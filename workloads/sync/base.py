"""What a strategy is: how workers stay in agreement. One small interface, one file each; sync.STRATEGIES names them.

strategy = sync.make("bounded_drift", optimizer)
...
loss.backward()
strategy.step()          # instead of optimizer.step()
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch

from lossbench.workloads.sync.absence import GoesOn
from lossbench.workloads.sync.channels.base import Channel
from lossbench.workloads.sync.vectors.flat import Flat
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.packet.layout import among, even


class Strategy(GoesOn):
    """`step` replaces `optimizer.step()`: between backward and the next forward."""

    name: ClassVar[str] = ""
    exchanges: ClassVar[str] = ""  # in words, for tables and docs
    owned: ClassVar[bool] = False  # fixed owners hold the true values of their shard
    lone: ClassVar[bool] = False  # needs a process for every rank, and a real network

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """What this strategy can be told beside what all are told; a strategy's own class has fields."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        channel: Channel,
        *,
        flat: Flat | None = None,
        seed: int = 0,
        clip_norm: float | None = None,
        **options: Any,
    ) -> None:
        self.options = self.told(options)
        if channel.members is not None and not self.goes_on:
            raise ValueError(f"strategy {self.name} can't go on without a rank that is gone (absent=continue)")
        self.optimizer, self.channel, self.seed, self.clip_norm = optimizer, channel, seed, clip_norm
        self.flat = flat or Flat(group["params"] for group in optimizer.param_groups)
        self.accounts: list[Account] = []  # of the latest step: what arrived, per half
        self.network_s: list[float] = []  # of the latest step: time in each half
        self.agree_s = 0.0  # and in agreeing on a norm
        self.optimizer_s = 0.0
        self.aggregated: torch.Tensor | None = None  # its own block of the latest gradient, where there is such a thing
        self.resettle()

    @classmethod
    def told(cls, options: dict[str, Any]) -> Any:
        """As the strategy's own Options; ValueError names what it does not know."""
        known = [one.name for one in fields(cls.Options)]
        if unknown := [name for name in options if name not in known]:
            raise ValueError(f"strategy {cls.name} has no option '{unknown[0]}': {', '.join(known) or 'it has none'}")
        return cls.Options(**options)

    @property
    def label(self) -> str:
        """As tables call it."""
        return self.name

    def step(self) -> None:
        self.flat.check_untouched()
        self.flat.check_groups(self.optimizer.param_groups)
        self.flat.collect()
        self.begin_exchange()
        self.accounts, self.network_s, self.agree_s, self.optimizer_s = [], [], 0.0, 0.0
        with torch.no_grad():
            self.exchange()
            self.flat.give_values()
        self.steps += 1

    def begin_exchange(self) -> None:
        """The step that stands in the packets; DDP has sent its own by now."""
        self.channel.set_step(self.steps)

    def resettle(self) -> None:
        """The vector cut for those who are here."""
        present = self.channel.present
        self.counts = among(even(len(self.flat.values), len(present)), present, self.channel.world)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """What the loop calls instead of the model."""
        return model

    def busy_s(self) -> float:
        """Of the latest step: network and optimizer."""
        return sum(self.network_s) + self.agree_s + self.optimizer_s

    def own_part(self) -> tuple[int, int]:
        """(start, end) of the block this rank owns, where owners are fixed."""
        start = sum(self.counts[: self.channel.rank])
        return start, start + self.counts[self.channel.rank]

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.optimized = state["steps"], -1
        self.optimizer.load_state_dict(state["optimizer"])

    # --- for the strategies ------------------------------------------------------------------------------------------

    def fixed_owners(self) -> tuple[int, ...]:
        return tuple(range(self.channel.world))

    def reduce_half(self, values: torch.Tensor, owners: tuple[int, ...], *, normaliser: str = "count") -> torch.Tensor:
        """The first half, with its account and its time."""
        begun = time.perf_counter()
        mine, account = self.channel.reduce_scatter(values, counts=self.counts, owners=owners, normaliser=normaliser)
        self.network_s.append(time.perf_counter() - begun)
        self.accounts.append(account)
        return mine

    def gather_half(
        self, mine: torch.Tensor, out: torch.Tensor, owners: tuple[int, ...], *, zero_missing: bool = False
    ) -> None:
        begun = time.perf_counter()
        account = self.channel.all_gather(mine, out, counts=self.counts, owners=owners, zero_missing=zero_missing)
        self.network_s.append(time.perf_counter() - begun)
        self.accounts.append(account)

    def optimize_own(self) -> None:
        """The user's optimizer, on the user's parameters."""
        self.flat.give_grads()
        self.optimize(self.optimizer.step)
        self.flat.take_values()

    def optimize(self, step: Callable[[], Any]) -> None:
        """Once in a step, however often its exchange is made."""
        if self.optimized == self.steps:
            return
        begun = time.perf_counter()
        step()
        self.optimized = self.steps
        self.optimizer_s += time.perf_counter() - begun

    def clip(self, gradient: torch.Tensor, *, share: float) -> None:
        """To the global norm. Squares are added up reliably over all ranks: `share` of the sum is the whole's square (1
        if every rank holds another part, 1/N if every rank holds all of it). All ranks scale alike, so they stay
        together."""
        if self.clip_norm is None:
            return
        square = torch.linalg.vector_norm(gradient, dtype=torch.float64).square().reshape(1).cpu()
        begun = time.perf_counter()
        norm = float(self.channel.total(square)[0] * share) ** 0.5
        self.agree_s += time.perf_counter() - begun
        if norm > self.clip_norm:
            gradient.mul_(self.clip_norm / (norm + 1e-6))
