"""Where ranks meet: what goes to and from their stores over the control network is counted by itself, on its way
through the switch. Nothing else that goes there is the rendezvous', whatever its port."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from lossbench.net.bpf.classic import classifier
from lossbench.net.host import sockets
from lossbench.net.host.place import Place
from lossbench.net.tc.hook import PARENT, Side, aside, ensure_clsact
from lossbench.spec.experiment import Experiment
from lossbench.spec.profile import Match

METER = "store"  # a dead end: copies of those packets are counted as they come there
FIRST_PRIO = 1


def count(switch: IPRoute, experiment: Experiment, ports: dict[int, int]) -> None:
    """`ports`: of the control network, by rank. Both ways at the port of the host that has the store: all that is for
    it passes there. A kernel that can't copy packets aside counts none: there is no meter then, nor a half of one."""
    try:
        _make(switch, experiment, ports)
    except NetlinkError:
        for host, _ in experiment.stores():
            with suppress(NetlinkError):
                switch.tc("del", "clsact", ports[host.rank])
        for index in switch.link_lookup(ifname=METER):
            switch.link("del", index=index)


def _make(switch: IPRoute, experiment: Experiment, ports: dict[int, int]) -> None:
    switch.link("add", ifname=METER, kind="ifb")
    meter = switch.link_lookup(ifname=METER)[0]
    switch.link("set", index=meter, state="up")
    for number, (host, port) in enumerate(experiment.stores()):
        ensure_clsact(switch, ports[host.rank])
        sides: dict[Side, Match] = {
            "egress": Match(destinations=(host.control_ipv4,), protocol="tcp", destination_ports=(port,)),
            "ingress": Match(sources=(host.control_ipv4,), protocol="tcp", source_ports=(port,)),
        }
        for side, match in sides.items():
            what = {"ops": classifier(match), "action": aside(meter, "mirror")}
            prio, parent = FIRST_PRIO + number, PARENT[side]
            switch.tc("add-filter", "bpf", ports[host.rank], handle=1, parent=parent, prio=prio, **what)


def open_besides(experiment: Experiment, place: Callable[[str], Place]) -> list[str]:
    """Which sockets are open on the control network just now, in words; connections with a store are none of them."""
    known, out = {(host.control_ipv4, port) for host, port in experiment.stores()}, []
    for host in experiment.topology.all_hosts():
        tables = [(name, place(host.name).read(f"/proc/net/{name}")) for name in sockets.TABLES]
        out += [f"{host.name} {text}" for text in sockets.open_from(host.control_ipv4, tables, besides=known)]
    return out
