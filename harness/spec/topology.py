"""A star of hosts around one switch, their names and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from lossbench.errors import UsageError
from lossbench.spec.userfile import Frozen

MAX_HOSTS = 250
DATA_INTERFACE = "eth0"
CONTROL_INTERFACE = "ctl0"
SWITCH = "sw"
DATA_BRIDGE, NOWHERE = "br0", "nowhere"  # at the switch
MAC_PREFIX = bytes((0x02, 0x6C, 0x62, 0, 0))  # of every host; its rank follows
CONTROL_MAC_PREFIX = bytes((0x02, 0x6C, 0x62, 0, 1))
NOWHERE_MAC = "02:6c:62:00:02:00"  # of every address that no host has
IPV6_MIN_MTU = 1280
SLOWEST_MBIT, MOST_MBIT = 0.1, 1_000_000
Rate: TypeAlias = Annotated[float, Field(ge=SLOWEST_MBIT, le=MOST_MBIT)]


class Placed(Frozen):
    """A machine of a lab as its host; filled in by --lab."""

    address: str
    """On the data network."""
    control: str
    """On the control network."""
    interface: str
    """Of the data network."""
    control_interface: str = ""
    """Of the control network."""
    mac: str = ""
    """Of the data interface."""


class Topology(Frozen):
    """How many hosts, how big their packets, how fast their links."""

    hosts: Annotated[int, Field(ge=2, le=MAX_HOSTS)] = 4
    """h0, h1, ... around one switch."""
    mtu: Annotated[int, Field(ge=576, le=65535)] = 1500
    """Of the data links."""
    family: Literal["ipv4", "ipv6", "both"] = "both"
    """IP versions that hosts have on the data link."""
    rate_mbit: Rate | None = None
    """Of every link, both directions, unless one is given on its own; none: no limit."""
    uplink_rate_mbit: Rate | None = None
    """From hosts to the switch."""
    downlink_rate_mbit: Rate | None = None
    """From the switch to hosts."""
    machines: tuple[Placed, ...] = ()
    """Of a lab, in the order of ranks; filled in by --lab, none: namespaces."""

    @model_validator(mode="after")
    def _sensible(self) -> Topology:
        if self.family != "ipv4" and self.mtu < IPV6_MIN_MTU:
            raise ValueError(f'the mtu must be at least {IPV6_MIN_MTU} for IPv6: raise it or set family = "ipv4"')
        if self.machines and len(self.machines) != self.hosts:
            raise ValueError(f"{self.hosts} hosts on {len(self.machines)} machines")
        return self

    def uplink_mbit(self) -> float | None:
        return self.uplink_rate_mbit or self.rate_mbit

    def downlink_mbit(self) -> float | None:
        return self.downlink_rate_mbit or self.rate_mbit

    def all_hosts(self) -> tuple[Host, ...]:
        """In the order of their ranks."""
        return _lab(self.machines) if self.machines else _star(self.hosts)

    def host(self, name: str) -> Host:
        """By name; a name that does not exist is the user's mistake."""
        found = next((host for host in self.all_hosts() if host.name == name), None)
        if found is None:
            raise UsageError(f"no such host '{name}'", next_step=f"hosts are h0 to h{self.hosts - 1}")
        return found


@dataclass(frozen=True, kw_only=True)
class Host:
    """A place with its own network stack. Data link: impaired. Control link: never touched."""

    rank: int
    name: str
    port: str  # the switch's side of the data link
    control_port: str
    ipv4: str
    ipv6: str
    control_ipv4: str
    mac: str
    control_mac: str
    interface: str = DATA_INTERFACE
    control_interface: str = CONTROL_INTERFACE

    def addresses(self, family: str) -> tuple[str, ...]:
        return {"ipv4": (self.ipv4,), "ipv6": (self.ipv6,), "both": (self.ipv4, self.ipv6)}[family]

    def address(self, family: str) -> str:
        """The one that workloads use."""
        return self.addresses(family)[0]


@lru_cache(maxsize=8)
def _star(hosts: int) -> tuple[Host, ...]:
    """Names and addresses of namespaces around a switch; everybody else reads them here."""
    return tuple(
        Host(
            rank=rank,
            name=f"h{rank}",
            port=f"p{rank}",
            control_port=f"c{rank}",
            ipv4=f"10.77.0.{rank + 1}",
            ipv6=f"fd6c:6f73:7362::{rank + 1:x}",
            control_ipv4=f"10.78.0.{rank + 1}",
            mac=bytes((*MAC_PREFIX, rank)).hex(":"),
            control_mac=bytes((*CONTROL_MAC_PREFIX, rank)).hex(":"),
        )
        for rank in range(hosts)
    )


@lru_cache(maxsize=8)
def _lab(machines: tuple[Placed, ...]) -> tuple[Host, ...]:
    """A machine has one address on the data network, of either version."""
    return tuple(
        Host(
            rank=rank,
            name=f"h{rank}",
            port=one.interface,
            control_port=one.control_interface,
            ipv4=one.address,
            ipv6=one.address,
            control_ipv4=one.control,
            mac=one.mac,
            control_mac="",
            interface=one.interface,
            control_interface=one.control_interface,
        )
        for rank, one in enumerate(machines)
    )
