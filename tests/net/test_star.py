"""The network itself: complete, silent, and with a control link that nothing touches."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import pytest

from lossbench.errors import RunError
from lossbench.net.host import namespaces
from lossbench.net.host.place import Place
from lossbench.net.star.links import IFA_F_NODAD, NUD_NOARP, Star
from lossbench.net.star.neighbours import NUD_PERMANENT
from lossbench.net.star.network import StarNetwork
from lossbench.net.tc import awake
from lossbench.spec.placement import Hook
from lossbench.spec.topology import CONTROL_INTERFACE, DATA_INTERFACE, SWITCH
from tests.forms import full
from tests.networks import Build, every_way, open_socket, prove, receive_all, said_on_both_links

pytestmark = pytest.mark.netns


def packets_on_the_wire(network: StarNetwork) -> int:
    total = 0
    for port in network.star.ports.values():
        stats = network.star.switch.get_links(port)[0].get_attr("IFLA_STATS64")
        total += stats["rx_packets"] + stats["tx_packets"]
    return total


def test_nothing_but_the_experiments_packets_is_on_the_wire(build: Build) -> None:
    """No ARP, no neighbour discovery, no router solicitation, no multicast listener report, no spanning tree."""
    network = build(topology={"hosts": 8, "family": "both"}, impair=[{"profile": "clean"}])
    time.sleep(3)
    assert packets_on_the_wire(network) == 0
    with open_socket(network, "h7") as receiver, open_socket(network, "h0") as sender:
        receiver.bind((network.experiment.topology.host("h7").ipv4, 5000))
        sender.sendto(b"x", (network.experiment.topology.host("h7").ipv4, 5000))
        assert receive_all(receiver) == [b"x"]
    assert packets_on_the_wire(network) == 2, "in at one port, out at another, nowhere else"


def test_a_host_that_speaks_as_soon_as_its_link_is_teaches_the_switch_nothing(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: the switch had learned its address before it was told, and told it "File exists"."""
    inner = Star._forward

    def speak_before(self: Star, *where: Any, for_all: bool) -> None:
        if for_all:
            host = next(h for h in self.topology.all_hosts() if h.mac == where[-1])
            with self.place(host.name).inside(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
                raw.bind((DATA_INTERFACE, 0))
                raw.send(b"\xff" * 6 + bytes.fromhex(host.mac.replace(":", "")) + b"\x88\xb5" + bytes(50))
        inner(self, *where, for_all=for_all)

    monkeypatch.setattr(Star, "_forward", speak_before)
    network = build(topology={"hosts": 3}, impair=[{"profile": "clean"}])
    assert packets_on_the_wire(network) == 0


def test_where_a_container_sees_proc_sys_read_only_hosts_are_quiet_all_the_same() -> None:
    """As it was: their IPv6 spoke, and the fault was unknown: more came out of the switch than went in."""
    write = "from lossbench.net.host.namespaces import write_sysctl; write_sysctl('ipv6/conf/default/accept_ra', 0)"
    in_vain = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; "
    after = "; cat /proc/sys/net/ipv6/conf/default/accept_ra; grep ' /proc/sys ro' /proc/self/mountinfo"
    command = ["unshare", "-n", "-m", "sh", "-c", f'{in_vain} "$0" -c "{write}"{after}', sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    first, *rest = done.stdout.splitlines()
    assert (first, len(rest)) == ("0", 1), done.stderr


def test_where_proc_sys_can_not_be_written_at_all_the_cause_is_named_before_anything_runs() -> None:
    """As it was: hosts spoke IPv6, and the run ended *unknown*: more came out of the switch than went in."""
    for_good = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; "  # locked in a user namespace
    asked = '"$0" -P -m lossbench.cli.main run proof --set probe.packets=500 --out "$1"'
    line = f'{for_good} exec unshare -U -r -m -n sh -c \'mount -t tmpfs run /run; {asked}\' "$0" "$1"'
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "-m", "sh", "-c", line, sys.executable, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 4, (done.returncode, done.stdout, done.stderr)
    (said,) = [line for line in done.stderr.splitlines() if "unmask=/proc/sys" in line]
    assert "can't be written" in said and "valid" not in done.stdout and "Traceback" not in done.stderr, done


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_every_host_reaches_every_other(build: Build, family: str) -> None:
    network = build(topology={"hosts": 6, "family": family}, impair=[])
    kind = socket.AF_INET if family == "ipv4" else socket.AF_INET6
    hosts = network.experiment.topology.all_hosts()
    receivers = [open_socket(network, h.name, kind) for h in hosts]
    senders = [open_socket(network, h.name, kind) for h in hosts]
    for host, receiver in zip(hosts, receivers, strict=True):
        receiver.bind((host.address(family), 5000))
    for source, sender in zip(hosts, senders, strict=True):
        for destination in hosts:
            sender.sendto(source.name.encode(), (destination.address(family), 5000))
    for receiver in receivers:
        assert sorted(receive_all(receiver, at_least=len(hosts))) == [h.name.encode() for h in hosts]
    for one in (*receivers, *senders):
        one.close()


def test_a_network_is_built_when_all_its_links_carry(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: on a busy machine the kernel came round to a link after the first packets, which nobody had lost."""
    real, looks = awake.not_up, list[str]()

    def late(place: Place, interfaces: Sequence[str]) -> list[str]:
        looks.append(place.name)
        return real(place, interfaces) if len(looks) > 5 else ["eth0"]

    monkeypatch.setattr(awake, "not_up", late)
    network = build(topology={"hosts": 2}, impair=[])
    assert len(looks) > 5 and set(looks) == {SWITCH, "h0", "h1"}
    monkeypatch.setattr(awake, "LIMIT_S", 0.0)
    monkeypatch.setattr(awake, "not_up", lambda place, _: ["eth0"] * (place.name == "h1"))
    with pytest.raises(RunError, match=r"the kernel has not brought up eth0 of h1 in 0 s"):
        awake.wait(network.star._asleep)


def test_a_link_is_up_when_packets_pass_not_when_it_shows_a_queue(build: Build) -> None:
    """As it was: of new links with a queue and a forwarding port a third threw away what they were given."""
    network = build(topology={"hosts": 2}, impair=[])
    host, port = network.place("h1"), network.star.ports[1]
    for state, expected in (("down", ["eth0"]), ("up", [])):
        network.star.switch.link("set", index=port, state=state)
        until = time.monotonic() + 30
        while awake.not_up(host, ("eth0", "ctl0")) != expected:
            assert time.monotonic() < until
    assert awake.not_up(host, ("eth0", "eth9")) == ["eth9"]
    with open_socket(network, "h1") as sender, open_socket(network, "h0") as receiver:
        receiver.bind(("10.77.0.1", 5000))
        sender.sendto(b"x", ("10.77.0.1", 5000))
        assert receive_all(receiver) == [b"x"]


def test_no_neighbour_is_learned_on_any_link(build: Build) -> None:
    """The kernel keeps at most 1024 learned neighbours for all namespaces: 64 hosts that know each other are 4032."""
    network = build(topology={"hosts": 4}, impair=[])
    hosts = network.experiment.topology.all_hosts()
    for source in hosts:
        with open_socket(network, source.name) as sender:
            for destination in hosts:
                sender.sendto(b"x", (destination.control_ipv4, 5000))
                sender.sendto(b"x", (destination.ipv4, 5000))
    time.sleep(0.1)
    for host in hosts:
        with network.star.place(host.name).netlink() as inside:
            learned = [entry for entry in inside.get_neighbours() if not entry["state"] & (NUD_PERMANENT | NUD_NOARP)]
            assert len(inside.get_neighbours()) >= 2 * len(hosts)
        assert not learned


def test_every_host_knows_every_other_for_good_on_both_links(build: Build) -> None:
    """Links ask nobody: where an entry is missing, or one that may be forgotten, 64 hosts can't talk all to all."""
    network = build(topology={"hosts": 5, "family": "both"}, impair=[])
    hosts = network.experiment.topology.all_hosts()
    for host in hosts:
        with network.star.place(host.name).netlink() as inside:
            for link, wanted in (
                (DATA_INTERFACE, {one: h.mac for h in hosts for one in h.addresses("both")}),
                (CONTROL_INTERFACE, {h.control_ipv4: h.control_mac for h in hosts}),
            ):
                index = inside.link_lookup(ifname=link)[0]
                known = {
                    entry.get_attr("NDA_DST"): entry.get_attr("NDA_LLADDR")
                    for entry in inside.get_neighbours(ifindex=index)
                    if entry["state"] & NUD_PERMANENT
                }
                assert {address: known.get(address) for address in wanted} == wanted, (host.name, link)


@pytest.mark.parametrize("hosts", [4, pytest.param(64, marks=full)])
def test_all_hosts_talk_to_all_on_both_links(build: Build, hosts: int) -> None:
    """250 of them: python tests/bench/all_to_all.py. Of 64 a mesh of Gloo had failed: the table of learned neighbours
    holds 1024 for the whole machine."""
    network = build(topology={"hosts": hosts}, impair=[])
    assert every_way(network) - said_on_both_links(network) == set()


def test_the_control_link_lives_when_the_data_link_loses_everything(build: Build, profile_file) -> None:  # noqa: ANN001
    path = profile_file('[loss]\nmodel = "iid"\npercent = 100')
    network = build(impair=[{"profile": path, "direction": "both"}])
    with (
        open_socket(network, "h0", kind=socket.SOCK_STREAM) as server,
        open_socket(network, "h3", kind=socket.SOCK_STREAM) as client,
    ):
        server.bind(("10.78.0.1", 5000))
        server.listen(1)
        client.settimeout(5)
        client.connect(("10.78.0.1", 5000))
        accepted, _ = server.accept()
        client.sendall(b"alive")
        assert accepted.recv(10) == b"alive"
        accepted.close()
    assert all(row.receiver_missing == row.receiver_sent for row in prove(network, packets=2000).rows)


def test_sixty_four_hosts_with_loss_and_rate(build: Build) -> None:
    network = build(topology={"hosts": 64, "rate_mbit": 1000}, impair=[{"profile": "loss_1"}])
    proof = prove(network, packets=64_000)
    assert proof.judgement.status == 0, proof.judgement.reasons()[:3]
    assert len(proof.rows) == 64


def test_interfaces_have_the_mtu_and_names_that_were_promised(build: Build) -> None:
    network = build(topology={"hosts": 2, "mtu": 9000}, impair=[])
    with namespaces.open_inside(network.star.namespace("h1")) as inside:
        links = {link.get_attr("IFLA_IFNAME"): link for link in inside.get_links()}
    assert links[DATA_INTERFACE].get_attr("IFLA_MTU") == 9000
    assert CONTROL_INTERFACE in links


def test_an_ipv6_address_is_there_at_once_however_busy_the_kernels_workers_are(build: Build) -> None:
    """It was tentative until one of them had come round, and on a busy machine nobody could bind to it."""
    network = build(topology={"hosts": 2, "family": "both"}, impair=[])
    with namespaces.open_inside(network.star.namespace("h1")) as inside:
        found = [one.get_attr("IFA_FLAGS") for one in inside.get_addr(family=socket.AF_INET6) if one["scope"] == 0]
    assert found and all(flags & IFA_F_NODAD for flags in found)


def test_two_networks_at_once_do_not_meet(build: Build) -> None:
    one = build(topology={"hosts": 2}, impair=[{"profile": "brownout"}])
    other = build(topology={"hosts": 2}, impair=[{"profile": "clean"}])
    assert sum(r.receiver_missing for r in prove(one, packets=2000).rows) > 0
    assert sum(r.receiver_missing for r in prove(other, packets=2000).rows) == 0


def test_a_direction_that_another_process_joins_does_not_change_what_the_other_counted(build: Build) -> None:
    """As `net set` does on a standing network, with cbpf. As it was: all that the port had sent became losses of the
    other direction. And a clsact that somebody took away is put back."""
    network = build(backend="cbpf", topology={"hosts": 2}, impair=[{"profile": "clean", "direction": "uplink"}])
    for name, other in (("h0", "h1"), ("h1", "h0")):
        with open_socket(network, name) as sender:
            for _ in range(5):
                sender.sendto(b"x", (network.experiment.topology.host(other).ipv4, 5000))
    up = next(hook for hook in network.rules if hook.rank == 0)
    down = Hook(rank=0, direction="downlink")
    attached = network.kind.make(
        network.star.switch,
        place=network.star.place(SWITCH),
        state=network.backend.state(),
        rules={hook: here for hook, here in network.rules.items() if here},
    )
    try:
        attached.put(network.star.hook_point(down), network.rules[up])
        (count,) = attached.counters(network.star.hook_point(up), network.look()).values()
        assert (count.seen, count.dropped) == (0, 0), "counted anew from then on"
        network.star.switch.tc("del", "clsact", network.star.ports[0])
        attached.put(network.star.hook_point(up), network.rules[up])
    finally:
        attached.close()


@pytest.mark.parametrize("backend", ["cbpf", "ebpf"])
def test_a_link_that_a_rank_has_deleted_ends_the_run_in_words(build: Build, backend: str) -> None:
    """As it was: a scheduled change that came before the next look ended in a KeyError."""
    network = build(backend=backend, topology={"hosts": 2}, impair=[{"profile": "loss_5", "direction": "both"}])
    with network.place("h0").netlink() as inside:
        inside.link("del", index=inside.link_lookup(ifname="eth0")[0])
    with pytest.raises(RunError, match="links went away"):
        network.put(dict.fromkeys(network.rules, ()))
    if backend == "cbpf":
        with pytest.raises(RunError, match="links went away during the run: that of h0"):
            network.counters()
