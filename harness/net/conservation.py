"""The law of conservation: between two readings of a network every packet went on, waits, or was counted as lost. Pure.

    entered a port   = met a rule, or "no rule", at its uplink hook
    met              = dropped by the rule + passed (a duplicate passes twice)
    into a detour    = returned + dropped there + waiting there
    passed uplinks   = arrived at downlinks (what is for all, at each but its sender's) + was for nobody
    arrived          = dropped by the downlink's rule + lost in its queue or ring + waiting + left for the host

Between the machines of a lab there are interfaces and a switch that are not ours. What they say that they lost joins
the fourth line; where nobody can ask the switch, what is missing there is *observed*, not counted.

What does not add up has leaked at the place whose line it is: past a rule, into a device nobody counts, out of a
bridge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from lossbench.net.counters import (
    TOTAL,
    UNMATCHED,
    Counters,
    Detour,
    Fabric,
    LinkCounts,
    Reading,
    Sockets,
    difference,
    since,
)
from lossbench.spec.placement import Hook


@dataclass(frozen=True, kw_only=True)
class Leak:
    """`missing` packets went in and did not come out; negative: more came out."""

    place: str
    went_in: int
    missing: int

    def in_words(self) -> str:
        if self.missing < 0:
            return f"{self.place}: {-self.missing} packets more came out than the {self.went_in} that went in"
        return f"{self.place}: {self.missing} of {self.went_in} packets are not accounted for"


@dataclass(frozen=True, kw_only=True)
class Met:
    """What a workload's packets met, by cause."""

    packets: int = 0  # given to the links
    bytes: int = 0  # of those that entered them
    matched: int = 0  # that a rule was about
    rule: int = 0
    damaged: int = 0
    queue: int = 0  # under a rate that was asked for
    elsewhere: int = 0  # no room where none was asked to be short, or not accounted for
    observed: int = 0  # between machines, where nothing counts
    for_nobody: int = 0  # to addresses that no host has
    control_bytes: int = 0  # that went around the fault

    def share(self, lost: int) -> float | None:
        return lost / self.packets if self.packets else None

    def as_json(self) -> dict[str, float | int | None]:
        return {
            "packets": self.packets,
            "bytes": self.bytes,
            "control_bytes": self.control_bytes,
            "matched": self.matched,
            "lost_by_rule": self.rule,
            "damaged": self.damaged,
            "lost_in_queues": self.queue,
            "lost_elsewhere": self.elsewhere,
            **({"lost_observed": self.observed} if self.observed else {}),
            **({"for_nobody": self.for_nobody} if self.for_nobody else {}),
            "rule_loss": self.rule / self.matched if self.matched else self.share(self.rule),
            "queue_loss": self.share(self.queue),
            "elsewhere_loss": self.share(self.elsewhere),
            "loss": self.share(self.rule + self.damaged + self.queue + self.elsewhere + self.observed),
        }


@dataclass(frozen=True)
class Between:
    """Two readings, and what was counted in between."""

    before: Reading
    after: Reading

    @cached_property
    def links(self) -> dict[int, LinkCounts]:
        return {rank: difference(now, self.before.links[rank]) for rank, now in self.after.links.items()}

    @cached_property
    def fabric(self) -> Fabric | None:
        """What was lost in between by machines' interfaces and their switch."""
        before, after = self.before.fabric, self.after.fabric
        if after is None or before is None:
            return None

        def grown(now: dict[str, int], old: dict[str, int]) -> dict[str, int]:
            return {name: more for name, n in now.items() if (more := n - old.get(name, 0)) > 0}

        asked = after.switch is not None and before.switch is not None
        switch = grown(after.switch or {}, before.switch or {}) if asked else None
        return Fabric(cards=grown(after.cards, before.cards), switch=switch)

    @property
    def copies(self) -> int:
        """What is for all leaves by every port but the one it came in by."""
        return (self.after.for_all - self.before.for_all) * (len(self.after.links) - 2)

    @property
    def for_nobody(self) -> int:
        return self.after.for_nobody - self.before.for_nobody

    @property
    def store_bytes(self) -> int:
        return self.after.store_bytes - self.before.store_bytes

    @property
    def store_packets(self) -> int:
        return self.after.store_packets - self.before.store_packets

    @cached_property
    def hooks(self) -> dict[Hook, Counters]:
        return since(self.after.hooks, self.before.hooks)

    def detours(self, hook: Hook) -> list[Detour]:
        old = {one.place: one for one in self.before.detours.get(hook, ())}
        nothing = Detour(place="", into=0, returned=0)
        return [
            Detour(
                place=one.place,
                into=one.into - was.into,
                returned=one.returned - was.returned,
                dropped=one.dropped - was.dropped,
                waiting=one.waiting - was.waiting,
            )
            for one in self.after.detours.get(hook, ())
            for was in (old.get(one.place, nothing),)
        ]


