"""What every backend offers, and what is known of one before a network stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from lossbench.net.counters import Counters, Detour, ReadBack
from lossbench.net.kernel import Kernel
from lossbench.net.tc.hook import HookPoint
from lossbench.net.tc.look import Look
from lossbench.spec.placement import Rule
from lossbench.spec.profile import Profile
from lossbench.spec.topology import Topology


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


@runtime_checkable
class PutsMany(Protocol):
    """What more a backend offers that changes several hooks in much less time than one after the other."""

    def put_many(self, changes: Sequence[tuple[HookPoint, tuple[Rule, ...]]]) -> None: ...


@runtime_checkable
class KeepsTime(Protocol):
    """What more a backend offers whose kind says `keeps_time`: rules with a window (Rule.window) take packets within it
    alone, by the kernel's own clock, so that nobody has to be on time."""

    def begin(self, at_ns: int) -> None:
        """The run's clock began at this moment of the monotonic one. For the probes a window is open if it is at second
        0; between `restart` and this none is."""
        ...


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A backend as one can choose it. Each stands in its backend's own file; registry.KINDS lists them."""

    name: str
    make: Callable[..., Backend]
    refusal: Callable[[Profile], str | None]
    """What it can't do of a profile, in words; None if it can do all."""
    too_many: Callable[[tuple[Rule, ...]], str | None]
    """What of these rules of one hook the kernel would refuse."""
    lacking: Callable[[Kernel], str | None]
    """What this kernel lacks for it."""
    advice: str
    """Where it would work."""
    outrun_by: Callable[[Topology], str | None] = lambda _: None
    """Why links of this topology could be too fast for it."""
    stands_alone: bool = True
    """It goes on when the process that put it there has ended: standing labs need that."""
    keeps_time: bool = False
    """It keeps the windows of rules in time itself, see KeepsTime."""
    begins_good: bool = False
    """Bursty channels begin in their good state, not anywhere."""
