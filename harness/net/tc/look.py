"""The switch at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from lossbench.net.tc.rtnl import Reader
from lossbench.net.tc.rtnl_messages import Filter, Link, Qdisc


@dataclass(frozen=True, kw_only=True)
class Look:
    """The switch at one moment: read once, asked by all hooks. `reader` for what only one hook wants to know; `hosts`:
    the queues of links that are shaped there, by rank."""

    links: dict[int, Link]
    qdiscs: dict[int, tuple[Qdisc, ...]]
    reader: Reader
    hosts: dict[int, list[Qdisc]] = field(default_factory=dict)
    _filters: dict[tuple[int, int], list[Filter]] = field(default_factory=dict)  # asked for until now

    @classmethod
    def now(cls, reader: Reader) -> Look:
        qdiscs: dict[int, list[Qdisc]] = {}
        for one in reader.qdiscs():
            qdiscs.setdefault(one.index, []).append(one)
        return cls(links=reader.links(), qdiscs={index: tuple(some) for index, some in qdiscs.items()}, reader=reader)

    def filters(self, index: int, parent: int) -> list[Filter]:
        """At one side of an interface, in the order in which packets meet them; read when they are first wanted."""
        if (index, parent) not in self._filters:
            self._filters[index, parent] = self.reader.filters(index, parent)
        return self._filters[index, parent]

    def device(self, name: str) -> Link | None:
        return next((link for link in self.links.values() if link.name == name), None)
