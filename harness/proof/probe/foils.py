"""Foils: probes that a rule must not take. Each differs from the rule's own in one thing that its match asks for.
Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from lossbench import contract
from lossbench.proof.evidence import NotJudged
from lossbench.proof.probe.flows import Flow, ends_at, free_port, is_about, taken_by
from lossbench.spec.placement import Hook, Rule, Rules
from lossbench.spec.profile import DatagramMatch, Match
from lossbench.spec.topology import Topology

FEW = 32  # packets of a foil: a counter of what no rule takes must have met them
LOST = 8.0  # that a rule which takes them would lose of them: all that shows it where rules are counted together
Beside = tuple[Match, Iterable[Flow]]  # a match that asks for one thing less, and flows that lack it


def foils(rules: Rules, flows: list[Flow], topology: Topology, *, alone: bool = False) -> tuple[list[Flow], NotJudged]:
    """For every rule at every hook and each thing that it asks for, where none of `flows` is one already; `alone`: they
    are not sent. Where another rule would take it there is none, and that is said."""
    out: list[Flow] = []
    untold: dict[tuple[str, str], None] = {}
    through: dict[Hook, list[Flow]] = {}
    for flow in flows:
        for hook in flow.hooks():
            through.setdefault(hook, []).append(flow)
    own = {(hook, taken_by(rules.get(hook, ()), flow)): flow for hook, here in through.items() for flow in here}
    through = {} if alone else through
    port = free_port(rules, flows)
    ports = free_port(rules, flows, besides=port), port  # from and to: hosts listen at the second
    wanted = [
        (hook, rule, here[:number], beside)
        for hook, here in rules.items()
        for number, rule in enumerate(here)
        if (hook, rule) in own
        for beside in _beside(rule.match, own[hook, rule], hook, topology, ports)
    ]
    for hook, rule, ahead, (match, others) in wanted:
        wide = replace(rule, match=match)
        if any(_is_foil(rule, wide, ahead, flow) for flow in through.get(hook, ())):
            continue
        some = None
        for some in (flow for flow in others if _is_foil(rule, wide, ahead, flow)):
            if any(taken_by(rules.get(each, ()), some) for each in some.hooks()):
                continue
            foil = replace(some, turn=_turn(some, out), at_most=_enough(rule))
            out.append(foil)
            for each in foil.hooks():
                through.setdefault(each, []).append(foil)
            break
        else:
            if some is not None:
                condition = "pairs" if rule.pair and not (match.sources or match.destinations) else "matches"
                text = f"whether impair.{rule.entry} ({rule.profile.name}) takes what another entry is about"
                untold[condition, text] = None
    return out, tuple(untold)


def _is_foil(rule: Rule, wide: Rule, ahead: tuple[Rule, ...], flow: Flow) -> bool:
    """Would a rule take it, if it were wider? What a rule ahead of it takes it never meets."""
    return is_about(wide, flow) and not is_about(rule, flow) and not taken_by(ahead, flow)


def _turn(foil: Flow, others: list[Flow]) -> int:
    """Two at one link at once would fill a slow one."""
    taken = {
        one.turn
        for one in others
        if one.source.rank == foil.source.rank or one.destination.rank == foil.destination.rank
    }
    return next(turn for turn in range(1, len(others) + 2) if turn not in taken)


def _enough(rule: Rule) -> int:
    loss = rule.profile.mean_loss()
    return max(FEW, math.ceil(LOST / loss)) if loss else FEW


def rounds(flows: dict[int, Flow], *, packets: int, batch: int) -> Iterator[list[tuple[int, int, int]]]:
    """Of each flow its number, the first packet and how many. Foils go when the others are through."""
    for turn in sorted({flow.turn for flow in flows.values()}):
        mine = {number: flow.count(packets) for number, flow in flows.items() if flow.turn == turn}
        for first in range(0, max(mine.values()), batch):
            yield [(number, first, min(batch, count - first)) for number, count in mine.items() if first < count]


def _beside(match: Match, own: Flow, hook: Hook, topology: Topology, ports: tuple[int, int]) -> Iterator[Beside]:
    def less(**asked: object) -> Match:
        return match.model_copy(update=asked)

    if match.protocol and match.datagram is None:
        yield less(protocol=None), [replace(own, protocol="tcp" if own.protocol == "udp" else "udp")]
    if match.source_ports:
        yield less(source_ports=()), [replace(own, source_port=ports[0])]
    if match.destination_ports:
        yield less(destination_ports=()), [replace(own, destination_port=ports[1])]
    if match.dscp is not None:
        yield less(dscp=None), [replace(own, dscp=8 if match.dscp == 0 else 0)]
    if match.sources or match.destinations:
        others = (
            replace(own, source=source, destination=destination, family=family)
            for source, destination, family in ends_at(hook, topology)
        )
        yield less(sources=(), destinations=()), others
    if match.datagram is not None:
        for header, foil in _beside_header(match.datagram, own):
            yield less(datagram=header), foil


def _beside_header(wanted: DatagramMatch, own: Flow) -> Iterator[tuple[DatagramMatch, list[Flow]]]:
    def less(**asked: object) -> DatagramMatch:
        return wanted.model_copy(update=asked)

    def outside(limits: tuple[int, int]) -> list[int]:
        return [one for one in (limits[1], limits[0] - 1) if 0 <= one < 2**32]

    kinds = [kind for kind in contract.KINDS if kind not in wanted.kinds]
    yield less(kinds=tuple(contract.KINDS)), [replace(own, kind=kind) for kind in kinds]
    halves = [number for name, number in contract.HALVES.items() if wanted.halves and name not in wanted.halves]
    yield less(halves=()), [replace(own, half=half) for half in halves]
    if wanted.steps is not None:
        yield less(steps=None), [replace(own, step=step) for step in outside(wanted.steps)]
    if wanted.blocks is not None:
        yield less(blocks=None), [replace(own, block=block, blocks=False) for block in outside(wanted.blocks)]
