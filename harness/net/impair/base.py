"""What every backend offers, and the numbers it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from harness.placement import Hook, Rule


@dataclass(frozen=True, kw_only=True)
class HookPoint:
    """A hook made concrete: the switch's port in this network."""

    hook: Hook
    port_index: int
    mtu: int


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a seeded rule's generator stands: enough to predict every later packet."""

    generator: int
    state: int
    packets: int


@dataclass(frozen=True, kw_only=True)
class RuleCounters:
    """What the kernel counted for one rule since it was put in force."""

    seen: int
    dropped: int
    seen_bytes: int = 0
    duplicated: int = 0
    corrupted: int = 0
    super_packets: int = 0
    position: Position | None = None
    damage_counted: bool = True  # False: damaged packets are not counted by the kernel (netem)
    shared: bool = False  # True: read while traffic flows, this may be off by a few packets of the other direction

    def minus(self, earlier: RuleCounters) -> RuleCounters:
        return RuleCounters(
            seen=self.seen - earlier.seen,
            dropped=self.dropped - earlier.dropped,
            seen_bytes=self.seen_bytes - earlier.seen_bytes,
            duplicated=self.duplicated - earlier.duplicated,
            corrupted=self.corrupted - earlier.corrupted,
            super_packets=self.super_packets - earlier.super_packets,
            position=self.position,
            damage_counted=self.damage_counted,
            shared=self.shared,
        )

    def plus(self, other: RuleCounters) -> RuleCounters:
        return RuleCounters(
            seen=self.seen + other.seen,
            dropped=self.dropped + other.dropped,
            seen_bytes=self.seen_bytes + other.seen_bytes,
            duplicated=self.duplicated + other.duplicated,
            corrupted=self.corrupted + other.corrupted,
            super_packets=self.super_packets + other.super_packets,
            position=other.position,
            damage_counted=other.damage_counted,
            shared=other.shared,
        )


Counters = dict[str, RuleCounters]  # by rule label; UNMATCHED for what no rule took; TOTAL where a backend can't split
UNMATCHED = "unmatched"
TOTAL = "total"


class Backend(Protocol):
    """Puts rules in force at hooks of one network."""

    name: str

    def put(self, point: HookPoint, rules: tuple[Rule, ...]) -> Counters:
        """In place: no flow is torn. Returns the final counters of what was replaced, read after the change, so that
        every packet is counted by the old rules or by the new ones."""
        ...

    def read_back(self, point: HookPoint) -> list[dict[str, Any]]:
        """What the kernel itself says is in force, one entry per rule, comparable with `asked`."""
        ...

    def counters(self, point: HookPoint) -> Counters: ...

    def state(self) -> dict[str, Any]:
        """What another process needs to read counters later (a standing net)."""
        ...

    def close(self) -> None: ...