def met_by(counters: Counters) -> int:
    return sum(count.seen for count in counters.values())


def passed_by(counters: Counters, detours: Iterable[Detour]) -> int:
    """Went on behind a hook."""
    alive = sum(count.seen - count.dropped + count.duplicated for count in counters.values())
    return alive - sum(one.into - one.returned for one in detours)


def _left(link: LinkCounts) -> int:
    return link.left + link.lost_leaving + link.down.dropped + link.down.waiting


def leaks(between: Between) -> list[Leak]:
    """Every line of the law that does not add up."""
    lines, crossing = _lines(between)
    return [line for line in (*lines, *([] if _is_observed(between, crossing) else [crossing])) if line.missing]


def observed(between: Between) -> int:
    """Packets that were lost between machines where nobody counts."""
    _, crossing = _lines(between)
    return crossing.missing if _is_observed(between, crossing) else 0


def _is_observed(between: Between, crossing: Leak) -> bool:
    return between.fabric is not None and between.fabric.switch is None and crossing.missing > 0


def _lines(between: Between) -> tuple[list[Leak], Leak]:
    """Of every hook and device; and the one of what lies between them."""
    links, hooks = between.links, between.hooks
    lines: list[Leak] = []
    passed_up = arrived = 0
    for hook, counters in hooks.items():
        link, detours = links[hook.rank], between.detours(hook)
        passed, met = passed_by(counters, detours), met_by(counters)
        if hook.direction == "uplink":
            lines.append(Leak(place=f"{hook.name}: past the rules", went_in=link.entered, missing=link.entered - met))
            passed_up += passed
        else:
            arrived += met if between.fabric is None else link.came
            if between.fabric is not None:
                lines.append(Leak(place=f"{hook.name}: at the rules", went_in=link.came, missing=link.came - met))
            lines.append(Leak(place=f"{hook.name}: past the rules", went_in=passed, missing=passed - _left(link)))
        for one in detours:
            missing = one.into - one.returned - one.dropped - one.waiting
            lines.append(Leak(place=one.place, went_in=one.into, missing=missing))
    ruled = {hook.rank for hook in hooks if hook.direction == "downlink"}
    arrived += sum(_left(link) for rank, link in links.items() if rank not in ruled)
    if between.fabric is None:
        went_in = passed_up + between.copies
        return lines, Leak(
            place="between the switch's ports", went_in=went_in, missing=went_in - between.for_nobody - arrived
        )
    named = sum(between.fabric.cards.values()) + sum((between.fabric.switch or {}).values())
    return lines, Leak(place="between the machines", went_in=passed_up, missing=passed_up - arrived - named)


def lost_elsewhere(between: Between) -> dict[str, int]:
    """Packets that were lost where nothing was asked to lose any, by place."""
    out: dict[str, int] = {}
    tells = all(count.damage_counted for here in between.hooks.values() for count in here.values())
    for rank, link in between.links.items():
        out[f"at the switch's input from h{rank}: raise sysctl net.core.netdev_max_backlog"] = link.lost_entering
        out[f"in the ring between switch and h{rank}"] = link.lost_leaving
        out[f"by h{rank}'s own interface (no room, or nobody there for such packets)"] = link.lost_arriving
        out[f"in the queue of h{rank}'s port, which has no rate"] = 0 if link.down.asked else link.down.dropped
        inside = link.sockets or Sockets()
        out[f"in h{rank}'s sockets: they were full"] = inside.overflowed
        out[f"in h{rank}: fragments that found no room, sysctl net.ipv4.ipfrag_high_thresh"] = inside.unassembled
        out[f"in h{rank}: thrown away before any socket (InDiscards)"] = inside.discarded
        out[f"in h{rank}: stopped by IPsec (xfrm)"] = inside.by_ipsec if tells else 0
        # netem's damage may hit headers, and is not counted.
        out |= _by_headers(rank, link, inside) if tells else {}
    for hook in between.after.detours:
        for one in between.detours(hook):
            out[f"in {one.place}"] = one.dropped
    if between.fabric is not None:
        out |= {f"by {name}": count for name, count in between.fabric.cards.items()}
    return {place: count for place, count in out.items() if count}


