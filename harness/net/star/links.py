"""Realises a topology: namespaces, links, addresses; nothing but the experiment's packets is ever on the data links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import ip_address, ip_network
from typing import Any

from pyroute2 import IPRoute

from lossbench.net.host import cgroups, namespaces
from lossbench.net.host.place import Namespace
from lossbench.net.star.neighbours import add_neighbours, lead_nowhere, where_nobody_is
from lossbench.net.tc import awake, offloads
from lossbench.net.tc.hook import HookPoint, Side
from lossbench.spec.placement import Hook
from lossbench.spec.topology import (
    CONTROL_INTERFACE,
    DATA_BRIDGE,
    DATA_INTERFACE,
    NOWHERE,
    NOWHERE_MAC,
    SWITCH,
    Host,
    Topology,
)

IFF_UP, IFF_NOARP = 0x1, 0x80
NUD_NOARP = 0x40
NTF_MASTER = 0x04
IFA_F_NODAD = 0x02
DATA_PREFIX = {4: 24, 6: 64}
EVERYBODY_MAC = "ff:ff:ff:ff:ff:ff"


def namespace_name(network_id: str, place: str) -> str:
    """Names carry the network's short id, so that cleaning up is by exact name."""
    return f"lb-{network_id}-{place}"


class Star:
    """A standing star; handles into each namespace stay open for reading and changing it."""

    def __init__(self, *, network_id: str, topology: Topology) -> None:
        self.id = network_id
        self.topology = topology
        self.switch: IPRoute
        self.ports: dict[int, int] = {}
        self.control_ports: dict[int, int] = {}
        self._stack = ExitStack()

    def namespace(self, place: str) -> str:
        return namespace_name(self.id, place)

    def place(self, name: str) -> Namespace:
        return Namespace(name, self.namespace(name))

    def places(self) -> list[str]:
        return [SWITCH, *(host.name for host in self.topology.all_hosts())]

    def names(self) -> list[str]:
        return [self.namespace(place) for place in self.places()]

    def hook_point(self, hook: Hook) -> HookPoint:
        """What a host sends enters the switch at its port."""
        side: Side = "ingress" if hook.direction == "uplink" else "egress"
        onward = tuple(self.ports.values()) if side == "ingress" else ()
        return HookPoint(hook=hook, port_index=self.ports[hook.rank], mtu=self.topology.mtu, side=side, onward=onward)

    def leads_to_hosts(self, to: str) -> bool:
        """Does a route there take packets that are for a host's data address? One to a larger network does not."""
        route, host = ip_network(to), self.topology.all_hosts()[0]
        own = ip_network(f"{host.ipv4 if route.version == 4 else host.ipv6}/{DATA_PREFIX[route.version]}", strict=False)
        return route.prefixlen >= own.prefixlen and own.overlaps(route)

    def open(self) -> None:
        """Attach to a star that stands already."""
        self.switch = self._stack.enter_context(self.place(SWITCH).netlink())
        by_name = self._links()
        self.ports = {h.rank: by_name[h.port] for h in self.topology.all_hosts() if h.port in by_name}
        self._know_control(by_name)

    def _links(self) -> dict[str, int]:
        return {link.get_attr("IFLA_IFNAME"): link["index"] for link in self.switch.get_links()}

    def build(self, *, before_making: Callable[[str, str], None]) -> None:
        """`before_making(kind, name)` is told of every thing before it exists, so that a journal can undo it."""
        group = cgroups.folder(self.id)
        if group is not None:  # undone last: who ends politely has done so by then
            before_making("group", str(group))
            cgroups.make(group)
        for name in self.names():
            before_making("namespace", name)
            namespaces.create(name)
        self._quiet_stacks()
        self.switch = self._stack.enter_context(self.place(SWITCH).netlink())
        self._build_switch()
        for host in self.topology.all_hosts():
            self._build_host(host)
        self._open_ports()
        awake.wait(self._asleep)

    def _asleep(self) -> list[str]:
        hosts = self.topology.all_hosts()
        ports = [name for host in hosts for name in (host.port, host.control_port)]
        links = {SWITCH: (*ports, NOWHERE)} | {host.name: (DATA_INTERFACE, CONTROL_INTERFACE) for host in hosts}
        return [
            f"{name} of {where}" for where, names in links.items() for name in awake.not_up(self.place(where), names)
        ]

    def _open_ports(self) -> None:
        by_name = self._links()
        self.ports = {h.rank: by_name[h.port] for h in self.topology.all_hosts()}
        self._know_control(by_name)
        data, control = by_name[DATA_BRIDGE], by_name["ctl0"]
        for host in self.topology.all_hosts():
            port = by_name[host.port]
            self._forward(data, port, host.mac, for_all=True)
            self.switch.link("set", index=by_name[host.control_port], master=control, state="up")

    def _know_control(self, by_name: dict[str, int]) -> None:
        self.control_ports = {h.rank: by_name.get(h.control_port, 0) for h in self.topology.all_hosts()}

    def _quiet_stacks(self) -> None:
        """Before any link exists: no router advertisements, no address detection, no link-local chatter."""
        for place in self.places():
            with self.place(place).inside():
                ipv6_off = place == SWITCH or self.topology.family == "ipv4"
                for scope in ("all", "default"):
                    for key, value in (
                        ("addr_gen_mode", 1),
                        ("accept_dad", 0),
                        ("accept_ra", 0),
                        ("autoconf", 0),
                        ("disable_ipv6", int(ipv6_off)),
                    ):
                        namespaces.write_sysctl(f"ipv6/conf/{scope}/{key}", value, missing_ok=True)

    def _build_switch(self) -> None:
        with self.place(SWITCH).inside():  # a switch filters nothing; the host's rules cost 6 % of an all-reduce
            for family in ("iptables", "ip6tables", "arptables"):
                namespaces.write_sysctl(f"bridge/bridge-nf-call-{family}", 0, missing_ok=True)
        for name in (DATA_BRIDGE, "ctl0"):
            self.switch.link("add", ifname=name, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
            self.switch.link("set", index=self.switch.link_lookup(ifname=name)[0], state="up")
        self._build_nowhere()

    def _build_nowhere(self) -> None:
        """Where packets for addresses that no host has are counted."""
        self.switch.link("add", ifname=NOWHERE, kind="veth", peer={"ifname": f"{NOWHERE}-end"})
        by_name = self._links()
        port = by_name[NOWHERE]
        for index in (port, by_name[f"{NOWHERE}-end"]):
            self.switch.link("set", index=index, mtu=self.topology.mtu)
        self._forward(by_name[DATA_BRIDGE], port, NOWHERE_MAC, for_all=False)
        self.switch.link("set", index=by_name[f"{NOWHERE}-end"], state="up")

    def _forward(self, bridge: int, port: int, mac: str, *, for_all: bool) -> None:
        """By fixed entries only: nothing is learned; only what is for all goes to all. Said before the port is up: what
        a host may say as soon as its link is would have taught the switch its address first."""
        self.switch.link("set", index=port, master=bridge)
        self.switch.brport("set", index=port, learning=0, unicast_flood=0, mcast_flood=for_all, bcast_flood=for_all)
        self.switch.fdb("add", ifindex=port, lladdr=mac, flags=NTF_MASTER, state=NUD_NOARP)
        self.switch.link("set", index=port, state="up")

    def _build_host(self, host: Host) -> None:
        mtu, place, hosts = self.topology.mtu, self.namespace(host.name), self.topology.all_hosts()
        for port, interface, size, mac in (
            (host.port, DATA_INTERFACE, mtu, {"address": host.mac}),
            (host.control_port, CONTROL_INTERFACE, 1500, {"address": host.control_mac}),
        ):
            peer = {"ifname": interface, "net_ns_fd": place, "mtu": size, **mac}
            self.switch.link("add", ifname=port, kind="veth", mtu=size, peer=peer)
        with namespaces.open_inside(place) as inside:
            by_name = {link.get_attr("IFLA_IFNAME"): link["index"] for link in inside.get_links()}
            data, control = by_name[DATA_INTERFACE], by_name[CONTROL_INTERFACE]
            inside.link("set", index=by_name["lo"], state="up")
            # NOARP: no address resolution and no solicited-node multicast; the neighbours are entered by hand.
            for index in (data, control):
                inside.link("set", index=index, flags=IFF_UP | IFF_NOARP, mask=IFF_UP | IFF_NOARP)
            for address in host.addresses(self.topology.family):
                # Without this flag an IPv6 address is tentative until a worker of the kernel has come round to it.
                version, flags = (6, {"flags": IFA_F_NODAD}) if ":" in address else (4, {})
                inside.addr("add", index=data, address=address, prefixlen=DATA_PREFIX[version], **flags)
            inside.addr("add", index=control, address=host.control_ipv4, prefixlen=24)
        with namespaces.inside(place):
            add_neighbours(data, [(a, h.mac) for h in hosts for a in h.addresses(self.topology.family)])
            add_neighbours(control, [(h.control_ipv4, h.control_mac) for h in hosts])
            for index, own in ((data, host.ipv4), (control, host.control_ipv4)):
                everybody = str(ip_network(f"{own}/{DATA_PREFIX[4]}", strict=False).broadcast_address)
                add_neighbours(index, [(one, EVERYBODY_MAC) for one in (everybody, "255.255.255.255")])
            for known in zip(*(h.addresses(self.topology.family) for h in hosts), strict=True):
                lead_nowhere(data, where_nobody_is(known, DATA_PREFIX[ip_address(known[0]).version]))

    def set_offloads(self) -> None:
        for host in self.topology.all_hosts():
            with self.place(host.name).inside():
                offloads.switch(DATA_INTERFACE, offloads.HOST)
        with self.place(SWITCH).inside():
            for host in self.topology.all_hosts():
                offloads.switch(host.port, offloads.PORT)

    def offloads(self) -> Iterator[tuple[str, str, dict[str, bool], dict[str, bool]]]:
        """Both ends of every data link: (host, interface, what is in force, what loss per MTU packet needs)."""
        for host in self.topology.all_hosts():
            for place, interface, wanted in (
                (host.name, DATA_INTERFACE, offloads.HOST),
                (SWITCH, host.port, offloads.PORT),
            ):
                with self.place(place).inside():
                    real = offloads.read(interface)
                yield host.name, interface, real, wanted

    def links_as_json(self) -> dict[str, Any]:
        ends: dict[str, Any] = {}
        for host, interface, real, _ in self.offloads():
            ends.setdefault(host, {})[interface] = real
        return {"mtu": self.topology.mtu, "offloads": ends}

    def offloads_wrong(self) -> list[str]:
        return [
            f"{host} {link} {name}"
            for host, link, real, wanted in self.offloads()
            for name in offloads.wrong(real, wanted)
        ]

    def close(self) -> None:
        """Handles only; `remove` takes the network down."""
        self._stack.close()
