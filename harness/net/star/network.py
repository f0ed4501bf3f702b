"""A star under test: namespaces, offloads, rates, backend and gauges, in one object that a run or a lab holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from lossbench.errors import RunError
from lossbench.net import network
from lossbench.net.counters import Detour, HeldByRule, HookCounters, ReadBack, Reading
from lossbench.net.host import namespaces
from lossbench.net.host.place import Place
from lossbench.net.impair import registry
from lossbench.net.impair.backend import Backend, KeepsTime, PutsMany
from lossbench.net.star import handles, stores
from lossbench.net.star.gauges import Gauges
from lossbench.net.star.links import Star
from lossbench.net.tc import kinds, offloads, shaping
from lossbench.net.tc.hook import HookPoint
from lossbench.net.tc.look import Look
from lossbench.net.tc.shaping import ClassState
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import Hook, Rule, Rules, rules_ever
from lossbench.spec.topology import DATA_INTERFACE, SWITCH


class StarNetwork:
    """See net.network.Network."""

    genuine = True

    def __init__(self, *, network_id: str, experiment: Experiment, backend: str) -> None:
        kinds.install()
        self.experiment = experiment
        self.star = Star(network_id=network_id, topology=experiment.topology)
        self.gauges = Gauges(self.star)
        self.kind = registry.find(backend)
        self.begins_good = self.kind.begins_good
        self.keeps_time = registry.keeps_time(self.kind, rules_ever(experiment, seed=0, kept=True))
        self.backend: Backend
        self.rules: Rules = {}
        self._detours_at_start: dict[str, Detour] = {}

    def build(self, *, before_making: Callable[[str, str], None]) -> None:
        handles.raise_limit(self.experiment)
        self.star.build(before_making=before_making)
        stores.count(self.star.switch, self.experiment, self.star.control_ports)
        self.backend = self._make_backend()

    def cut_to_mtu(self) -> None:
        """Senders cut to the MTU before the loss point, receivers merge behind it."""
        self.star.set_offloads()

    def attach(self, *, state: dict[str, Any], rules: Rules) -> None:
        """To a network that another process built."""
        self.star.open()
        self.rules = rules
        self.backend = self._make_backend(state=state, rules=rules)

    def strip(self) -> None:
        """Bare hooks: every filter at a port, and every device that packets were led to, is taken away."""
        for port in self.star.ports.values():
            with suppress(NetlinkError):  # there was none
                self.star.switch.tc("del", "clsact", port)
        for link in self.star.switch.get_links(kind="ifb"):
            if link.get_attr("IFLA_IFNAME") != stores.METER:
                self.star.switch.link("del", index=link["index"])
        self.rules = {}
        self.backend.close()
        self.backend = self._make_backend()

    def _make_backend(self, *, state: dict[str, Any] | None = None, rules: Rules | None = None) -> Backend:
        """`state` and `rules` if another process put them in force."""
        return self.kind.make(self.star.switch, place=self.star.place(SWITCH), state=state, rules=rules)

    def place(self, host: str) -> Place:
        return self.star.place(host)

    def offloads_wrong(self) -> list[str]:
        return self.star.offloads_wrong()

    def links_as_json(self) -> dict[str, Any]:
        return self.star.links_as_json()

    # --- rates -----------------------------------------------------------------------------------------------------

    def _shaped(self) -> tuple[bool, bool]:
        topology = self.experiment.topology
        return topology.uplink_mbit() is not None, topology.downlink_mbit() is not None

    def _plan(self, *, at_host: bool) -> list[shaping.Step]:
        topology = self.experiment.topology
        rate = topology.uplink_mbit() if at_host else topology.downlink_mbit()
        if rate is None:
            return [] if at_host else shaping.room()
        return shaping.plan(self.experiment.shaping, rate_mbit=rate, mtu=topology.mtu, at_host=at_host)

    def shape(self) -> None:
        """Rates and classes of every link."""
        up, down = self._shaped()
        for host in self.experiment.topology.all_hosts():
            port, steps = self.star.ports[host.rank], self._plan(at_host=False)
            if steps and not down:
                self.star.switch.link("set", index=port, txqlen=shaping.ROOM_PACKETS)
            shaping.carry_out(self.star.switch, port, steps)
            if down and self.experiment.shaping.queue == "fq_codel":  # marks are for those who ask for them
                shaping.ask_for_marks(self.place(host.name))
            if up:
                with self.place(host.name).netlink() as inside:
                    index = inside.link_lookup(ifname=DATA_INTERFACE)[0]
                    # Without this TCP's super-packets would sit in the slow uplink's queue as one piece.
                    inside.link("set", index=index, gso_max_segs=1)
                    shaping.carry_out(inside, index, self._plan(at_host=True))

    def shaping_wrong(self, look: Look | None = None) -> list[str]:
        """Rates, classes, queues and their sizes that are not as they were asked for. With a `look` only what that
        shows: queues that are gone or of another size."""
        out, seen = [], look or self.look()
        for at_host, asked in zip((True, False), self._shaped(), strict=True):
            steps = self._plan(at_host=at_host) if asked else []
            if look is not None:
                steps = [step for step in steps if step.command == "add"]
            for host in self.experiment.topology.all_hosts() if steps else ():
                place = self.gauges.host(host.rank)
                index = place.index if at_host else self.star.ports[host.rank]
                qdiscs = seen.hosts[host.rank] if at_host else seen.qdiscs.get(index, ())
                reader = place.reader if at_host else seen.reader
                classes, filters = ([], []) if look is not None else shaping.sorting(reader, index, steps)
                wrong = shaping.differs(steps, qdiscs, classes, filters)
                out += [f"{host.name} {'uplink' if at_host else 'downlink'}: {text}" for text in wrong]
        return out

    def classes(self, look: Look | None = None) -> dict[str, list[ClassState]]:
        """Per-class counters and backlog of every shaped link. With a `look` rates are not asked for again."""
        out: dict[str, list[ClassState]] = {}
        how, (up, down) = self.experiment.shaping, self._shaped()
        seen = look or self.look()
        for host in self.experiment.topology.all_hosts():
            index, place = self.star.ports[host.rank], self.gauges.host(host.rank)
            if down:
                rate = shaping.link_mbit(seen.reader.classes(index)) if look is None else 0.0
                out[f"{host.name} downlink"] = shaping.leaves(seen.qdiscs.get(index, ()), how, rate_mbit=rate)
            if up:
                rate = shaping.link_mbit(place.reader.classes(place.index)) if look is None else 0.0
                out[f"{host.name} uplink"] = shaping.leaves(seen.hosts[host.rank], how, rate_mbit=rate)
        return out

    # --- rules -----------------------------------------------------------------------------------------------------

    def expect(self, rules: Rules) -> None:
        """Every rule that the schedule will ever put in force; before the first `put`."""
        for hook, here in rules.items():
            self.backend.expect(self.star.hook_point(hook), here)

    def put(self, rules: Rules) -> list[Hook]:
        """Put rules in force; only hooks whose rules differ are touched. Returns those."""
        if any(rule.profile.corrupt_percent for here in rules.values() for rule in here):
            self._checksum_in_software()
        changed = {hook: here for hook, here in rules.items() if self.rules.get(hook) != here}
        for here in changed.values():
            assert len({rule.label for rule in here}) == len(here), "counters are kept by label"
        try:
            self._put([(self.star.hook_point(hook), here) for hook, here in changed.items()])
        except (NetlinkError, OSError) as error:
            gone = self.links_wrong(self.look())
            if gone:
                raise RunError(f"links went away during the run: {', '.join(gone)}") from error
            raise
        self.rules |= changed
        return list(changed)

    def _put(self, points: list[tuple[HookPoint, tuple[Rule, ...]]]) -> None:
        if isinstance(self.backend, PutsMany):
            self.backend.put_many(points)
            return
        for point, here in points:
            self.backend.put(point, here)
            self.rules[point.hook] = here

    def restart(self) -> None:
        """Counters at zero, seeded patterns at their first packet. Nothing is under way now."""
        for hook in self.rules:
            self.backend.restart(self.star.hook_point(hook))
        self._detours_at_start = {}
        held = self.read().detours
        self._detours_at_start = {one.place: one for here in held.values() for one in here}

    def begin(self, at_s: float) -> None:
        if isinstance(self.backend, KeepsTime):
            self.backend.begin(round(at_s * 1e9))

    def _checksum_in_software(self) -> None:
        """Damaged packets must carry the sender's checksum, or the damage would reach the application unseen."""
        for host in self.experiment.topology.all_hosts():
            with self.place(host.name).inside():
                offloads.switch(DATA_INTERFACE, dict.fromkeys(offloads.CHECKSUM, False))

    # --- reading ---------------------------------------------------------------------------------------------------

    def look(self) -> Look:
        """At the switch, and at the hosts whose links are shaped there."""
        return self.gauges.look(hosts=self.star.ports if self._shaped()[0] else ())

    def read(self, *, look: Look | None = None, sockets: bool = False) -> Reading:
        """Every counter, now. `sockets`: those inside the hosts too."""
        look = look or self.look()
        hooks, detours = {}, {}
        for hook in self.rules:
            point = self.star.hook_point(hook)
            hooks[hook] = self.backend.counters(point, look)
            raw = self.backend.detours(point, look, hooks[hook])
            detours[hook] = tuple(self._since_start(one) for one in raw)
        links = {
            rank: self.gauges.link_counts(rank, look, shaped=self._shaped(), sockets=sockets)
            for rank, port in self.star.ports.items()
            if port in look.links
        }
        return Reading(time_s=time.monotonic(), links=links, hooks=hooks, detours=detours, **self.gauges.aside(look))

    def _since_start(self, one: Detour) -> Detour:
        start = self._detours_at_start.get(one.place)
        if start is None:
            return one
        return replace(one, returned=one.returned - start.returned, dropped=one.dropped - start.dropped)

    def settled(self, *, since: Reading | None = None) -> tuple[Reading, int]:
        return network.settled(self, since=since)

    def end_programs(self) -> None:
        """Whatever a workload left running in its hosts."""
        namespaces.kill_inside([name for name in self.star.names() if name != self.star.namespace(SWITCH)])

    def counters(self) -> HookCounters:
        """Since they were last at zero, of every rule that was in force."""
        look = self.look()
        return {hook: self.backend.counters(self.star.hook_point(hook), look) for hook in self.rules}

    def read_back(self, look: Look | None = None) -> dict[Hook, list[ReadBack]]:
        look = look or self.look()
        return {hook: self.backend.read_back(self.star.hook_point(hook), look) for hook in self.rules}

    def control_sockets(self) -> list[str]:
        return stores.open_besides(self.experiment, self.place)

    def held(self) -> HeldByRule:
        """Of wires that hold packets back in user space."""
        report = getattr(self.backend, "held", None)
        return report() if report is not None else {}

    def not_in_force(self, look: Look | None = None) -> list[str]:
        """What the kernel no longer has as it was put there, and what stands ahead of it."""
        look = look or self.look()
        return [*self.gauges.ahead(look), *network.not_in_force(self.read_back(look))]

    def changes(self) -> list[str]:
        """What others changed since the last call; `listen` comes first."""
        ours = {self.star.switch.asyncore.epid}
        return self.gauges.changes(ours=ours, mtu=self.experiment.topology.mtu)

    def listen(self) -> None:
        """To changes at the ports and in the hosts."""
        self.gauges.listen([SWITCH, *(host.name for host in self.experiment.topology.all_hosts())])
        self.changes()

    def hosts_wrong(self, *, some: bool = False) -> list[str]:
        return self.gauges.inside(some=some)

    def links_wrong(self, look: Look) -> list[str]:
        """Ports that were there and are gone or down."""
        up = {link.name for link in look.links.values() if link.up}
        return [f"switch port {h.port}" for h in self.experiment.topology.all_hosts() if h.port not in up]

    def mtu_wrong(self, look: Look) -> list[str]:
        asked = self.experiment.topology.mtu
        ends = [(h.port, look.links.get(self.star.ports[h.rank])) for h in self.experiment.topology.all_hosts()]
        ends += [(h.name, self.gauges.host(h.rank).link()) for h in self.experiment.topology.all_hosts()]
        return [f"{name}: MTU {link.mtu}, not {asked}" for name, link in ends if link is not None and link.mtu != asked]

    def longest_wait_s(self) -> float:
        return network.longest_wait_s(self.rules)

    # --- standing labs -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return self.backend.state()

    def close(self) -> None:
        """Handles only: the network stands on. Each is let go of, whatever the one before said."""
        with ExitStack() as stack:
            stack.callback(self.star.close)
            if hasattr(self, "backend"):
                stack.callback(self.backend.close)
            stack.callback(self.gauges.close)
