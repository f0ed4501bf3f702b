"""One machine's part of a run's network: its interface under rules, for as long as its agent lives and is beaten.

Packets to the other machines are led aside at egress and meet the rules of the host's uplink; what comes from them
meets those of its downlink, or is only counted."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter
from pyroute2 import IPRoute

from lossbench.errors import RunError
from lossbench.net.conservation import passed_by
from lossbench.net.counters import UNMATCHED, Counters, Detour, LinkCounts, ReadBack, RuleCounters, Sockets
from lossbench.net.host.place import Here
from lossbench.net.host.stack import Stack
from lossbench.net.journal import Journal
from lossbench.net.nic import facts as nic_facts
from lossbench.net.nic import impaired, left, state, takedown
from lossbench.net.nic.request import DIRECTION, RULES, Request
from lossbench.net.nic.state import State
from lossbench.net.nic.way import detour
from lossbench.net.nic.way.clock import SIDES, Clock
from lossbench.net.nic.way.gate import no_gate
from lossbench.net.nic.way.programs import Traffic
from lossbench.net.tc.hook import TC_H_ROOT, Side
from lossbench.net.tc.look import Look
from lossbench.net.tc.rtnl import Monitor, Reader
from lossbench.net.tc.rtnl_messages import Change
from lossbench.spec.experiment import Direction

CARD = ("tx_dropped", "tx_errors", "rx_missed_errors", "rx_over_errors", "rx_crc_errors", "rx_fifo_errors")


@dataclass(frozen=True, kw_only=True)
class Report:
    """At one moment. `card`: what the interface itself has lost, by the kernel's names."""

    link: LinkCounts
    hooks: dict[Direction, Counters]
    detours: dict[Direction, tuple[Detour, ...]]
    read_back: dict[Direction, list[ReadBack]]
    card: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)  # what stands no longer as it was put there
    changes: list[str] = field(default_factory=list)  # by others, since the last report
    offloads: list[str] = field(default_factory=list)
    up: bool = True
    mtu: int = 0


REPORT: TypeAdapter[Report] = TypeAdapter(Report)


def changed(changes: Iterable[Change], *, index: int, mtu: int, ours: set[int]) -> list[str]:
    """By others, at our interface; and that more was said than could be listened to, which is about none of them. Of
    addresses, routes and a firewall nothing is heard: a machine's own daemons renew those all the time."""
    out = []
    for change in changes:
        if change.index == 0:
            out.append(f"{change.what} during the run")
        elif change.index == index and change.by not in ours:
            if change.link is None:
                out.append(f"{change.what} during the run, not by lossbench")
            elif not change.link.up or change.link.mtu != mtu:
                how = f"MTU {change.link.mtu}" if change.link.up else "it was down"
                out.append(f"{how} during the run")
    return list(dict.fromkeys(out))


