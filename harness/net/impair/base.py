"""What every backend offers, and where it acts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.counted import Counters, Detour, ReadBack
from harness.net.rtnl import Reader
from harness.net.rtnl_messages import Link, Qdisc
from harness.placement import Hook, Rule


@dataclass(frozen=True, kw_only=True)
class HookPoint:
    """A hook made concrete: the switch's port in this network."""

    hook: Hook
    port_index: int
    mtu: int


@dataclass(frozen=True, kw_only=True)
class Look:
    """The switch at one moment: read once, asked by all hooks. `reader` for what only one hook wants to know; `hosts`:
    the queues of links that are shaped there, by rank."""

    links: dict[int, Link]
    qdiscs: dict[int, tuple[Qdisc, ...]]
    reader: Reader
    hosts: dict[int, list[Qdisc]] = field(default_factory=dict)

    @classmethod
    def now(cls, reader: Reader) -> Look:
        qdiscs: dict[int, list[Qdisc]] = {}
        for one in reader.qdiscs():
            qdiscs.setdefault(one.index, []).append(one)
        return cls(links=reader.links(), qdiscs={index: tuple(some) for index, some in qdiscs.items()}, reader=reader)

    def device(self, name: str) -> Link | None:
        return next((link for link in self.links.values() if link.name == name), None)


class Backend(Protocol):
    """Puts rules in force at hooks of one network."""

    name: str

    def expect(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        """Every rule that will ever be in force here: those of them that a change leaves alone are not touched by
        it."""
        ...

    def put(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        """In place: no flow is torn, and every packet is counted by the old rules or by the new ones. A rule that was
        in force before goes on where it stood."""
        ...

    def restart(self, point: HookPoint) -> None:
        """Counters at zero and, where a backend can, seeded patterns at their first packet. No traffic flows now."""
        ...

    def read_back(self, point: HookPoint, look: Look) -> list[ReadBack]:
        """What the kernel itself says is in force, one entry per rule."""
        ...

    def counters(self, point: HookPoint, look: Look) -> Counters:
        """Since the last restart, of every rule that was in force here."""
        ...

    def detours(self, point: HookPoint, look: Look, counters: Counters) -> tuple[Detour, ...]:
        """Devices behind the hook that hold packets back."""
        ...

    def state(self) -> dict[str, Any]:
        """What another process needs to read counters later (a standing net)."""
        ...

    def close(self) -> None: ...
