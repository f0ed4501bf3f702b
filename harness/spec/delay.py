"""What a profile does to the time of packets: how long they wait, which overtake, when a shared medium lets them go."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from lossbench.spec.userfile import Frozen

Percent: TypeAlias = Annotated[float, Field(ge=0, le=100)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0)]


DEVIATION = {"uniform": 1 / math.sqrt(3), "normal": 1.0, "pareto": 2 / math.sqrt(3), "paretonormal": 0.901}
SHARES = 2000


class Delay(Frozen):
    mean_ms: NotNegative
    """Of every packet."""
    jitter_ms: NotNegative = 0.0
    """Spread around it, as the distribution has it."""
    distribution: Literal["uniform", "normal", "pareto", "paretonormal"] = "uniform"
    """Of the jitter."""
    correlation_percent: Percent = 0.0
    """Of a delay with the one before; netem takes it and correlates nothing."""

    def in_words(self) -> str:
        spread = f", spread by {self.jitter_ms:g} ms ({self.distribution})" if self.jitter_ms else ""
        return f"kept for {self.mean_ms:g} ms{spread}"

    def kept_ms(self) -> tuple[float, float]:
        """How long packets are kept: mean and deviation. None is kept for less than nothing."""
        deviation = self.jitter_ms * DEVIATION[self.distribution]
        if not self.jitter_ms or (self.distribution == "uniform" and self.jitter_ms <= self.mean_ms):
            return self.mean_ms, deviation
        shares = [(number + 0.5) / SHARES for number in range(SHARES)]
        return sum(map(self.quantile_ms, shares)) / SHARES, deviation

    def is_plain(self) -> bool:
        """Is its deviation soon told: without heavy tails, and nothing cut off at no delay?"""
        return not self.jitter_ms or (self.distribution in ("uniform", "normal") and self.quantile_ms(1e-4) > 0)

    def quantile_ms(self, share: float) -> float:
        """So long or shorter is the delay of this share of the packets."""
        normal = NormalDist().inv_cdf(share)
        pareto = (math.pow(1 - share, -1 / 3) - 1.5) * 4 / 3
        spread = {
            "uniform": 2 * share - 1,
            "normal": normal,
            "pareto": pareto,
            "paretonormal": 0.25 * normal + 0.75 * pareto,
        }
        return max(0.0, self.mean_ms + self.jitter_ms * spread[self.distribution])


class Reorder(Frozen):
    percent: Percent
    """Of the packets whose turn it is go at once."""
    gap: Annotated[int, Field(ge=1)] = 1
    """Every how many packets it is a packet's turn."""
    correlation_percent: Percent = 0.0
    """Of one with the one before."""

    def share(self) -> float:
        """Of all packets, those that overtake: after gap - 1 that wait each of the next may, until one does."""
        return self.percent / (100 + (self.gap - 1) * self.percent)


class Slot(Frozen):
    """Packets delivered in slots, as a shared medium does."""

    min_ms: NotNegative
    """Shortest wait for the next slot."""
    max_ms: NotNegative
    """Longest."""
    packets: Annotated[int, Field(ge=0)] = 0
    """That a slot takes."""
    bytes: Annotated[int, Field(ge=0)] = 0
    """That a slot takes."""
