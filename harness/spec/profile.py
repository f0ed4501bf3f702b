"""A profile: what is done to packets, one TOML file each in netem_profiles/, whatever backend does it."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from lossbench.contract import HALVES, KINDS
from lossbench.errors import UsageError
from lossbench.spec import lossmodel
from lossbench.spec.delay import Delay, Percent, Reorder, Slot
from lossbench.spec.losses import BlockLoss, GilbertElliottLoss, IidLoss, Loss, State4Loss, TraceLoss
from lossbench.spec.lossmodel import Chain
from lossbench.spec.userfile import Frozen, check, did_you_mean, read_toml, shown

MAX_LISTED = 16  # ports of one kind
Word: TypeAlias = Annotated[int, Field(ge=0, le=2**32)]
Range: TypeAlias = tuple[Word, Word]  # first and one past the last
Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]


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

    def in_words(self) -> str:
        ports = [str(port) for port in (*self.source_ports, *self.destination_ports)]
        words = [
            "/".join(filter(None, (self.protocol, ",".join(ports)))) or ("" if self.destinations else "all packets")
        ]
        words += [f"DSCP {self.dscp}"] if self.dscp is not None else []
        words += [f"from {','.join(self.sources)}"] if self.sources else []
        words += [f"to {','.join(self.destinations)}"] if self.destinations else []
        words += ["our datagrams"] if self.datagram is not None else []
        return " ".join(filter(None, words))

    def asks_for_ports(self) -> bool:
        """Or for more of what only the first fragment of a datagram has."""
        return bool(self.source_ports or self.destination_ports or self.datagram is not None)


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

    def in_words(self) -> str:
        """What it does, as people say it: 5 % lost, in bursts of 8 on average; kept for 20 ms."""
        out = [f"{100 * self.mean_loss():.3g} % lost{self._how_lost()}"] if self.mean_loss() else []
        out += [self.delay.in_words()] if self.delay is not None else []
        out += [f"{100 * self.reorder.share():.3g} % overtake"] if self.reorder is not None else []
        out += [f"slots {self.slot.min_ms:g} to {self.slot.max_ms:g} ms apart"] if self.slot is not None else []
        out += [f"{self.duplicate_percent:g} % delivered twice"] if self.duplicate_percent else []
        out += [f"{self.corrupt_percent:g} % damaged"] if self.corrupt_percent else []
        out += [f"{self.rate_mbit:g} Mbit/s"] if self.rate_mbit is not None else []
        out += [f"at most {self.queue_limit_packets} packets wait"] if self.queue_limit_packets else []
        out += ["marked instead of lost where the packet allows it"] if self.ecn else []
        said = "; ".join(out) or "nothing lost"
        return said if self.match.is_everything() else f"of {self.match.in_words()}: {said}"

    def _how_lost(self) -> str:
        if isinstance(self.loss, TraceLoss):
            trace = f"a trace of {len(self.loss.pattern())} packets"
            return (
                f", as in {trace}, again and again"
                if self.loss.loop
                else f" of the first packets, as in {trace}; then none"
            )
        if isinstance(self.loss, BlockLoss):
            return ", whole blocks at a time"
        chain = None if isinstance(self.loss, IidLoss) else self.chain()
        return "" if chain is None else f", in bursts of {lossmodel.burst_mean(chain):.3g} on average"

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
            step = f"{did_you_mean(name_or_path, names())} (or give a .toml file)"
            raise UsageError(f"no profile '{shown(name_or_path)}'", next_step=step)
    data = read_toml(path)
    data.setdefault("name", path.stem)
    read_trace_beside(data, path.parent)
    return check(Profile, data, origin=str(path))


def read_trace_beside(data: dict[str, Any], folder: Path) -> None:
    """Of a profile as it was written: its trace becomes a part of it, so that nothing depends on the file any more."""
    if name := trace_of(data):
        data["loss"] |= {"bits": _read_trace(folder / name), "file": ""}


def trace_of(data: dict[str, Any]) -> str:
    """The file that a profile as it was written takes its losses from; empty if there is none."""
    loss = data.get("loss")
    own = isinstance(loss, dict) and loss.get("model") == "trace" and not loss.get("bits")
    return str(loss.get("file") or "") if own else ""  # type: ignore[union-attr]


def _read_trace(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise UsageError(f"{shown(path)}: the trace can't be read ({shown(error)})") from None
