"""What was counted, as values: rules, links, queues, sockets of one network at one moment. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from lossbench.spec.placement import Hook


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a seeded rule's generator stands: enough to predict every later packet."""

    generator: int
    state: int
    packets: int


@dataclass(frozen=True, kw_only=True)
class RuleCounters:
    """What the kernel counted for one rule since the counters were set to zero."""

    seen: int = 0
    dropped: int = 0
    seen_bytes: int = 0
    duplicated: int = 0
    corrupted: int = 0
    damageable: int = 0  # that were long enough to be damaged
    super_packets: int = 0
    position: Position | None = None
    damage_counted: bool = True  # False: damage, or copies beside losses, is asked for and not counted (netem)
    shared: bool = False  # True: read while traffic flowed, this may be off by a few packets of the other direction

    def _with(self, other: RuleCounters, sign: int, position: Position | None) -> RuleCounters:
        return RuleCounters(  # for every rule, many times a second: so in full
            seen=self.seen + sign * other.seen,
            dropped=self.dropped + sign * other.dropped,
            seen_bytes=self.seen_bytes + sign * other.seen_bytes,
            duplicated=self.duplicated + sign * other.duplicated,
            corrupted=self.corrupted + sign * other.corrupted,
            damageable=self.damageable + sign * other.damageable,
            super_packets=self.super_packets + sign * other.super_packets,
            position=position,
            damage_counted=self.damage_counted and other.damage_counted,
            shared=self.shared or other.shared,
        )

    def minus(self, earlier: RuleCounters) -> RuleCounters:
        return self._with(earlier, -1, self.position)

    def plus(self, other: RuleCounters) -> RuleCounters:
        return self._with(other, 1, other.position)


Counters = dict[str, RuleCounters]  # by rule label; UNMATCHED for what no rule took; TOTAL where a backend can't split
HookCounters = dict[Hook, Counters]
UNMATCHED = "unmatched"
TOTAL = "total"


def counters_as_json(counters: HookCounters) -> dict[str, Any]:
    return {hook.name: {label: asdict(c) for label, c in here.items()} for hook, here in counters.items()}


def added(one: Counters, other: Counters) -> Counters:
    out = dict(one)
    for label, count in other.items():
        out[label] = out[label].plus(count) if label in out else count
    return out


def since(now: HookCounters, before: HookCounters) -> HookCounters:
    nothing = RuleCounters()
    return {
        hook: {label: count.minus(before.get(hook, {}).get(label, nothing)) for label, count in here.items()}
        for hook, here in now.items()
    }


@dataclass(frozen=True, kw_only=True)
class ReadBack:
    """What the kernel itself says of one rule."""

    rule: str
    attached: bool
    equal: bool
    mean_loss: float | None
    differs: tuple[str, ...] = ()
    seed: int | None = None
    foreign: int = 0  # filters at the hook that are not ours


@dataclass(frozen=True, kw_only=True)
class Detour:
    """A device behind a hook that holds packets back: what went in must come out, wait, or be counted as lost."""

    place: str
    into: int
    returned: int
    dropped: int = 0
    waiting: int = 0


# Limits of the counts below, each a tenth above the one before; the last count is "later still".
LATE_MS = tuple(round(0.25 * 1.1**number, 3) for number in range(90))


@dataclass(frozen=True, kw_only=True)
class Held:
    """How a wire kept packets of one rule: how many, how many of them overtook, and by how much they left later than
    they should. Of those that waited and left, by the kernel's stamp of when they came: `stayed_s` all together,
    `late_s` of it longer than they should; `spread_s2`, the squares of the rest."""

    packets: int
    overtook: int
    late: list[int]
    waited: int = 0
    stayed_s: float = 0.0
    late_s: float = 0.0
    spread_s2: float = 0.0

    def minus(self, earlier: Held) -> Held:
        late = [one - other for one, other in zip(self.late, earlier.late, strict=True)]
        return Held(
            packets=self.packets - earlier.packets,
            overtook=self.overtook - earlier.overtook,
            late=late,
            waited=self.waited - earlier.waited,
            stayed_s=self.stayed_s - earlier.stayed_s,
            late_s=self.late_s - earlier.late_s,
            spread_s2=self.spread_s2 - earlier.spread_s2,
        )

    def kept_ms(self) -> tuple[float, float]:
        """How long packets that waited were kept, without what they left late: mean and deviation."""
        mean = (self.stayed_s - self.late_s) / max(self.waited, 1)
        return 1000 * mean, 1000 * math.sqrt(max(self.spread_s2 / max(self.waited, 1) - mean**2, 0.0))

    def late_ms(self, q: float) -> float:
        """This share of the packets was late by so much or less, as far as they were told apart."""
        wanted, so_far = q * sum(self.late), 0
        if not any(self.late):
            return 0.0
        for limit, count in zip((*LATE_MS, math.inf), self.late, strict=True):
            so_far += count
            if so_far > wanted:
                return limit
        return math.inf


HeldByRule = dict[Hook, dict[str, Held]]  # by the rule's label


def held_since(now: HeldByRule, before: HeldByRule) -> HeldByRule:
    nothing = Held(packets=0, overtook=0, late=[0] * (len(LATE_MS) + 1))
    return {
        hook: {label: one.minus(before.get(hook, {}).get(label, nothing)) for label, one in here.items()}
        for hook, here in now.items()
    }


@dataclass(frozen=True, kw_only=True)
class Queue:
    """What a link waits in. `asked`: under a rate that the experiment asks for, where losing packets is the
    condition."""

    dropped: int = 0
    waiting: int = 0
    asked: bool = False


