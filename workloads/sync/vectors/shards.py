"""An optimizer whose state lives at the shard's owner: the user's optimizer class on a part of the vector."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from lossbench.workloads.sync.vectors.flat import Flat
from lossbench.workloads.transport.packet.layout import even

# Their update of an element depends on that element alone: they may be cut anywhere. Whoever is not named here
# (Adafactor, LAMB, Muon, a user's own) sees whole tensors.
ELEMENTWISE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")


def is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__name__ in ELEMENTWISE and type(optimizer).__module__.startswith("torch.optim")


def cut(flat: Flat, world: int, *, whole_tensors: bool) -> tuple[int, ...]:
    """How many elements each rank owns; rank r's shard follows rank r-1's."""
    if not whole_tensors:
        return even(sum(flat.counts), world)
    total, done, counts = sum(flat.counts), 0, [0] * world
    for count in flat.counts:  # to the rank in whose even share the tensor's middle lies
        owner = min(int((done + count / 2) * world / total), world - 1)
        counts[owner] += count
        done += count
    return tuple(counts)


Learned = tuple[int, int, dict[str, Any]]  # from, to: what an optimizer keeps of these elements


class ShardOptimizer:
    """Steps its own shard of `flat.values`; options are taken from the user's optimizer anew at every step."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        flat: Flat,
        *,
        own: slice,
        whole_tensors: bool,
        learned: list[Learned] | None = None,
    ) -> None:
        """`own`: of the vector. `learned`: by the optimizers of the shards before these; none: what the user's own has
        learned is taken over. What nobody has learned begins afresh, with a count of steps of its own."""
        start, count = own.start, own.stop - own.start
        self._outer, self.start = optimizer, start
        borders = sorted({edge for low, high, _ in learned or () for edge in (low, high)})
        self._slices: list[tuple[torch.nn.Parameter, int]] = []  # with where it begins in the shard
        groups, at = [], 0
        for group, size in zip(optimizer.param_groups, flat.group_counts, strict=True):
            wanted = _within(flat, at, at + size, start, start + count, whole_tensors=whole_tensors, borders=borders)
            parts = []
            for low, high, shape in wanted:
                part = torch.nn.Parameter(flat.values[low:high].view(shape))
                self._slices.append((part, low - start))
                parts.append(part)
            groups.append({**_options(group), "params": parts})
            at += size
        self.inner = _like(optimizer, groups) if self._slices else None
        if self.inner is not None:
            for part, low in self._slices:
                if learned is None:
                    found = _state_of(optimizer, flat, start + low, part)
                else:
                    found = _cut_of(learned, start + low, part)
                if found:
                    self.inner.state[part] = found

    def learned(self) -> list[Learned]:
        """For whoever owns these elements next."""
        state = self.inner.state if self.inner is not None else {}
        return [
            (self.start + low, self.start + low + part.numel(), dict(state[part]))
            for part, low in self._slices
            if part in state
        ]

    def step(self, gradient: torch.Tensor) -> None:
        if self.inner is None:
            return
        for part, at in self._slices:
            part.grad = gradient[at : at + part.numel()].view(part.shape)
        for mine, theirs in zip(self.inner.param_groups, self._outer.param_groups, strict=True):
            mine.update(_options(theirs))
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.inner is None else self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.inner is not None:
            self.inner.load_state_dict(state)


def _state_of(optimizer: torch.optim.Optimizer, flat: Flat, start: int, part: torch.nn.Parameter) -> dict[str, Any]:
    """What the user's optimizer has learned of this part (from a checkpoint, or from steps made before): what has an
    entry for every element is cut like the vector, the rest (the number of steps) is taken as it is."""
    out: dict[str, Any] = {}
    end, at = start + part.numel(), 0
    for parameter, count in zip(flat.parameters, flat.counts, strict=True):
        low, high = max(at, start), min(at + count, end)
        for key, value in optimizer.state.get(parameter, {}).items() if low < high else ():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.dim():
                room = out.setdefault(key, torch.zeros(part.numel(), dtype=_kind(value, part), device=value.device))
                room[low - start : high - start] = value.reshape(-1)[low - at : high - at]
            else:
                out.setdefault(key, value.clone() if isinstance(value, torch.Tensor) else value)
        at += count
    return {
        k: v.view(part.shape) if isinstance(v, torch.Tensor) and v.numel() == part.numel() and v.dim() else v
        for k, v in out.items()
    }


def _kind(value: torch.Tensor, part: torch.nn.Parameter) -> torch.dtype:
    return part.dtype if value.is_floating_point() else value.dtype


def _cut_of(learned: list[Learned], start: int, part: torch.nn.Parameter) -> dict[str, Any]:
    """Of the piece that this part lies in: parts are cut at the pieces' borders."""
    for low, high, state in learned:
        if low <= start and start + part.numel() <= high:
            at, length = start - low, part.numel()
            return {
                k: v.reshape(-1)[at : at + length].view(part.shape).to(part.device, copy=True)
                if isinstance(v, torch.Tensor) and v.dim() and v.numel() == high - low
                else v.clone()
                if isinstance(v, torch.Tensor)
                else v
                for k, v in state.items()
            }
    return {}


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _within(
    flat: Flat, low: int, high: int, start: int, end: int, *, whole_tensors: bool, borders: Sequence[int] = ()
) -> list[tuple[int, int, Sequence[int]]]:
    """What of [low, high) lies in [start, end): one run of elements, cut at the borders, or tensor by tensor."""
    low, high = max(low, start), min(high, end)
    if low >= high:
        return []
    if not whole_tensors:
        edges = [low, *(edge for edge in borders if low < edge < high), high]
        return [(a, b, (b - a,)) for a, b in pairwise(edges)]
    out: list[tuple[int, int, Sequence[int]]] = []
    at = 0
    for parameter in flat.parameters:
        if low <= at < high:
            out.append((at, at + parameter.numel(), parameter.shape))
        at += parameter.numel()
    return out


def _like(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Groups may be empty here, but torch refuses an empty list of all parameters only."""
    known = inspect.signature(type(optimizer).__init__).parameters
    defaults = {key: value for key, value in optimizer.defaults.items() if key in known}
    return type(optimizer)(groups, **defaults)
