"""From an experiment to rules: which packets meet which profile at which hook, at a given moment. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from harness import lossmodel
from harness import profile as profiles
from harness.experiment import Direction, Experiment, Impair
from harness.profile import Match, Profile
from harness.topology import Host, Topology


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


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One profile at one hook. `match` holds addresses only, no host names; `seed` is this place's own."""

    label: str
    profile: Profile
    match: Match
    seed: int
    block_seed: int  # the same everywhere, since the header names source and destination


Rules = dict[Hook, tuple[Rule, ...]]


def rules_in_force(experiment: Experiment, *, seed: int, elapsed_s: float = 0.0, step: int = 0) -> Rules:
    """Rules of every hook, first match first. Hooks without an entry now get none (but stay, so that they count)."""
    rules: Rules = dict.fromkeys(hooks(experiment), ())
    for number, entry in enumerate(experiment.impair):
        if not entry.active(elapsed_s=elapsed_s, step=step):
            continue
        profile = profiles.load(entry.profile)
        for hook, match in _places(entry, profile, experiment.topology):
            base = profile.seed if profile.seed is not None else seed
            rule = Rule(
                label=f"{number}:{profile.name}",
                profile=profile,
                match=match,
                seed=lossmodel.derive_seed(base, hook.rank, hook.direction, number),
                block_seed=lossmodel.derive_seed(base, "block", number),
            )
            rules[hook] = (rule, *rules[hook])
    return rules


def hooks(experiment: Experiment) -> list[Hook]:
    """Every hook that is ever used, uplinks first; uplinks always count, even where nothing is asked."""
    used = {Hook(rank=h.rank, direction="uplink") for h in experiment.topology.all_hosts()}
    for entry in experiment.impair:
        for hook, _ in _places(entry, profiles.load(entry.profile), experiment.topology):
            used.add(hook)
    return sorted(used, key=lambda hook: (hook.direction != "uplink", hook.rank))


def _places(entry: Impair, profile: Profile, topology: Topology) -> list[tuple[Hook, Match]]:
    match = _resolved(profile.match, topology)
    places = []
    for direction in entry.directions():
        if entry.pairs:
            for source, destination in entry.pairs:
                places.append(
                    _pair_place(topology.host(source), topology.host(destination), direction, match, topology)
                )
            continue
        hosts = topology.all_hosts() if entry.hosts == "all" else tuple(topology.host(name) for name in entry.hosts)
        places += [(Hook(rank=host.rank, direction=direction), match) for host in hosts]
    return places


def _pair_place(
    source: Host, destination: Host, direction: Direction, match: Match, topology: Topology
) -> tuple[Hook, Match]:
    """On an uplink a pair is told by its destination, on a downlink by its source."""
    if direction == "uplink":
        narrowed = match.model_copy(update={"destinations": destination.addresses(topology.family)})
        return Hook(rank=source.rank, direction=direction), narrowed
    narrowed = match.model_copy(update={"sources": source.addresses(topology.family)})
    return Hook(rank=destination.rank, direction=direction), narrowed


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