@dataclass(frozen=True, kw_only=True)
class Sockets:
    """Inside one host: UDP and UDP-Lite, both IP versions; what its stack did to packets; what TCP did not take of what
    the network brought, on its control link too and as the host merged them."""

    received: int = 0
    overflowed: int = 0  # reached a socket that was full
    damaged: int = 0  # thrown away by their checksum
    unwanted: int = 0  # to ports where nobody listens
    answered: int = 0  # what the host itself sent of that, or of other packets that led nowhere (ICMP)
    refused: int = 0  # not taken from the sender: its queue was full
    discarded: int = 0  # no room, or nobody to take them, before any socket
    misled: int = 0  # for an address that the host does not have
    unfit: int = 0  # whose header is wrong, or that no route takes in
    from_elsewhere: int = 0  # from an address to which another interface leads (rp_filter)
    by_ipsec: int = 0  # that a policy or a state of it stopped, whatever the protocol
    turned_away: int = 0  # datagrams for a socket: by IPsec, a program of a control group, a filter of the socket's own
    unassembled: int = 0  # fragments that could not be put together, other than by waiting for a lost one
    cut: int = 0  # fragments that were made here, IPv4
    cut_6: int = 0
    pieces: int = 0  # fragments that came here
    pieces_6: int = 0
    tcp_held: int = 0  # the program was inside its socket, and what had to wait for that was too much
    tcp_full: int = 0  # no room in the receive queue
    tcp_ahead: int = 0  # came ahead of their turn, and no room to wait for it
    tcp_unaccepted: int = 0  # connections begun, that nobody accepted in time or there was no room for
    no_memory: int = 0  # refused by any socket, because the machine had only its last memory


@dataclass(frozen=True, kw_only=True)
class LinkCounts:
    """One host's link, both ways, as the switch's port counts it. The two ends of a link share their counters: what the
    host sent is what entered, what left is what it got."""

    lost_entering: int = 0  # no room in the switch's input queue (softnet backlog)
    entered: int = 0
    entered_bytes: int = 0
    came: int = 0  # at a machine's own gate, before any rule of its downlink
    left: int = 0
    left_bytes: int = 0
    lost_leaving: int = 0  # no room in the ring between port and host
    lost_arriving: int = 0  # thrown away by the host's interface
    misled: int = 0  # came to the host and were for another hardware address than its own
    control_bytes: int = 0  # that the host sent around all this, on its control link
    up: Queue = Queue()
    down: Queue = Queue()
    sockets: Sockets | None = None  # read at the beginning and at the end only


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """What lies between the machines of a lab, as far as anything counts there. `cards`: packets that machines' own
    interfaces lost; `switch`: what the switch says it lost, None if nobody can ask it."""

    cards: dict[str, int] = field(default_factory=dict)
    switch: dict[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Everything at one moment. `links` by rank; `fabric`: None inside a star, where every packet is ours to count;
    `for_all`: packets that a star's switch copied to all ports but the one they came from; `for_nobody`: that were for
    addresses that no host has; `store_bytes`: that ranks and their stores sent each other, of what hosts sent on their
    control links, in `store_packets` (`store_told`: False where nothing counts them); `bare`: hosts in
    which a socket that takes whole packets (raw, AF_PACKET) was seen."""

    time_s: float = 0.0
    links: dict[int, LinkCounts] = field(default_factory=dict)
    hooks: HookCounters = field(default_factory=dict)
    detours: dict[Hook, tuple[Detour, ...]] = field(default_factory=dict)
    fabric: Fabric | None = None
    for_all: int = 0
    for_nobody: int = 0
    store_bytes: int = 0
    store_packets: int = 0
    store_told: bool = True
    bare: tuple[str, ...] = ()

    def moved(self) -> tuple[object, ...]:
        """Equal in two readings if no packet moved between them."""
        return (
            {rank: (c.entered, c.left, c.up.waiting, c.down.waiting) for rank, c in self.links.items()},
            {hook: [(c.seen, c.dropped) for c in here.values()] for hook, here in self.hooks.items()},
            {hook: [(d.into, d.returned) for d in here] for hook, here in self.detours.items()},
        )

    def passed_since(self, before: Reading) -> int:
        """Packets that entered or left a port in between."""
        both = [(now, before.links[rank]) for rank, now in self.links.items() if rank in before.links]
        return sum(abs(now.entered - old.entered) + abs(now.left - old.left) for now, old in both)

    def under_way(self) -> int:
        """Packets that wait somewhere."""
        held = sum(d.into - d.returned - d.dropped for here in self.detours.values() for d in here)
        return held + sum(c.up.waiting + c.down.waiting for c in self.links.values())


def difference(now: LinkCounts, before: LinkCounts) -> LinkCounts:
    """What was counted in between."""

    def queue(new: Queue, old: Queue) -> Queue:
        return Queue(dropped=new.dropped - old.dropped, waiting=new.waiting - old.waiting, asked=new.asked)

    numbers = ["lost_entering", "entered", "entered_bytes", "came", "left", "left_bytes"]
    numbers += ["lost_leaving", "lost_arriving", "misled", "control_bytes"]
    sockets = None
    if now.sockets is not None and before.sockets is not None:
        names = [f.name for f in fields(Sockets)]
        sockets = Sockets(**{name: getattr(now.sockets, name) - getattr(before.sockets, name) for name in names})
    return LinkCounts(
        **{name: getattr(now, name) - getattr(before, name) for name in numbers},
        up=queue(now.up, before.up),
        down=queue(now.down, before.down),
        sockets=sockets,
    )
