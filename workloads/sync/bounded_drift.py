"""Weintraub et al. 2025: unbiased gradient aggregation at a shard's owner, and bounded-drift broadcasts of its values.

Half 1 carries gradients to the owner, who steps its shard with an optimizer whose state only it has; half 2 carries the
new VALUES, so that one later success wipes out earlier losses. Lost values: the worker keeps its old ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lossbench.workloads.sync.base import Bucket, Buckets, Strategy
from lossbench.workloads.sync.vectors.shards import Learned, ShardOptimizer, cut, is_elementwise
from lossbench.workloads.transport.packet.layout import among


class BoundedDrift(Strategy):
    name = "bounded_drift"
    exchanges = "gradients, updated parameters"
    owned = True
    goes_on = True
    if_gone = ", whose shard is divided, its optimizer's state fresh"

    @dataclass(frozen=True, kw_only=True)
    class Options(Buckets):
        normaliser: str = "expected"  # unbiased, as in the paper; count: the mean of what arrived

    @property
    def label(self) -> str:
        return self.name if self.options.normaliser == "expected" else f"{self.name} {self.options.normaliser}"

    def __init__(self, *given: Any, **keys: Any) -> None:
        self.shards: list[ShardOptimizer] = []  # one for each bucket
        self._steps_now = True
        super().__init__(*given, **keys)

    def resettle(self) -> None:
        """Every owner's values, and what its optimizer has learned of them, to whoever owns them from now on."""
        learned = self._learned() if self.shards else None
        super().resettle()
        whole = not is_elementwise(self.optimizer)
        if whole:  # an optimizer that looks at whole tensors gets whole tensors
            if self.options.buckets > 1:
                raise ValueError(f"{type(self.optimizer).__name__} needs whole tensors: buckets = 1")
            present = self.channel.present
            shares = cut(self.flat, len(present), whole_tensors=True)
            self.buckets = [Bucket(0, among(shares, present, self.channel.world))]
        self.shards = [
            ShardOptimizer(self.optimizer, self.flat, own=own, whole_tensors=whole, learned=learned)
            for own in self.own_parts()
        ]

    def _learned(self) -> list[Learned]:
        """Rank by rank: their values to all; what their optimizers have learned."""
        members = self.channel.members
        assert members is not None
        mine = [] if members.new else self.own_parts()  # whoever has just come knows nothing yet
        values = [(own.start, self.flat.values[own]) for own in mine]
        state = [] if members.new else [piece for shard in self.shards for piece in shard.learned()]
        out: list[Learned] = []
        for rank in self.channel.present:
            said = members.told_by(rank, {"values": values, "state": state})
            for start, part in said["values"]:
                self.flat.values[start : start + len(part)] = part.to(self.flat.values)
            out += said["state"]
        return out

    def _step(self) -> None:
        values, owners = self.flat.values, self.fixed_owners()
        self._steps_now = self.optimized != self.steps  # an exchange that is made again does not step again
        means = self.begin_scatter(self.flat.grads, owners, normaliser=self.options.normaliser)
        if self.clip_norm is None:
            blocks = []
            for bucket, gradient in means:
                blocks.append(gradient)
                self._move(bucket, gradient, values, owners)
            self.aggregated = torch.cat(blocks)
        else:
            self._clipped(list(means), values, owners)
        self.end_gather()
        self.optimizer._opt_called = True  # learning-rate schedules look whether it stepped

    def _clipped(self, means: list[tuple[Bucket, torch.Tensor]], values: torch.Tensor, owners: tuple[int, ...]) -> None:
        """The norm is of all buckets."""
        gradient = torch.cat([mine for _, mine in means])
        self.aggregated = gradient.clone()
        self.clip(gradient, share=1.0)
        parts = torch.split(gradient, [len(mine) for _, mine in means])
        for (bucket, _), part in zip(means, parts, strict=True):
            self._move(bucket, part, values, owners)

    def _move(self, bucket: Bucket, gradient: torch.Tensor, values: torch.Tensor, owners: tuple[int, ...]) -> None:
        """The owner steps its part of a bucket, and says its values."""
        shard = self.shards[self.buckets.index(bucket)]
        if self._steps_now:
            self.timed(lambda: shard.step(gradient))
        self.begin_gather(bucket, values[bucket.of(self.channel.rank)], values, owners)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "optimizer": [shard.state_dict() for shard in self.shards]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.optimized = state["steps"], -1
        for shard, found in zip(self.shards, state["optimizer"], strict=True):
            shard.load_state_dict(found)
