"""Readers into every namespace of a star, opened once: counters of ports, queues and sockets, and who changed what."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from lossbench.net.bpf import links, syscalls
from lossbench.net.counters import LinkCounts, Queue, Sockets
from lossbench.net.host.place import Place
from lossbench.net.host.stack import Stack
from lossbench.net.star.links import Star
from lossbench.net.star.neighbours import NOWHERE as ROUTERS
from lossbench.net.star.stores import METER
from lossbench.net.tc import shaping
from lossbench.net.tc.hook import PARENT
from lossbench.net.tc.look import Look
from lossbench.net.tc.rtnl import Monitor, Reader
from lossbench.net.tc.rtnl_messages import Change, Link, Qdisc
from lossbench.spec.topology import DATA_BRIDGE, DATA_INTERFACE, NOWHERE, SWITCH, Host

HOSTS_A_LOOK = 8  # that are looked into at each, in turn: 64 in two seconds
TABLES = ("ip_tables_names", "ip6_tables_names")


class _Host:
    """One host's readers."""

    def __init__(self, place: Place) -> None:
        self.reader = Reader(place)
        self.index = next(one.index for one in self.reader.links().values() if one.name == DATA_INTERFACE)
        self._stack = Stack(place)

    def link(self) -> Link:
        return self.reader.link(self.index)

    def queues(self) -> list[Qdisc]:
        return [one for one in self.reader.qdiscs() if one.index == self.index]

    def sockets(self) -> Sockets:
        return self._stack.read()

    def bare(self) -> bool:
        return self._stack.bare()

    def close(self) -> None:
        self.reader.close()
        self._stack.close()


