"""The switch at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from lossbench.net.tc.rtnl import Reader
from lossbench.net.tc.rtnl_messages import Link, Qdisc


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
