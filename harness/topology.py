"""A star of hosts around one switch: names and addresses are functions of the rank, nothing is looked up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from harness.errors import UsageError
from harness.userfile import Frozen

MAX_HOSTS = 250
DATA_INTERFACE = "eth0"
CONTROL_INTERFACE = "ctl0"
SWITCH = "sw"
MAC_PREFIX = bytes((0x02, 0x6C, 0x62, 0, 0))  # of every host; its rank follows
IPV6_MIN_MTU = 1280
Rate: TypeAlias = Annotated[float, Field(ge=0.1, le=1_000_000)]


class Topology(Frozen):
    """How many hosts, how big their packets, how fast their links."""

    hosts: Annotated[int, Field(ge=2, le=MAX_HOSTS)] = 4
    mtu: Annotated[int, Field(ge=576, le=65535)] = 1500
    family: Literal["ipv4", "ipv6", "both"] = "both"
    rate_mbit: Rate | None = None  # both directions, unless one is given on its own
    uplink_rate_mbit: Rate | None = None
    downlink_rate_mbit: Rate | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Topology:
        if self.family != "ipv4" and self.mtu < IPV6_MIN_MTU:
            raise ValueError(f'the mtu must be at least {IPV6_MIN_MTU} for IPv6: raise it or set family = "ipv4"')
        return self

    def uplink_mbit(self) -> float | None:
        return self.uplink_rate_mbit or self.rate_mbit

    def downlink_mbit(self) -> float | None:
        return self.downlink_rate_mbit or self.rate_mbit

    def all_hosts(self) -> tuple[Host, ...]:
        return tuple(Host(rank=rank) for rank in range(self.hosts))

    def host(self, name: str) -> Host:
        """By name; a name that does not exist is the user's mistake."""
        match = re.fullmatch(r"h(\d+)", name)
        if match is None or int(match[1]) >= self.hosts:
            raise UsageError(f"no such host '{name}'", next_step=f"hosts are h0 to h{self.hosts - 1}")
        return Host(rank=int(match[1]))


@dataclass(frozen=True, kw_only=True)
class Host:
    """A place with its own network stack. Data link: impaired. Control link: never touched."""

    rank: int

    @property
    def name(self) -> str:
        return f"h{self.rank}"

    @property
    def port(self) -> str:
        """The switch's side of the data link."""
        return f"p{self.rank}"

    @property
    def control_port(self) -> str:
        return f"c{self.rank}"

    @property
    def ipv4(self) -> str:
        return f"10.77.0.{self.rank + 1}"

    @property
    def ipv6(self) -> str:
        return f"fd6c:6f73:7362::{self.rank + 1:x}"

    @property
    def control_ipv4(self) -> str:
        return f"10.78.0.{self.rank + 1}"

    @property
    def mac(self) -> str:
        return bytes((*MAC_PREFIX, self.rank)).hex(":")

    def addresses(self, family: str) -> tuple[str, ...]:
        return {"ipv4": (self.ipv4,), "ipv6": (self.ipv6,), "both": (self.ipv4, self.ipv6)}[family]

    def address(self, family: str) -> str:
        """The one that workloads use."""
        return self.addresses(family)[0]