class Gauges:
    """Of one standing star."""

    def __init__(self, star: Star) -> None:
        self._star = star
        self._switch: Reader | None = None
        self._hosts: dict[int, _Host] = {}
        self._monitors: dict[str, Monitor] = {}
        self._devices: dict[int, str] = {}  # of the switch, by index
        self._bare: dict[str, None] = {}  # hosts where sockets took whole packets
        self._hardware: dict[int, str] = {}  # addresses of the switch's links, as they were given
        self._last_link = 0  # of BPF's, on this machine
        self._namespaces: dict[int, str] = {}  # of hosts, by inode
        self._turn = cycle(star.topology.all_hosts())
        self._known = {a for h in star.topology.all_hosts() for a in (h.ipv4, h.ipv6)} | set(ROUTERS.values())

    def look(self, *, hosts: Iterable[int] = ()) -> Look:
        """`hosts`: whose own queues are wanted too."""
        if self._switch is None:
            self._switch = Reader(self._star.place(SWITCH))
        return replace(Look.now(self._switch), hosts={rank: self.host(rank).queues() for rank in hosts})

    def host(self, rank: int) -> _Host:
        if rank not in self._hosts:
            self._hosts[rank] = _Host(self._star.place(self._star.topology.all_hosts()[rank].name))
        return self._hosts[rank]

    def link_counts(self, rank: int, look: Look, *, shaped: tuple[bool, bool], sockets: bool) -> LinkCounts:
        """`shaped`: is a rate asked of the uplink, of the downlink?"""
        port, control = look.links[self._star.ports[rank]], look.links.get(self._star.control_ports.get(rank, 0))
        up = _queue(look.hosts.get(rank, ()), asked=shaped[0])
        own = self.host(rank).link() if sockets else None
        return LinkCounts(
            lost_entering=port.rx_dropped,
            entered=port.rx_packets,
            entered_bytes=port.rx_bytes,
            left=port.tx_packets,
            left_bytes=port.tx_bytes,
            control_bytes=control.rx_bytes if control is not None else 0,
            lost_leaving=port.tx_dropped,
            lost_arriving=own.rx_dropped if own is not None else 0,
            misled=own.rx_misled if own is not None else 0,
            up=up,
            down=_queue(look.qdiscs.get(port.index, ()), asked=shaped[1]),
            sockets=self.host(rank).sockets() if sockets else None,
        )

    def aside(self, look: Look) -> dict[str, Any]:
        """Of Reading: what came to the bridge for all (it takes each of them itself too), and for nobody; what went to
        and from the ranks' stores; and who may have lost packets that nobody counts."""
        bridge, nowhere, store = (look.device(name) for name in (DATA_BRIDGE, NOWHERE, METER))
        return {
            "for_all": bridge.rx_packets if bridge is not None else 0,
            "for_nobody": nowhere.tx_packets + nowhere.tx_dropped if nowhere is not None else 0,
            "store_bytes": store.rx_bytes if store is not None else 0,
            "store_packets": store.rx_packets if store is not None else 0,
            "store_told": store is not None,
            "bare": self._bare_so_far(),
        }

    def _bare_so_far(self) -> tuple[str, ...]:
        if self._monitors:
            hosts = self._star.topology.all_hosts()
            self._bare |= dict.fromkeys(one.name for one in hosts if self.host(one.rank).bare())
        return tuple(self._bare)

    # --- changes ----------------------------------------------------------------------------------------------------

    def listen(self, places: list[str]) -> None:
        """From now on every change in these places is heard of."""
        self._bare = {}
        for place in places:
            if place not in self._monitors:
                self._monitors[place] = Monitor(self._star.place(place), stack=place != SWITCH)
        found = self.look().links
        self._devices = {index: one.name for index, one in found.items() if one.name not in ("lo", "ctl0", METER)}
        self._hardware = {index: one.address for index, one in found.items()}
        for host in self._star.topology.all_hosts():
            with self._star.place(host.name).inside():
                self._namespaces[Path("/proc/thread-self/ns/net").stat().st_ino] = host.name
        with suppress(PermissionError):  # without privilege nobody of ours can ask, nor put one there
            self._last_link = links.newest()

    def changes(self, *, ours: set[int], mtu: int) -> list[str]:
        """What others changed since the last call: filters, qdiscs and classes, links that went down, another MTU, an
        XDP program, who has which hardware address. What a program does to links of its own is its own affair."""
        out = []
        for place, monitor in self._monitors.items():
            names = self._watched(place)
            out += [self._in_words(place, names, one, mtu) for one in monitor.changes() if one.by not in ours]
        return list(dict.fromkeys(filter(None, out)))

    def _in_words(self, place: str, names: dict[int, str], change: Change, mtu: int) -> str:
        """Empty where it is nothing to the fault."""
        where, link = f"{place} {names.get(change.index, '')}".strip(), change.link
        if change.index == 0:
            return f"{place}: {change.what} during the run"
        if change.index not in names:
            if link is not None and link.below in names and place != SWITCH:
                return f"{place}: the link {link.name} was put on its data link during the run"
            around = change.to and self._star.leads_to_hosts(change.to)
            return f"{place}: {change.what} during the run, around the data link: to {change.to}" if around else ""
        if change.of is not None and change.of not in self._known:
            return ""  # the kernel's own: groups, routers of elsewhere
        if link is None:
            return f"{where}: {change.what} during the run, not by lossbench"
        if place == SWITCH and change.index not in self._star.ports.values():
            return ""  # of these only tc's changes tell something
        state = "an XDP program" if link.xdp else "it was down" if not link.up else ""
        state = state or ("part of another link" if link.master and place != SWITCH else "")
        state = state or (f"MTU {link.mtu}" if link.mtu != mtu else "")
        given = self._hardware.get(change.index) if place == SWITCH else self._star.topology.host(place).mac
        if not state and link.address not in ("", given):
            state = f"the hardware address {link.address}"
        return f"{where}: {state} during the run" if state else ""

    def _watched(self, place: str) -> dict[int, str]:
        """Of the switch: ports, and the devices that hold packets back behind them."""
        if place == SWITCH:
            return self._devices
        return {self.host(self._star.topology.host(place).rank).index: DATA_INTERFACE}

    def ahead(self, look: Look) -> list[str]:
        """Programs that packets meet before our filters."""
        ports = {
            self._star.ports[h.rank]: h.port for h in self._star.topology.all_hosts() if h.rank in self._star.ports
        }
        out = [
            f"{ports[i]}: an XDP program runs ahead of the fault"
            for i in ports
            if i in look.links and look.links[i].xdp
        ]
        try:
            with self._star.place(SWITCH).inside():
                out += [
                    f"{name}: a tcx program runs ahead of the fault"
                    for index, name in ports.items()
                    if any(syscalls.tcx_programs(index, side) for side in PARENT)
                ]
        except PermissionError:  # without privilege nobody of ours can ask, nor put one there
            pass
        return out

    def inside(self, *, some: bool) -> list[str]:
        """What stands in hosts and no message tells of. `some`: the next few of them, in turn."""
        every = self._star.topology.all_hosts()
        hosts = islice(self._turn, min(HOSTS_A_LOOK, len(every))) if some else every
        return [*self._by_links(), *(text for host in hosts for text in self._inside(host))]

    def _by_links(self) -> list[str]:
        """Programs in hosts that no interface of theirs shows."""
        with suppress(PermissionError):
            held, self._last_link = links.since(self._last_link, self._namespaces)
            names = self._namespaces
            return [f"{names.get(one.namespace, 'maybe in a host')}: {one.what} during the run" for one in held]
        return []

    def _inside(self, host: Host) -> list[str]:
        """Firewall tables of before nftables, and programs at its link, XDP or tcx, that go with a descriptor."""
        mine, out = self.host(host.rank), []
        with suppress(OSError):  # a link that is gone is missed elsewhere
            if mine.link().xdp:
                out.append(f"{host.name}: an XDP program stands at its own link")
        with self._star.place(host.name).inside():
            for name in TABLES:
                with suppress(OSError):  # a kernel that has none of them
                    if Path("/proc/thread-self/net", name).read_text(encoding="ascii").split():
                        out.append(f"{host.name}: a firewall (iptables) came up during the run")
            with suppress(PermissionError):  # without privilege nobody of ours can ask, nor put one there
                if any(syscalls.tcx_programs(mine.index, side) for side in PARENT):
                    out.append(f"{host.name}: a tcx program stands at its own link")
        return out

    def close(self) -> None:
        for one in (*self._hosts.values(), *self._monitors.values(), *((self._switch,) if self._switch else ())):
            one.close()
        self._hosts, self._monitors, self._switch = {}, {}, None


def _queue(qdiscs: Iterable[Qdisc], *, asked: bool) -> Queue:
    mine = [one for one in qdiscs if shaping.is_queue(one)]
    return Queue(dropped=sum(q.dropped for q in mine), waiting=sum(q.waiting for q in mine), asked=asked)
