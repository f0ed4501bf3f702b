"""From an experiment to rules: which packets meet which profile at which hook, at a given moment. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from lossbench.contract import derive_seed
from lossbench.spec.experiment import Direction, Experiment, Impair
from lossbench.spec.losses import BlockLoss
from lossbench.spec.profile import Match, Profile
from lossbench.spec.topology import Host, Topology


@dataclass(frozen=True, kw_only=True)
class Hook:
    """The one place where a packet of this host meets its fate: the switch's port, on entering or leaving it."""

    rank: int
    direction: Direction

    @property
    def name(self) -> str:
        return f"h{self.rank} {self.direction}"

    @classmethod
    def named(cls, name: str) -> Hook:
        """The inverse of `name`."""
        host, _, direction = name.partition(" ")
        return cls(rank=int(host[1:]), direction="uplink" if direction == "uplink" else "downlink")


UNTAKEN = "none"  # the label of what no rule takes
Window: TypeAlias = tuple[float | None, float | None]  # seconds of the run; open where there is none


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One profile at one hook. `match` holds addresses only, no host names; `seed` is this place's own."""

    label: str
    profile: Profile
    match: Match
    seed: int
    block_seed: int  # the same everywhere, since the header names source and destination
    entry: int = 0  # number of the [[impair]] that asks for it
    pair: str = ""  # the other end, where it is about one
    named: bool = False  # the experiment names this host or pair, it does not say "all"
    window: Window | None = None  # that the backend itself keeps; None: whoever puts it in force does

    @property
    def place(self) -> str:
        """The same for whatever this entry asks here, now or later."""
        return f"{self.entry} {self.pair}".strip()

    def matches_all(self) -> bool:
        return self.match.is_everything() and not isinstance(self.profile.loss, BlockLoss)

    def takes_all(self) -> bool:
        """Whatever comes, whenever it does."""
        return self.matches_all() and self.window is None


Rules = dict[Hook, tuple[Rule, ...]]


def rules_in_force(
    experiment: Experiment, *, seed: int, elapsed_s: float = 0.0, step: int = 0, kept: bool = False
) -> Rules:
    """Rules of every hook, first match first. Hooks without an entry now get none (but stay, so that they count).
    `kept`: the backend keeps their windows in time."""
    active = [entry.active(elapsed_s=elapsed_s, step=step) for entry in experiment.impair]
    rules = _rules(experiment, seed=seed, active=active, kept=kept)
    return {hook: _up_to(here, Rule.matches_all) for hook, here in rules.items()}


def rules_kept(experiment: Experiment, *, seed: int, step: int = 0) -> Rules:
    """What a backend that keeps windows in time must hold at this step, whatever the time."""
    rules = _rules(experiment, seed=seed, active=[in_steps(entry, step) for entry in experiment.impair], kept=True)
    return {hook: _up_to(here, Rule.takes_all) for hook, here in rules.items()}


def rules_ever(experiment: Experiment, *, seed: int, kept: bool = False) -> Rules:
    """Every rule that the schedule can put in force, wherever it does."""
    return _rules(experiment, seed=seed, active=[True] * len(experiment.impair), kept=kept)


def in_steps(entry: Impair, step: int) -> bool:
    """Is an entry in force now, as far as steps go?"""
    return (entry.from_step or 0) <= step and (entry.to_step is None or step < entry.to_step)


def _rules(experiment: Experiment, *, seed: int, active: list[bool], kept: bool) -> Rules:
    rules: Rules = dict.fromkeys(hooks(experiment), ())
    for number, entry in enumerate(experiment.impair):
        profile = entry.profile
        base = profile.seed if profile.seed is not None else seed
        timed = kept and (bool(entry.from_s) or entry.to_s is not None)
        for hook, match, other in _places(entry, experiment.topology) if active[number] else []:
            pair = other.name if other else ""
            rule = Rule(
                label=f"{number}:{profile.name} {pair}".strip(),
                profile=profile,
                match=match,
                seed=derive_seed(base, "network", hook.direction, hook.rank, number, pair or "all"),
                block_seed=derive_seed(base, "network", "block", number),
                entry=number,
                pair=pair,
                named=bool(entry.pairs) or entry.hosts != "all",
                window=(entry.from_s or None, entry.to_s) if timed else None,
            )
            rules[hook] = (rule, *rules[hook])
    return rules


