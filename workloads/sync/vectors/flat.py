"""A model's parameters and gradients as one vector each. Modules and optimizers go on seeing their own tensors:
views."""

from __future__ import annotations

from collections.abc import Iterable
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
        kinds = {(p.dtype, p.device) for p in self.parameters}
        if len(kinds) != 1:
            raise ValueError(f"trained parameters must have one type and device, these have {len(kinds)}: {kinds}")
        self.counts = [p.numel() for p in self.parameters]
        self.group_counts = [sum(p.numel() for p in group) for group in trained]
        dtype, device = kinds.pop()
        total = sum(self.counts)
        self.values, self.grads = memory or (
            torch.empty(total, dtype=dtype, device=device),
            torch.zeros(total, dtype=dtype, device=device),
        )
        self._value_views, self._grad_views = self.views(self.values), self.views(self.grads)
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self._value_views, strict=True):
                view.copy_(parameter)
                parameter.data = view

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
            parameter.grad = view

    def check_untouched(self) -> None:
        """A model moved or cast after the strategy was made no longer trains what is exchanged."""
        for parameter, view in zip(self.parameters, self._value_views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                raise RuntimeError("the model was moved or cast after its strategy was made: make the strategy last")

    def check_groups(self, groups: Iterable[dict[str, Any]]) -> None:
        """Parameters that joined the optimizer later, or were frozen or freed, are not exchanged."""
        now = [p for group in groups for p in group["params"] if p.requires_grad]
        if len(now) != len(self.parameters) or any(a is not b for a, b in zip(now, self.parameters, strict=True)):
            raise RuntimeError(
                "the optimizer's parameters changed after its strategy was made (another group, frozen layers): "
                "make a new strategy"
            )
