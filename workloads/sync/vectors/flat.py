"""A model's parameters and gradients as one vector each. Modules and optimizers go on seeing their own tensors:
views. Where types differ the vectors have the widest, and parameters of the others are kept beside them, by copies."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import torch


class Flat:
    """`values` and `grads` are the vectors; groups of the optimizer lie one after the other."""

    def __init__(
        self, groups: Iterable[Iterable[torch.Tensor]], memory: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> None:
        """`memory`: for values and gradients, for example rows of matrices that hold several workers."""
        trained = [[p for p in group if p.requires_grad] for group in groups]
        self.parameters = [p for group in trained for p in group]
        devices = {p.device for p in self.parameters}
        if len(devices) != 1:
            raise ValueError(f"trained parameters must be on one device, these are on {len(devices)}: {devices or '-'}")
        self.counts = [p.numel() for p in self.parameters]
        self.group_counts = [sum(p.numel() for p in group) for group in trained]
        dtype, device = reduce(torch.promote_types, {p.dtype for p in self.parameters}), devices.pop()
        total = sum(self.counts)
        self.values, self.grads = memory or (
            torch.empty(total, dtype=dtype, device=device),
            torch.zeros(total, dtype=dtype, device=device),
        )
        self._value_views, self._grad_views = self.views(self.values), self.views(self.grads)
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self._value_views, strict=True):
                view.copy_(parameter)
                if parameter.dtype == dtype:
                    parameter.data = view
        self._homes = [p.data_ptr() for p in self.parameters]
        # (parameter, its place among values, among gradients) of what is no view
        self._beside = [
            (p, values, grads)
            for p, values, grads in zip(self.parameters, self._value_views, self._grad_views, strict=True)
            if p.dtype != dtype
        ]

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """The vector's parts in the parameters' shapes."""
        parts = torch.split(vector, self.counts)
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    @torch.no_grad()
    def collect(self) -> None:
        """Gradients that autograd or `zero_grad` put elsewhere come back into the vector."""
        for parameter, view in zip(self.parameters, self._grad_views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            if parameter.dtype == view.dtype:
                parameter.grad = view

    @torch.no_grad()
    def give_grads(self) -> None:
        """To parameters that are no views, before the user's own optimizer steps them."""
        for parameter, _, grads in self._beside:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(grads)

    @torch.no_grad()
    def take_values(self) -> None:
        """And what it made of them, into the vector."""
        for parameter, values, _ in self._beside:
            values.copy_(parameter)

    @torch.no_grad()
    def give_values(self) -> None:
        """After an exchange."""
        for parameter, values, _ in self._beside:
            parameter.copy_(values)

    def check_untouched(self) -> None:
        """A model moved or cast after the strategy was made no longer trains what is exchanged."""
        for parameter, home in zip(self.parameters, self._homes, strict=True):
            if parameter.data_ptr() != home:
                raise RuntimeError("the model was moved or cast after its strategy was made: make the strategy last")

    def check_groups(self, groups: Iterable[dict[str, Any]]) -> None:
        """Parameters that joined the optimizer later, or were frozen or freed, are not exchanged."""
        now = [p for group in groups for p in group["params"] if p.requires_grad]
        if len(now) != len(self.parameters) or any(a is not b for a, b in zip(now, self.parameters, strict=True)):
            raise RuntimeError(
                "the optimizer's parameters changed after its strategy was made (another group, frozen layers): "
                "make a new strategy"
            )
