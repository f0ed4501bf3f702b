"""What a strategy is: how workers stay in agreement. One small interface, one file each; sync.STRATEGIES names them.

strategy = sync.make("bounded_drift", optimizer)
...
loss.backward()
strategy.step()          # instead of optimizer.step()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch

from lossbench.contract import derive_seed
from lossbench.workloads.sync.absence import GoesOn
from lossbench.workloads.sync.channels.base import Channel, Half
from lossbench.workloads.sync.patience import Patience
from lossbench.workloads.sync.vectors.flat import Flat
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.packet.layout import among, even


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Options of strategies that exchange the vector."""

    buckets: int = 1  # parts that are exchanged by themselves, the next under way while one is worked on
    patience: float = 0.0  # percentile of each part's first times: how long it is waited for; 0: as the policy says

    def __post_init__(self) -> None:
        if not 1 <= self.buckets <= 256:
            raise ValueError(f"buckets {self.buckets}: from 1 to 256")
        if not 0 <= self.patience <= 100:
            raise ValueError(f"patience {self.patience}: a percentile, from 0 (none) to 100")


@dataclass(frozen=True, eq=False)
class Bucket:
    """A part of the vector that is exchanged by itself: where it begins, how much of it each rank owns."""

    start: int
    counts: tuple[int, ...]

    @property
    def all(self) -> slice:
        return slice(self.start, self.start + sum(self.counts))

    def of(self, rank: int) -> slice:
        low = self.start + sum(self.counts[:rank])
        return slice(low, low + self.counts[rank])


def merged(accounts: list[Account]) -> list[Account]:
    """One for each half, of all buckets together."""
    if len(accounts) == 1:
        return accounts
    out = []
    for half in sorted({account.half for account in accounts}):
        some = [account for account in accounts if account.half == half]
        peers = {peer for one in some for peer in one.arrived}
        nothing = np.zeros(0, np.bool_)
        arrived = {peer: np.concatenate([one.arrived.get(peer, nothing) for one in some]) for peer in sorted(peers)}
        out.append(
            replace(
                some[-1],
                arrived=arrived,
                seconds=sum(one.seconds for one in some),
                waited=sum(one.waited for one in some),
                cut=sum(one.cut for one in some),
                lost=sum(one.lost for one in some),
                withheld=sum(one.withheld for one in some),
            )
        )
    return out


