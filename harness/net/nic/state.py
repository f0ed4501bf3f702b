"""What stands on a NIC, in its journal's nic.json: who may change it, until when, and whether its time is over.

Times are seconds of CLOCK_BOOTTIME, which the kernel's own deadline counts too: no clock that is set back prolongs
them, and a machine that slept has not saved up anything."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lossbench.net.journal import Journal
from lossbench.net.tc.hook import Side

FILE = "nic.json"
APPLYING, UNCONFIRMED, STANDING, ATTACHED = "applying", "unconfirmed", "standing", "attached"
SETUP_S = 20.0  # more than making it takes; a maker that dies is noticed at once
LEASE_S = 3.0  # of an attached holder that hangs
CONFIRM_S = 15.0


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, kw_only=True)
class State:
    id: str
    interface: str
    index: int
    netns: str
    phase: str
    until: float  # of this phase
    expires: float  # at the latest
    profile: str
    backend: str
    seed: int
    sides: tuple[Side, ...]  # that are led aside
    rank: int = 0  # in a lab
    counted: tuple[Side, ...] = ()  # sides that are only counted
    asked: dict[str, Any] = field(default_factory=dict)  # traffic, rule, as written
    ssh: tuple[str, ...] = ()  # connections that were there before, which may not confirm
    maps: tuple[int, int] = (0, 0)  # the gates' clock
    detours: dict[str, Any] = field(default_factory=dict)

    def over(self, *, holder_alive: bool, lease: float | None = None) -> str:
        """Why its time is over; empty while it is not. `lease`: the kernel's own deadline."""
        if now() >= min(self.until, self.expires):
            return "not confirmed in time" if self.phase == UNCONFIRMED else "its time is over"
        if self.phase in (APPLYING, ATTACHED) and not holder_alive:
            return "its holder is gone"
        if self.phase == ATTACHED and lease is not None and now() > lease + 1:
            return "its holder hangs"
        return ""

    def save(self, book: Journal) -> None:
        book.keep(FILE, asdict(self))

    def with_phase(self, phase: str, until: float, **more: Any) -> State:
        return replace(self, phase=phase, until=until, **more)


def read(book: Journal) -> State | None:
    """None if this is no NIC's journal, if it can't be read, or if the machine has started since."""
    if book.outlived():
        return None
    try:
        found = json.loads((book.folder / FILE).read_text(encoding="utf-8"))
        found |= {name: tuple(found[name]) for name in ("sides", "counted", "maps", "ssh")}
        one = State(**found)
        maps = (int(one.maps[0]), int(one.maps[1]))
        return replace(one, until=float(one.until), expires=float(one.expires), index=int(one.index), maps=maps)
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