def kept_from_programs(between: Between) -> dict[str, int]:
    """Segments that TCP itself threw away in a host, by place: of both links together, so they are no part of what the
    data link lost."""
    out: dict[str, int] = {}
    for rank, link in between.links.items():
        inside = link.sockets or Sockets()
        out[f"in h{rank}'s TCP: its program held the socket for too long (TCPBacklogDrop)"] = inside.tcp_held
        out[f"in h{rank}'s TCP: no room in the receive queue (TCPRcvQDrop)"] = inside.tcp_full
    return {place: count for place, count in out.items() if count}


def _by_headers(rank: int, link: LinkCounts, inside: Sockets) -> dict[str, int]:
    """What a host's stack did not take for what it read in them. IPsec is counted by itself and among the datagrams
    that were turned away."""
    away = "turned away before any socket, by a program of a control group or a filter of the socket's own (InErrors)"
    return {
        f"in h{rank}: they were for another address than its own": inside.misled + link.misled,
        f"in h{rank}: wrong headers, or no route (InHdrErrors, InNoRoutes)": inside.unfit,
        f"in h{rank}: their source's way is another, sysctl net.ipv4.conf.all.rp_filter": inside.from_elsewhere,
        f"in h{rank}: {away}": max(inside.turned_away - inside.by_ipsec, 0),
    }


def lost_in_queues(between: Between) -> int:
    """Where a rate was asked for, or the lab's own switch says so."""
    links, fabric = between.links.values(), between.fabric
    asked = sum(link.up.dropped + (link.down.dropped if link.down.asked else 0) for link in links)
    return asked + sum((fabric.switch or {}).values() if fabric is not None else ())


def counted_twice(between: Between) -> int:
    """At most so many packets are in two counters: damaged or duplicated at one place and lost at another behind it; or
    both damaged and duplicated, and thrown away twice by the receiver; or a second copy that found nobody."""
    hooks = between.hooks
    every = [count for here in hooks.values() for count in here.values()]
    odd = sum(count.corrupted + count.duplicated for count in every)
    directions = {hook.direction for hook, here in hooks.items() if any(c.dropped + c.corrupted for c in here.values())}
    behind = len(directions) > 1 or any(link.down.dropped + link.lost_leaving for link in between.links.values())
    damaged = sum(count.corrupted for count in every)
    sockets = [link.sockets for link in between.links.values() if link.sockets is not None]
    away = max(damaged, sum(one.damaged for one in sockets)) + sum(one.unwanted for one in sockets)
    return odd if behind else min(sum(count.duplicated for count in every), away)


def met(between: Between) -> Met:
    links, hooks = between.links, between.hooks
    rules = [count for here in hooks.values() for label, count in here.items() if label not in (UNMATCHED, TOTAL)]
    leaked = sum(max(leak.missing, 0) for leak in leaks(between) if "past the rules" not in leak.place)
    return Met(
        packets=sum(link.entered + link.lost_entering + link.up.dropped for link in links.values()),
        bytes=sum(link.entered_bytes for link in links.values()),
        matched=sum(count.seen for count in rules),
        rule=sum(count.dropped for here in hooks.values() for count in here.values()),
        damaged=sum(count.corrupted for count in rules),
        queue=lost_in_queues(between),
        elsewhere=sum(lost_elsewhere(between).values()) + leaked,
        observed=observed(between),
        for_nobody=between.for_nobody,
        control_bytes=sum(link.control_bytes for link in links.values()),
    )