class Strategy(GoesOn):
    """`step` replaces `optimizer.step()`: between backward and the next forward."""

    name: ClassVar[str] = ""
    exchanges: ClassVar[str] = ""  # in words, for tables and docs
    coded: ClassVar[bool] = True  # its numbers go through the channel's two halves, where a coding can change them
    brings: ClassVar[tuple[str, ...]] = ()  # codings of its own, around the channel already
    differences: ClassVar[bool] = True  # its first half carries what is added up: gradients; else models
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
        self.patience = Patience(getattr(self.options, "patience", 0.0))
        self._gathers: list[Half] = []
        self.watched: torch.Tensor | None = None  # parameters of which strategies that average models keep
        self.before: torch.Tensor | None = None  # what they were before the latest exchange
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

    @property
    def every(self) -> int:
        """Steps of which one has an exchange."""
        return int(getattr(self.options, "every", 1))

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
        """The step that stands in the packets; DDP has sent its own by now. What an exchange that failed has left under
        way is nobody's any more."""
        self._gathers = []
        self.channel.set_step(self.steps)

    def resettle(self) -> None:
        """The vector cut into buckets, and those among whoever is here."""
        present, world = self.channel.present, self.channel.world
        sizes = even(len(self.flat.values), getattr(self.options, "buckets", 1))
        starts = [0, *accumulate(sizes)]
        self.buckets = [
            Bucket(start, among(even(size, len(present)), present, world))
            for start, size in zip(starts, sizes, strict=False)
        ]

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """What the loop calls instead of the model."""
        return model

    def busy_s(self) -> float:
        """Of the latest step: network and optimizer."""
        return sum(self.network_s) + self.agree_s + self.optimizer_s

    def own_parts(self) -> list[slice]:
        """Of the vector: what this rank owns, where owners are fixed."""
        return [bucket.of(self.channel.rank) for bucket in self.buckets]

    def owners_of(self, elements: torch.Tensor) -> torch.Tensor:
        """Who owns each of these, where owners are fixed."""
        edges = torch.tensor([0, *accumulate(count for bucket in self.buckets for count in bucket.counts)])
        return (torch.bucketize(elements, edges, right=True) - 1) % self.channel.world

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.optimized = state["steps"], -1
        self.optimizer.load_state_dict(state["optimizer"])

    # --- for the strategies ------------------------------------------------------------------------------------------

    def fixed_owners(self) -> tuple[int, ...]:
        return tuple(range(self.channel.world))

    def drawn_owners(self) -> tuple[int, ...]:
        """A permutation that all workers draw alike: the rank's entry is the block that it averages in this step."""
        present, owners = self.channel.present, list(range(self.channel.world))
        drawn = np.random.default_rng(derive_seed(self.seed, "owners", self.steps)).permutation(len(present))
        for rank, place in zip(present, drawn.tolist(), strict=True):
            owners[rank] = present[place]
        return tuple(owners)

    def begin_scatter(
        self, values: torch.Tensor, owners: tuple[int, ...], *, normaliser: str = "count"
    ) -> Iterator[tuple[Bucket, torch.Tensor]]:
        """The first half, bucket by bucket: (bucket, the mean of its own block), the next ones under way meanwhile."""
        begun, under_way = time.perf_counter(), []
        for number, bucket in enumerate(self.buckets):
            how: dict[str, Any] = {"counts": bucket.counts, "owners": owners, "normaliser": normaliser, "slot": number}
            with self.patience.of("scatter", number, self.channel):
                under_way.append(self.channel.begin_scatter(values[bucket.all], **how))
        yield from self._landed("scatter", under_way, begun)

    def begin_gather(
        self, bucket: Bucket, mine: torch.Tensor, out: torch.Tensor, owners: tuple[int, ...], **how: Any
    ) -> None:
        """The second half of a bucket; `end_gather` waits for all of them."""
        number = self.buckets.index(bucket)
        how |= {"counts": bucket.counts, "owners": owners, "slot": number}
        with self.patience.of("gather", number, self.channel):
            self._gathers.append(self.channel.begin_gather(mine, out[bucket.all], **how))

    def end_gather(self) -> None:
        under_way, self._gathers = self._gathers, []
        for _ in self._landed("gather", under_way, time.perf_counter()):
            pass

    def _landed(self, name: str, under_way: list[Half], begun: float) -> Iterator[tuple[Bucket, torch.Tensor]]:
        """With their account and their time: that which was waited for."""
        accounts, waited = [], 0.0
        for number, (bucket, half) in enumerate(zip(self.buckets, under_way, strict=True)):
            out, account = half.wait()
            self.patience.heard(name, number, account.waited)
            waited += time.perf_counter() - begun
            accounts.append(account)
            yield bucket, out
            begun = time.perf_counter()
        self.network_s.append(waited)
        self.accounts += merged(accounts)

    def optimize_own(self) -> None:
        """The user's optimizer, on the user's parameters."""
        self.flat.give_grads()
        self.optimize(self.optimizer.step)
        self.flat.take_values()

    def optimize(self, step: Callable[[], Any]) -> None:
        """Once in a step, however often its exchange is made."""
        if self.optimized != self.steps:
            self.timed(step)

    def timed(self, step: Callable[[], Any]) -> None:
        begun = time.perf_counter()
        step()
        self.optimized = self.steps
        self.optimizer_s += time.perf_counter() - begun

    def clip_alone(self, gradient: torch.Tensor) -> None:
        """To this worker's own norm: nobody is asked, and workers may scale differently."""
        if self.clip_norm is not None:
            self._scale(gradient, float(torch.linalg.vector_norm(gradient, dtype=torch.float64)))

    def clip(self, gradient: torch.Tensor, *, share: float) -> None:
        """To the global norm. Squares are added up reliably over all ranks: `share` of the sum is the whole's square (1
        if every rank holds another part, 1/N if every rank holds all of it). All ranks scale alike, so they stay
        together. That is an exchange of its own: a step without one clips alone."""
        if self.clip_norm is None:
            return
        if self.every > 1:
            self.clip_alone(gradient)
            return
        square = torch.linalg.vector_norm(gradient, dtype=torch.float64).square().reshape(1).cpu()
        begun = time.perf_counter()
        norm = float(self.channel.total(square)[0] * share) ** 0.5
        self.agree_s += time.perf_counter() - begun
        self._scale(gradient, norm)

    def _scale(self, gradient: torch.Tensor, norm: float) -> None:
        if self.clip_norm is not None and norm > self.clip_norm:
            gradient.mul_(self.clip_norm / (norm + 1e-6))
