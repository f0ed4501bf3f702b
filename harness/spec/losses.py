"""The loss models that a profile can ask for; lossmodel.py is their mathematics."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from lossbench.spec import lossmodel
from lossbench.spec.delay import Percent
from lossbench.spec.lossmodel import Bits, Chain
from lossbench.spec.userfile import Frozen


class IidLoss(Frozen):
    """Every packet is lost with the same probability, independently (netem: loss random)."""

    model: Literal["iid"]
    """Each packet by itself."""
    percent: Percent
    """Of the packets."""
    correlation_percent: Percent = 0.0
    """netem only; its correlation lowers the rate: better use gilbert_elliott."""

    def chain(self) -> Chain:
        return lossmodel.iid(self.percent / 100)


class GilbertElliottLoss(Frozen):
    """Bursts: a good and a bad state. Either p, r, h, k or the two numbers a person thinks in."""

    model: Literal["gilbert_elliott"]
    """Bursts."""
    mean_percent: Annotated[float, Field(ge=0, lt=100)] | None = None
    """Lost in the long run."""
    burst_packets_mean: Annotated[float, Field(ge=1)] | None = None
    """Lost in a row, on average."""
    p_percent: Percent | None = None
    """Good to bad, per packet."""
    r_percent: Percent | None = None
    """Bad to good, per packet."""
    h_percent: Percent = 0.0
    """Delivered while bad."""
    k_percent: Percent = 100.0
    """Delivered while good."""

    @model_validator(mode="after")
    def _one_way_of_saying_it(self) -> GilbertElliottLoss:
        human = (self.mean_percent is not None, self.burst_packets_mean is not None)
        raw = (self.p_percent is not None, self.r_percent is not None)
        if (all(human), any(raw)) == (True, False):
            if (self.h_percent, self.k_percent) != (0.0, 100.0):
                raise ValueError("h_percent and k_percent go with p_percent and r_percent, not with the means")
            self.chain()
        elif (any(human), all(raw)) != (False, True):
            raise ValueError("give either mean_percent and burst_packets_mean, or p_percent and r_percent")
        return self

    def chain(self) -> Chain:
        if self.mean_percent is not None and self.burst_packets_mean is not None:
            return lossmodel.gilbert_from_means(
                mean=self.mean_percent / 100, burst_packets_mean=self.burst_packets_mean
            )
        assert self.p_percent is not None and self.r_percent is not None
        return lossmodel.gilbert_elliott(
            p=self.p_percent / 100, r=self.r_percent / 100, h=self.h_percent / 100, k=self.k_percent / 100
        )


class State4Loss(Frozen):
    """netem's four-state Markov model, probabilities named as in tc-netem(8)."""

    model: Literal["state4"]
    """netem's four states."""
    p13_percent: Percent
    """Good to lossy burst."""
    p31_percent: Percent = 100.0
    """Lossy burst to good."""
    p32_percent: Percent = 0.0
    """Lossy burst to a good packet inside it."""
    p23_percent: Percent = 100.0
    """From there back to the burst."""
    p14_percent: Percent = 0.0
    """Good to a single loss."""

    @model_validator(mode="after")
    def _rows_fit(self) -> State4Loss:
        if self.p13_percent + self.p14_percent > 100 or self.p31_percent + self.p32_percent > 100:
            raise ValueError("p13 + p14 and p31 + p32 can't exceed 100 %")
        return self

    def chain(self) -> Chain:
        return lossmodel.state4(
            p13=self.p13_percent / 100,
            p31=self.p31_percent / 100,
            p32=self.p32_percent / 100,
            p23=self.p23_percent / 100,
            p14=self.p14_percent / 100,
        )


class TraceLoss(Frozen):
    """A recorded pattern: the i-th matching packet is lost if character i is 1."""

    model: Literal["trace"]
    """As recorded."""
    bits: str = ""
    """0 is delivered, 1 is lost; white space does not count."""
    file: str = ""
    """A text of 0 and 1 beside the profile, instead."""
    loop: bool = True
    """Begin again at its end; else nothing is lost any more."""

    @model_validator(mode="after")
    def _some_pattern(self) -> TraceLoss:
        if bool(self.bits) == bool(self.file):
            raise ValueError("give either bits or file")
        if self.file:
            raise ValueError("a file is read beside a profile's or an experiment's own file: give bits here")
        if self.bits and not re.fullmatch(r"\s*[01][01\s]*", self.bits):
            raise ValueError("bits may hold only 0 and 1")
        return self

    def pattern(self) -> Bits:
        text = "".join(self.bits.split())
        lost: Bits = np.frombuffer(text.encode(), dtype=np.uint8) == ord("1")
        return lost


class BlockLoss(Frozen):
    """Whole blocks of our own datagrams (the papers' shard-level loss): a hash of the header decides. ebpf only."""

    model: Literal["block"]
    """Whole blocks."""
    percent: Percent
    """Of the blocks."""


Loss: TypeAlias = Annotated[
    IidLoss | GilbertElliottLoss | State4Loss | TraceLoss | BlockLoss, Field(discriminator="model")
]