def _up_to(rules: tuple[Rule, ...], takes_all: Callable[[Rule], bool]) -> tuple[Rule, ...]:
    """Up to the first rule that takes every packet: what an earlier entry asked behind it was overruled."""
    last = next((number for number, rule in enumerate(rules, start=1) if takes_all(rule)), len(rules))
    return rules[:last]


def hooks(experiment: Experiment) -> list[Hook]:
    """Every hook that is ever used, uplinks first; uplinks always count, even where nothing is asked."""
    used = {Hook(rank=h.rank, direction="uplink") for h in experiment.topology.all_hosts()}
    for entry in experiment.impair:
        used |= {hook for hook, _, _ in _places(entry, experiment.topology)}
    return sorted(used, key=lambda hook: (hook.direction != "uplink", hook.rank))


def _places(entry: Impair, topology: Topology) -> list[tuple[Hook, Match, Host | None]]:
    """(hook, match, the other end of a pair)."""
    match = _resolved(entry.profile.match, topology)
    places: list[tuple[Hook, Match, Host | None]] = []
    for direction in entry.directions():
        for source, destination in entry.pairs:
            places.append(_pair_place(topology.host(source), topology.host(destination), direction, match, topology))
        if entry.pairs:
            continue
        hosts = topology.all_hosts() if entry.hosts == "all" else tuple(topology.host(name) for name in entry.hosts)
        able = [h for h in hosts if entry.hosts != "all" or _may_meet(entry.profile.match, h, direction, topology)]
        places += [(Hook(rank=host.rank, direction=direction), match, None) for host in able or hosts]
    return places


def _may_meet(match: Match, host: Host, direction: Direction, topology: Topology) -> bool:
    """Not at its uplink what other hosts send or what is for itself; not at its downlink what is for others or what it
    sends. Addresses that no host has may be anywhere."""
    names = {address: one.name for one in topology.all_hosts() for address in one.addresses(topology.family)}
    sources, destinations = ([names.get(end, end) for end in ends] for ends in (match.sources, match.destinations))
    own, others = (sources, destinations) if direction == "uplink" else (destinations, sources)
    its = not own or host.name in own or not all(end.startswith("h") for end in own)
    return its and (not others or any(end != host.name for end in others))


def _pair_place(
    source: Host, destination: Host, direction: Direction, match: Match, topology: Topology
) -> tuple[Hook, Match, Host]:
    """On an uplink a pair is told by its destination, on a downlink by its source."""
    if direction == "uplink":
        narrowed = match.model_copy(update={"destinations": destination.addresses(topology.family)})
        return Hook(rank=source.rank, direction=direction), narrowed, destination
    narrowed = match.model_copy(update={"sources": source.addresses(topology.family)})
    return Hook(rank=destination.rank, direction=direction), narrowed, source


def _resolved(match: Match, topology: Topology) -> Match:
    """Host names become addresses."""

    def addresses(places: tuple[str, ...]) -> tuple[str, ...]:
        out: list[str] = []
        for place in places:
            out += topology.host(place).addresses(topology.family) if place.startswith("h") else (place,)
        return tuple(out)

    return match.model_copy(update={"destinations": addresses(match.destinations), "sources": addresses(match.sources)})


def matches_addresses(match: Match, *, source: str, destination: str) -> bool:
    """Would a packet between these two addresses be matched, as far as addresses go?"""
    return _within(source, match.sources) and _within(destination, match.destinations)


def _within(address: str, networks: tuple[str, ...]) -> bool:
    return not networks or any(ipaddress.ip_address(address) in ipaddress.ip_network(n) for n in networks)


def path_loss(rules: Rules, *, source: Host, destination: Host, family: str) -> float:
    """What share of packets from source to destination is lost on the way, all loss points together (unmatched ports
    and headers aside)."""
    delivered = 1.0
    for hook in (Hook(rank=source.rank, direction="uplink"), Hook(rank=destination.rank, direction="downlink")):
        for rule in rules.get(hook, ()):
            if matches_addresses(rule.match, source=source.address(family), destination=destination.address(family)):
                delivered *= 1 - rule.profile.mean_loss()
                break
    return 1 - delivered
