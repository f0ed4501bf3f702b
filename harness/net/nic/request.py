"""What is asked of a NIC. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from lossbench.contract import derive_seed
from lossbench.net.nic import state
from lossbench.net.nic.way.clock import SIDES
from lossbench.net.nic.way.detour import Detour
from lossbench.net.nic.way.programs import Traffic
from lossbench.net.tc.hook import Side
from lossbench.spec.experiment import Direction
from lossbench.spec.placement import Hook, Rule
from lossbench.spec.profile import Profile

DIRECTION: dict[Side, Direction] = {"egress": "uplink", "ingress": "downlink"}
BySide = dict[Side, tuple[Rule, ...]]
RULES: TypeAdapter[BySide] = TypeAdapter(BySide)


@dataclass(frozen=True, kw_only=True)
class Request:
    """`rules`: of each side that is led aside, first match first. `rank`: of the machine in its lab."""

    interface: str
    rules: BySide
    for_s: float
    later: BySide = field(default_factory=dict)  # that may come in force
    counted: tuple[Side, ...] = ()  # sides where packets are counted and nothing else is done
    rank: int = 0
    traffic: Traffic = Traffic()
    spared: tuple[int, ...] = ()  # TCP ports that are never touched
    backend: str = "auto"
    seed: int = 0
    this_nic: bool = False
    past_rdma: bool = False
    placed: bool = False  # addresses stand where profiles name hosts
    attached: bool = False  # for as long as the process that asks lives
    confirm_s: float = state.CONFIRM_S

    @classmethod
    def of(cls, profile: Profile, *, sides: tuple[Side, ...] = ("egress",), seed: int = 0, **more: Any) -> Request:
        """One profile, for all packets that are asked for."""
        rules: BySide = {side: (_rule(profile, Hook(rank=0, direction=DIRECTION[side]), seed),) for side in sides}
        return cls(rules=rules, seed=seed, **more)

    @property
    def sides(self) -> tuple[Side, ...]:
        return tuple(side for side in SIDES if side in self.rules)

    def every_side(self) -> tuple[Side, ...]:
        return tuple(side for side in SIDES if side in self.rules or side in self.counted)

    def hook(self, side: Side) -> Hook:
        return Hook(rank=self.rank, direction=DIRECTION[side])

    def ever(self, side: Side) -> tuple[Rule, ...]:
        return tuple(dict.fromkeys((*self.rules.get(side, ()), *self.later.get(side, ()))))

    def profiles(self) -> list[Profile]:
        found = {rule.profile.name: rule.profile for side in self.sides for rule in self.ever(side)}
        return list(found.values())

    def name(self) -> str:
        return ", ".join(one.name for one in self.profiles()) or "no profile"

    def detour(self, side: Side, **more: Any) -> Detour:
        return Detour(side=side, hook=self.hook(side), rules=self.rules[side], ever=self.ever(side), **more)


def _rule(profile: Profile, hook: Hook, seed: int) -> Rule:
    base = profile.seed if profile.seed is not None else seed
    return Rule(
        label=profile.name,
        profile=profile,
        match=profile.match,
        seed=derive_seed(base, "network", hook.direction, hook.rank, 0, "all"),
        block_seed=derive_seed(base, "network", "block", 0),
    )
