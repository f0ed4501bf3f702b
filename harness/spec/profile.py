"""A profile: what is done to packets, one TOML file each in netem_profiles/, whatever backend does it."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field, field_validator, model_validator

from lossbench.contract import HALVES, KINDS
from lossbench.errors import UsageError
from lossbench.spec import lossmodel
from lossbench.spec.delay import Delay, Percent, Reorder, Slot
from lossbench.spec.lossmodel import Bits, Chain
from lossbench.spec.userfile import Frozen, check, read_toml, shown

MAX_LISTED = 16  # ports of one kind
Word: TypeAlias = Annotated[int, Field(ge=0, le=2**32)]
Range: TypeAlias = tuple[Word, Word]  # first and one past the last
Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]


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


class DatagramMatch(Frozen):
    """Fields of our own datagram header (contract.py). Ranges are [first, one past the last]."""

    kinds: tuple[str, ...] = ("data", "probe")
    """data, marker, ack, reliable, probe."""
    halves: tuple[str, ...] = ()
    """reduce_scatter, all_gather; empty: both."""
    steps: Range | None = None
    """Of training."""
    blocks: Range | None = None
    """Of a half."""

    @field_validator("steps", "blocks")
    @classmethod
    def _not_empty(cls, value: Range | None) -> Range | None:
        if value is not None and value[0] >= value[1]:
            raise ValueError(f"the range from {value[0]} up to {value[1]} is empty")
        return value

    @field_validator("kinds")
    @classmethod
    def _known_kinds(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _known(value, KINDS)

    @field_validator("halves")
    @classmethod
    def _known_halves(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _known(value, HALVES)


def _known(values: tuple[str, ...], names: dict[str, int]) -> tuple[str, ...]:
    for value in values:
        if value not in names:
            raise ValueError(f"'{value}' is none of {', '.join(names)}")
    return values


class Match(Frozen):
    """Which packets a profile acts on; what is not said matches everything."""

    protocol: Literal["tcp", "udp"] | None = None
    """tcp or udp; none: both."""
    source_ports: Annotated[tuple[Port, ...], Field(max_length=MAX_LISTED)] = ()
    """Any of these."""
    destination_ports: Annotated[tuple[Port, ...], Field(max_length=MAX_LISTED)] = ()
    """Any of these."""
    dscp: Annotated[int, Field(ge=0, le=63)] | None = None
    """Of the IP header."""
    destinations: tuple[str, ...] = ()
    """Host names (h3) or addresses, with or without prefix length."""
    sources: tuple[str, ...] = ()
    """The same for who sends."""
    datagram: DatagramMatch | None = None
    """Only datagrams with our own header, with these fields."""

    @field_validator("destinations", "sources")
    @classmethod
    def _places(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for place in value:
            if not re.fullmatch(r"h\d+", place):
                try:
                    ipaddress.ip_network(place)
                except ValueError:
                    raise ValueError(f"'{place}' is neither a host name such as h3 nor an address") from None
        return value

    def is_everything(self) -> bool:
        return self == Match()


class Profile(Frozen):
    """One network condition."""

    name: str = ""
    """Default: the file's name."""
    why: str
    """Which real thing this stands for."""
    source: str = ""
    """Where its numbers come from."""
    seed: int | None = None
    """Pins the pattern whatever the run's seed is."""
    loss: Loss | None = None
    """Which packets are lost."""
    delay: Delay | None = None
    """How long packets wait."""
    reorder: Reorder | None = None
    """Which overtake those that wait."""
    slot: Slot | None = None
    """Packets go in slots, as on a shared medium."""
    duplicate_percent: Percent = 0.0
    """Of the packets, delivered twice."""
    corrupt_percent: Percent = 0.0
    """Of the packets, with one bit turned over."""
    rate_mbit: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """A limit of this profile's own; a topology's rate is usually meant."""
    queue_limit_packets: Annotated[int, Field(ge=1)] | None = None
    """That may wait; none: enough for the delay."""
    ecn: bool = False
    """Mark instead of drop where the packet allows it."""
    match: Match = Match()
    """Which packets it is about; none: all."""

    @model_validator(mode="after")
    def _sensible(self) -> Profile:
        if self.reorder is not None and (self.delay is None or self.delay.mean_ms == 0):
            raise ValueError("reorder needs a delay: packets overtake those that wait")
        return self

    def warnings(self) -> list[str]:
        """What a user should know before believing this profile."""
        out = []
        if isinstance(self.loss, IidLoss) and self.loss.correlation_percent:
            out.append(
                f"profile {self.name}: netem's correlation changes the loss rate itself, so only the packet counts are "
                "proven, not the rate; gilbert_elliott gives bursts with the rate you ask for"
            )
        if self.delay is not None and self.delay.correlation_percent:
            out.append(
                f"profile {self.name}: netem takes a delay correlation and correlates nothing (measured: it uses the "
                "correlated number modulo the spread); the delays will be independent"
            )
        return out

    def chain(self) -> Chain | None:
        """The Markov chain of this profile's loss; None if it is not a chain."""
        if self.loss is None:
            return lossmodel.iid(0.0)
        if isinstance(self.loss, IidLoss) and self.loss.correlation_percent:
            return None
        return self.loss.chain() if isinstance(self.loss, IidLoss | GilbertElliottLoss | State4Loss) else None

    def mean_loss(self) -> float:
        """Long-run share of matching packets that are lost."""
        if isinstance(self.loss, TraceLoss):
            return float(self.loss.pattern().mean())
        if isinstance(self.loss, BlockLoss | IidLoss):
            return self.loss.percent / 100
        chain = self.chain()
        assert chain is not None
        return lossmodel.mean_loss(chain)


FOLDER = Path(__file__).resolve().parent.parent / "netem_profiles"


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name_or_path: str) -> Profile:
    """A shipped profile by name, or any file by path."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = FOLDER / f"{name_or_path}.toml"
        if name_or_path not in names():
            step = f"known: {', '.join(names())}; or give a file"
            raise UsageError(f"no profile '{shown(name_or_path)}'", next_step=step)
    data = read_toml(path)
    data.setdefault("name", path.stem)
    read_trace_beside(data, path.parent)
    return check(Profile, data, origin=str(path))


def read_trace_beside(data: dict[str, Any], folder: Path) -> None:
    """Of a profile as it was written: its trace becomes a part of it, so that nothing depends on the file any more."""
    loss = data.get("loss")
    if isinstance(loss, dict) and loss.get("model") == "trace" and loss.get("file") and not loss.get("bits"):
        loss["bits"], loss["file"] = _read_trace(folder / str(loss["file"])), ""


def _read_trace(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise UsageError(f"{shown(path)}: the trace can't be read ({shown(error)})") from None
