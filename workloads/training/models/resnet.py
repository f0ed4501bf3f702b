"""ResNets for CIFAR-10 as in He et al. 2015, section 4.2: 3n layers of two convolutions, shortcuts without
parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Block(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, after // before, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self._grows = after > before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.first_norm(self.first(x)))
        out = self.second_norm(self.second(out))
        if self._grows:  # option A: every second pixel, new channels are zero
            missing = out.shape[1] - x.shape[1]
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, missing // 2, missing - missing // 2))
        return F.relu(out + x)


class ResNet(nn.Module):
    """`depth` = 6n + 2: 20 (269,722 parameters), 110 (1,727,962)."""

    def __init__(self, *, depth: int, channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        assert (depth - 2) % 6 == 0
        self.stem = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.stem_norm = nn.BatchNorm2d(16)
        widths = [16] + [width for width in (16, 32, 64) for _ in range((depth - 2) // 6)]
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in zip(widths, widths[1:], strict=False)))
        self.head = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.stem_norm(self.stem(x)))
        return self.head(self.blocks(out).mean((2, 3)))
