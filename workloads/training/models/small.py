"""Small networks: for tests, for two cores, for a first look."""

from __future__ import annotations

import torch
from torch import nn


class Mlp(nn.Sequential):
    """Two hidden layers: 26,122 parameters for 8 x 8 digits."""

    def __init__(self, *, inputs: int, classes: int, width: int = 128) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, classes),
        )


class Linear(nn.Sequential):
    """Softmax regression from zero: convex, so that what theory says of gradients can be seen in few steps."""

    def __init__(self, *, inputs: int, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(inputs, classes))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class Walk(nn.Module):
    """Nothing but a vector: for `random_walk`, whose gradients are noise."""

    def __init__(self, *, size: int = 40_000) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(size))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return (self.vector * noise).sum()
