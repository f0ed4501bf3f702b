"""A machine of a lab as a place where ranks run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute

from lossbench.errors import LossbenchError, NotAbleError


@dataclass(frozen=True)
class Remote:
    """See net.host.place.Place: a machine over there. Nothing can be opened on it from here."""

    name: str
    rank: int
    where: str = ""
    group: str = ""

    def inside(self) -> AbstractContextManager[None]:
        raise self._no()

    def netlink(self) -> IPRoute:
        raise self._no()

    def socket(self, family: int, kind: int, protocol: int = 0) -> Any:
        del family, kind, protocol
        raise self._no()

    def read(self, path: str) -> str:
        raise NotAbleError(f"{path} of {self.name} can't be read from here")

    def start(self, command: Any, **_: Any) -> Any:
        raise NotAbleError(f"{command[0]} is started on {self.name} by its agent")

    def _no(self) -> LossbenchError:
        return NotAbleError(f"{self.name} is another machine: its sockets can't be opened here")