class Half:
    """Built, changed in place, given back. Every public method is a question."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._held: State | None = None
        self._beating = threading.Lock()  # beats come by a thread of their own

    def examined(self, *, interface: str, peers: list[str], past_rdma: bool, this_nic: bool) -> None:
        """Refuses what `build` would of an interface, before anything is begun."""
        traffic = Traffic(peers=tuple(peers))
        request = Request(interface=interface, rules={}, for_s=0, counted=SIDES, traffic=traffic, attached=True)
        impaired.examined(replace(request, past_rdma=past_rdma, this_nic=this_nic))

    def build(self, *, rules: Any, later: Any, traffic: dict[str, Any], **asked: Any) -> None:
        if self._held is not None:
            raise RunError("a network stands here already")
        peers, own = tuple(traffic["peers"]), tuple(traffic["own"])
        request = Request(
            rules=RULES.validate_python(rules),
            later=RULES.validate_python(later),
            traffic=Traffic(peers=peers, own=own),
            attached=True,
            placed=True,
            **{**asked, "counted": tuple(asked["counted"]), "spared": tuple(asked["spared"])},
        )
        facts, backend = impaired.examined(request)
        self._request, self._facts = request, left.cleared(facts)
        self._book = Journal.claim(kind="nic")
        self._stack.callback(takedown.take_away_or_say, self._book)
        try:
            self._open(backend)
        except BaseException:
            self.end()
            raise

    def _open(self, backend: str) -> None:
        begun = impaired.begun(self._request, self._book, self._facts, backend)
        held, self._detours = impaired.put(self._request, self._book, self._facts, begun)
        self._stack.callback(impaired.closed, self._detours)
        clock = Clock.opened(held.maps)
        assert clock is not None, "the gates that were just opened hold them"
        self._clock = clock
        self._stack.callback(clock.close)
        self._reader, self._sockets, self._monitor = Reader(Here()), Stack(Here()), Monitor(Here())
        self._ip = self._stack.enter_context(IPRoute())
        for one in (self._reader, self._sockets, self._monitor):
            self._stack.callback(one.close)
        self._held = held  # last: from now on it can be beaten
        self.beat()
        self._at_start = self._raw(Look.now(self._reader))

    def beat(self) -> None:
        """It is still wanted; what somebody has ended is not begun again."""
        with self._beating:
            if self._held is not None and not takedown.revoked(self._book):
                self._clock.set(min(state.now() + state.LEASE_S, self._held.expires))

    def put(self, rules: Any) -> None:
        """In place; what is as it was is left alone."""
        for side, here in RULES.validate_python(rules).items():
            one = self._at(side)
            if one is not None and one.rules != here:
                one.put(here)

    def _at(self, side: Side) -> detour.Detour | None:
        return next((one for one in self._detours if one.side == side), None)

    def restart(self) -> None:
        """Counters at zero: the rules' by themselves, the gates' and devices' by what they had until now."""
        for one in self._detours:
            one.restart()
        self._at_start = self._raw(Look.now(self._reader))

    def _raw(self, look: Look) -> dict[str, dict[str, int]]:
        """By side: what the gate took and got back, what the detour lost before the rules and behind them."""
        counted = self._clock.counted()
        out = {side: dict(counted[side]) for side in self._request.every_side()}
        for one in self._detours:
            out[one.side] |= one.lost(look)
        return {str(side): numbers for side, numbers in out.items()}

    def _since(self, look: Look) -> dict[str, dict[str, int]]:
        now = self._raw(look)
        return {
            side: {name: count - self._at_start.get(side, {}).get(name, 0) for name, count in numbers.items()}
            for side, numbers in now.items()
        }

    # --- reading ---------------------------------------------------------------------------------------------------

    def report(self, *, sockets: bool) -> dict[str, Any]:
        if self._held is None:
            raise RunError("no network stands here")
        if takedown.revoked(self._book):  # nothing of it is there to be read
            raise RunError("it was taken back: by somebody there, or since the controller was not heard in time")
        look = Look.now(self._reader)
        counted = self._since(look)
        hooks: dict[Direction, Counters] = {}
        detours: dict[Direction, tuple[Detour, ...]] = {}
        back: dict[Direction, list[ReadBack]] = {}
        for one in self._detours:
            direction, numbers = DIRECTION[one.side], counted[one.side]
            counters = hooks[direction] = one.counters(look)
            held = one.held(look, counters)
            into = passed_by(counters, held)
            place = f"{one.hook.name}: the way back to {self._facts.name}"
            way = Detour(place=place, into=into, returned=numbers["returned"], dropped=numbers["behind"])
            detours[direction], back[direction] = (*held, way), one.read_back(look)
        if "uplink" not in hooks:  # counted by the gate alone
            hooks["uplink"] = {UNMATCHED: RuleCounters(seen=counted["egress"]["taken"])}
        link, mine = self._link(counted, sockets=sockets), look.links.get(self._facts.index)
        found = Report(
            link=link,
            hooks=hooks,
            detours=detours,
            read_back=back,
            card=self._card(look),
            wrong=self._wrong(look),
            changes=self._heard(),
            offloads=[text for one in self._detours for text in one.offloads_wrong()],
            up=mine is not None and mine.up,
            mtu=mine.mtu if mine is not None else 0,
        )
        return asdict(found)

    def _link(self, counted: dict[str, dict[str, int]], *, sockets: bool) -> LinkCounts:
        """What was lost on the way to the rules never came to them."""
        out, into = counted["egress"], counted["ingress"]
        return LinkCounts(
            lost_entering=out.get("before", 0),
            entered=out["taken"] - out.get("before", 0),
            came=into["taken"] - into.get("before", 0),
            left=into["returned"] if self._at("ingress") is not None else into["taken"],
            sockets=self._own_sockets() if sockets else None,
        )

    def _own_sockets(self) -> Sockets:
        """Without what a machine does to packets of all its networks: what sockets of UDP lost alone."""
        stack = ["discarded", "misled", "unassembled", "cut", "cut_6", "pieces", "pieces_6"]
        stack += ["unfit", "from_elsewhere", "by_ipsec", "turned_away"]
        stack += ["tcp_held", "tcp_full", "tcp_ahead", "tcp_unaccepted", "no_memory"]
        return replace(self._sockets.read(), **dict.fromkeys(stack, 0))

    def _card(self, look: Look) -> dict[str, int]:
        """The interface's own losses, those of its queues, and of the way to the downlink's rules."""
        link = next(iter(self._ip.get_links(self._facts.index)), None)
        stats = (link.get_attr("IFLA_STATS64") if link is not None else None) or {}
        out = {name: int(stats.get(name, 0)) for name in CARD}
        queues = [one for one in look.qdiscs.get(self._facts.index, ()) if one.kind != "clsact"]
        root = sum(one.dropped for one in queues if one.parent == TC_H_ROOT)
        out["its queues"] = max(root, sum(one.dropped for one in queues if one.parent != TC_H_ROOT))
        out["the way to its rules"] = self._since(look).get("ingress", {}).get("before", 0)
        return out

    def _wrong(self, look: Look) -> list[str]:
        gone = [text for side in self._request.every_side() for text in no_gate(look, self._facts, side, self._book.id)]
        passed = sum(numbers["expired"] for numbers in self._since(look).values())
        if passed:
            gone.append(f"{passed} packets passed while the controller was not heard, untouched")
        return gone

    def _heard(self) -> list[str]:
        ours = {one.handle.asyncore.epid for one in self._detours}
        return changed(self._monitor.changes(), index=self._facts.index, mtu=self._facts.mtu, ours=ours)

    def listen(self) -> None:
        """From now on."""
        self._heard()

    def about(self, interface: str) -> dict[str, Any]:
        """What a topology says of a machine's interface."""
        found = nic_facts.of(interface)
        with IPRoute() as ip:
            link = next(iter(ip.get_links(found.index)))
            return {"mtu": found.mtu, "mac": str(link.get_attr("IFLA_ADDRESS") or "")}

    def end(self) -> None:
        """As it was before."""
        with self._beating:
            self._held = None
        self._stack.close()

    close = end
