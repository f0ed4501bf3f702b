"""What hosts do to packets themselves, before the fault and behind it: pieces of large ones, sockets nobody counts."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable

import pytest

from lossbench.net import conservation
from lossbench.net.bpf import links
from lossbench.net.conservation import Between
from lossbench.net.counters import LinkCounts, Reading, Sockets
from lossbench.net.host import namespaces
from lossbench.net.host.stack import Stack
from lossbench.net.star.gauges import HOSTS_A_LOOK
from lossbench.net.star.neighbours import NUD_PERMANENT
from lossbench.net.star.network import StarNetwork
from lossbench.proof.covers.rows import covered, not_judged
from lossbench.proof.judge import judge
from lossbench.proof.judge_fault import _judge_conservation
from lossbench.proof.judge_rules import judge_fragments
from lossbench.proof.watched import Watched
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import Hook, Rule
from lossbench.spec.profile import Profile
from lossbench.workloads.transport.udp.admission import admit_only
from tests.attached import How, attach, attached, attached_by_a_program
from tests.forms import forms
from tests.networks import Build, on_host, open_socket, receive_all
from tests.shared import foreign_network

netns = pytest.mark.netns
RELEASE = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
LINKED = pytest.mark.skipif(RELEASE < (6, 4), reason="programs at a firewall's hooks came with Linux 6.4")


def send_large(network: StarNetwork, *, times: int, family: str = "ipv4", size: int = 8000) -> None:
    """From h0 to h1, more than fits a packet; what arrives is read."""
    kind = socket.AF_INET6 if family == "ipv6" else socket.AF_INET
    address = network.experiment.topology.host("h1").address(family)
    with open_socket(network, "h1", kind) as receiver, open_socket(network, "h0", kind) as sender:
        receiver.bind((address, 5000))
        receiver.setblocking(False)
        for _ in range(times):
            sender.sendto(bytes(size), (address, 5000))
            try:
                receiver.recv(size)
            except BlockingIOError:
                continue


@netns
def test_fragments_that_find_no_room_are_lost_elsewhere(build: Build) -> None:
    """As it was: 5 % asked, 86 % of large datagrams lost, since unfinished ones filled the room for pieces: valid."""
    network = build(topology={"hosts": 2, "family": "ipv4"}, impair=[{"profile": "loss_10"}])
    with network.place("h1").inside():
        for limit in ("low", "high"):
            namespaces.write_sysctl(f"ipv4/ipfrag_{limit}_thresh", 100_000)
    before, _ = network.settled()
    send_large(network, times=300)
    lost = conservation.lost_elsewhere(Between(before, network.settled(since=before)[0]))
    assert sum(count for place, count in lost.items() if "in h1: fragments that found no room" in place) > 100


@netns
def test_a_lost_piece_is_the_rules_loss_and_no_other(build: Build) -> None:
    network = build(topology={"hosts": 2, "family": "ipv4"}, impair=[{"profile": "loss_10"}])
    before, _ = network.settled()
    send_large(network, times=60)
    between = Between(before, network.settled(since=before)[0])
    assert conservation.lost_elsewhere(between) == {} and conservation.met(between).rule > 0


@netns
@forms("match, family", [("destination_ports = [5000]", "ipv4"), ('protocol = "udp"', "ipv6")], ids=["ports", "ipv6"])
def test_a_rule_that_pieces_escape_is_unknown(
    build: Build, profile_file: Callable[[str], str], match: str, family: str
) -> None:
    """As it was: 30 % of udp asked, none of 300 large datagrams over IPv6 lost: valid."""
    asked = profile_file(f'name = "x"\nloss = {{ model = "iid", percent = 30 }}\nmatch = {{ {match} }}')
    network = build(topology={"hosts": 2}, impair=[{"profile": asked}])
    before, _ = network.settled()
    send_large(network, times=20, family=family)
    after, _ = network.settled(since=before)
    rules = {hook: {rule.label: rule for rule in here} for hook, here in network.rules.items()}
    (found,) = judge_fragments(Watched(rules=rules), Between(before, after))
    assert "h0 sent 120 IP fragments" in found.text and "(profile x)" in found.text


@pytest.mark.parametrize(
    ("match", "pieces", "escaped"),
    [
        ({}, {"cut": 9, "cut_6": 9}, False),
        ({"dscp": 8}, {"cut": 9, "cut_6": 9}, False),
        ({"protocol": "udp"}, {"cut": 9}, False),
        ({"protocol": "udp"}, {"cut_6": 9}, True),
        ({"source_ports": (5,)}, {"cut": 9}, True),
        ({"source_ports": (5,)}, {"pieces": 9}, False),
        ({"datagram": {"kinds": ("data",)}}, {"cut": 9}, True),
    ],
)
def test_only_what_a_piece_does_not_show_makes_a_rule_unknown(
    match: dict[str, object], pieces: dict[str, int], escaped: bool
) -> None:
    """What h0 got is nothing to the rule of its uplink."""
    profile = Profile.model_validate({"name": "x", "why": "test", "match": match})
    hook, rule = (
        Hook(rank=0, direction="uplink"),
        Rule(label="0", profile=profile, match=profile.match, seed=1, block_seed=1),
    )
    before, after = (Reading(links={0: LinkCounts(sockets=one)}) for one in (Sockets(), Sockets(**pieces)))
    assert bool(judge_fragments(Watched(rules={hook: {"0": rule}}), Between(before, after))) is escaped


@netns
@forms("family, kind, what", [(socket.AF_PACKET, socket.SOCK_DGRAM, 8), (socket.AF_INET, socket.SOCK_RAW, 253)], keep=2)
def test_sockets_that_take_whole_packets_are_not_judged_and_said_so(
    build: Build, family: int, kind: int, what: int
) -> None:
    """As it was: an AF_PACKET receiver lost 4478 of 4485, and nothing was said."""
    network = build(topology={"hosts": 2}, impair=[{"profile": "clean"}])
    network.listen()
    assert network.read().bare == ()
    with network.place("h1").inside():
        held = socket.socket(family, kind, what)
    with held:
        network.read()
    after, _ = network.settled()
    assert after.bare == ("h1",), "remembered when it is gone"
    said = [text for text in not_judged(covered(network.experiment, "ebpf", after)) if "AF_PACKET" in text]
    assert said == ["what sockets for whole packets (raw, AF_PACKET) lose: open in h1"]


@netns
@LINKED
@forms("how", ["netfilter", "sk_lookup"], keep=2)
def test_a_program_that_only_a_link_shows_and_that_loses_what_comes_is_found(build: Build, how: How) -> None:
    """As it was: neither a message nor an interface shows it, and 200 of 200 datagrams were gone, valid."""
    network = build(topology={"hosts": 3}, impair=[{"profile": "clean"}])
    network.listen()
    assert network.hosts_wrong(some=True) == []
    with attached_by_a_program(how, network.star.namespace("h1")):
        lost = missed(network)
        found = network.hosts_wrong(some=True)
    assert lost == 20 and len(found) == 1 and found[0].startswith("h1: a BPF program came to"), found
    assert network.hosts_wrong() == []


@netns
@LINKED
def test_such_a_program_of_somebody_elses_is_nothing_to_the_run(build: Build) -> None:
    network = build(topology={"hosts": 2})
    network.listen()
    with foreign_network() as (name, _):
        for how in ("netfilter", "sk_lookup"):
            with attached_by_a_program(how, name):
                assert network.hosts_wrong() == []


@netns
@LINKED
def test_a_program_at_a_firewalls_hooks_that_no_process_holds_may_stand_in_a_host(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: one that is pinned was taken for somebody else's. (Here this process holds it, which is not asked.)"""
    network = build(topology={"hosts": 2}, impair=[{"profile": "clean"}])
    network.listen()
    monkeypatch.setattr(links, "_holders", lambda _: [])  # others on this machine look at it, too, and hold it then
    with attached("netfilter", network.star.namespace("h1")):
        assert missed(network) == 20
        found = network.hosts_wrong(some=True)
    assert found == ["maybe in a host: a BPF program came to a firewall's hooks (netfilter) during the run"]


@netns
@LINKED
def test_a_program_whose_holder_ends_while_it_is_asked_about_is_gone_not_nobodys(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: our own look kept it alive, nobody else held it, and any run's fault was unknown."""
    network = build(topology={"hosts": 2})
    last = links.newest()
    with namespaces.inside(network.star.namespace("h1")):
        held = [*attach("netfilter", 0)]

    def ends(_: int) -> list[int]:
        while held:
            os.close(held.pop())
        return []

    monkeypatch.setattr(links, "_holders", ends)
    assert links.since(last, (1,))[0] == []


@netns
def test_what_a_host_answers_to_what_found_no_port_is_counted(build: Build) -> None:
    network = build(topology={"hosts": 2})
    before, _ = network.settled()
    with open_socket(network, "h0") as sender:
        for number in range(20):
            sender.sendto(b"x", ("10.77.0.2", 5000 + number))
    after, _ = network.settled()
    link = Between(before, after).links[1]
    assert link.sockets is not None and link.sockets.unwanted == 20
    assert 1 <= link.sockets.answered == link.entered <= 20, "the kernel answers a few at a time"


def missed(network: StarNetwork) -> int:
    """Of twenty datagrams from h0 to h1."""
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.bind(("10.77.0.2", 5000))
        for _ in range(20):
            sender.sendto(b"x", ("10.77.0.2", 5000))
        return 20 - len(receive_all(receiver, quiet_s=0.3, at_least=0))


@netns
def test_a_link_that_is_put_on_the_data_link_or_takes_it_in_is_told_and_others_are_not(build: Build) -> None:
    """As it was: a bridge took all that came for the host, and nobody had told as long as it stood."""
    network = build(topology={"hosts": 2})
    network.listen()
    on_host(network, "h1", *["link", "add", "br0", "type", "bridge"])
    on_host(network, "h1", *["link", "add", "v0", "type", "veth", "peer", "name", "v1"])
    on_host(network, "h1", *["link", "set", "v0", "master", "br0"])
    on_host(network, "h1", *["link", "add", "m0", "link", "v1", "type", "macvlan"])
    assert network.changes() == []
    on_host(network, "h1", *["link", "set", "eth0", "master", "br0"])
    assert "h1 eth0: part of another link during the run" in network.changes() and missed(network) == 20
    on_host(network, "h1", *["link", "set", "eth0", "nomaster"])
    network.changes()
    on_host(network, "h1", *["link", "add", "m1", "link", "eth0", "type", "macvlan", "mode", "passthru"])
    assert "h1: the link m1 was put on its data link during the run" in network.changes()


@netns
def test_a_route_past_the_switch_to_another_host_is_told_and_one_to_elsewhere_is_not(build: Build) -> None:
    """As it was: only routes over the data link were heard of, and what went by another way met no fault."""
    network = build(topology={"hosts": 2})
    network.listen()
    with network.place("h0").netlink() as inside:
        inside.link("add", ifname="x0", kind="veth", peer={"ifname": "x1"})
        index = inside.link_lookup(ifname="x0")[0]
        inside.link("set", index=index, state="up")
        inside.link("set", index=inside.link_lookup(ifname="x1")[0], state="up")
        inside.route("add", dst="10.99.0.0/24", oif=index)
        assert network.changes() == []
        inside.route("add", dst="10.77.0.2/32", oif=index)
        inside.route("add", dst="fd6c:6f73:7362::2/128", oif=index)
    said = network.changes()
    assert "h0: route added during the run, around the data link: to 10.77.0.2/32" in said
    assert "h0: route added during the run, around the data link: to fd6c:6f73:7362::2/128" in said


@netns
@pytest.mark.parametrize("how", ["tcx", "xdp"])
def test_a_program_that_a_descriptor_holds_at_a_hosts_link_is_seen_while_it_stands(build: Build, how: How) -> None:
    """As it was: hosts were looked into when everybody had ended, and nobody asked for XDP there. Each look takes some
    of them, in turn."""
    network = build(topology={"hosts": HOSTS_A_LOOK + 2}, impair=[{"profile": "clean"}])
    last = network.star.namespace(f"h{HOSTS_A_LOOK + 1}")
    assert network.hosts_wrong() == []
    try:
        with attached(how, last):
            looks = [network.hosts_wrong(some=True) for _ in range(3)]
    except OSError as error:
        pytest.skip(f"this kernel has no links of {how} programs ({error})")
    which = "an XDP" if how == "xdp" else "a tcx"
    said = [f"h{HOSTS_A_LOOK + 1}: {which} program stands at its own link"]
    assert looks == [[], said, said]
    assert network.hosts_wrong() == []


@netns
def test_another_hardware_address_of_a_host_is_heard_of_and_what_it_then_loses_is_counted(build: Build) -> None:
    """As it was: of a link's messages XDP, MTU and whether it was up were looked at."""
    network = build(topology={"hosts": 2, "family": "ipv4"}, impair=[{"profile": "clean"}])
    network.listen()
    before, _ = network.settled()
    with network.place("h1").netlink() as inside:
        index = inside.link_lookup(ifname="eth0")[0]
        inside.link("set", index=index, address="02:6c:62:00:00:77")
        send_large(network, times=20, size=100)
        inside.link("set", index=index, address=network.experiment.topology.host("h1").mac)
    after, _ = network.settled(since=before)
    assert "h1 eth0: the hardware address 02:6c:62:00:00:77 during the run" in network.changes()
    lost = conservation.lost_elsewhere(Between(before, after))
    assert lost == {"in h1: they were for another address than its own": 20}


@netns
def test_a_neighbour_that_leads_elsewhere_is_heard_of_and_what_came_there_is_counted(build: Build) -> None:
    """As it was: nobody listened to neighbours, and packets for one host went to another, past every pair's rule."""
    network = build(topology={"hosts": 3, "family": "ipv4"}, impair=[{"profile": "clean"}])
    network.listen()
    before, _ = network.settled()
    wrong = network.experiment.topology.host("h2").mac
    with network.place("h0").netlink() as inside:
        index = inside.link_lookup(ifname="eth0")[0]
        inside.neigh("replace", dst="10.77.0.2", lladdr=wrong, ifindex=index, state=NUD_PERMANENT)
    send_large(network, times=20, size=100)
    after, _ = network.settled(since=before)
    assert network.changes() == ["h0 eth0: neighbour changed during the run, not by lossbench"]
    lost = conservation.lost_elsewhere(Between(before, after))
    assert lost == {"in h2: they were for another address than its own": 20}


@netns
def test_neighbours_of_no_host_and_of_links_of_ones_own_are_nobodys_affair(build: Build) -> None:
    """What a container makes of its own, what multicast makes the kernel enter, and what goes nowhere."""
    network = build(topology={"hosts": 2}, impair=[{"profile": "clean"}])
    network.listen()
    with network.place("h0").netlink() as inside:
        inside.link("add", ifname="x0", kind="veth", peer={"ifname": "x1"})
        own, data = (inside.link_lookup(ifname=name)[0] for name in ("x0", "eth0"))
        inside.link("set", index=own, state="up", address="02:00:00:00:00:01")
        inside.neigh("add", dst="10.77.0.2", lladdr="02:00:00:00:00:02", ifindex=own, state=NUD_PERMANENT)
        inside.neigh("add", dst="192.0.2.1", lladdr="02:00:00:00:00:03", ifindex=data, state=NUD_PERMANENT)
    with open_socket(network, "h0") as sender, open_socket(network, "h0", socket.AF_INET6) as sender_6:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("10.77.0.1"))
        sender_6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, data)
        for where, address in ((sender, "224.0.0.251"), (sender, "10.77.0.99"), (sender_6, "ff02::fb")):
            where.sendto(b"who has a printer", (address, 5353))
    assert network.changes() == []
    network.settled()
    assert network.changes() == []


@netns
@forms("family", ["ipv4", "ipv6"], keep=2)
def test_what_ipsec_stops_is_heard_of_and_counted(build: Build, family: str) -> None:
    """As it was: a policy that blocked for half a second and went again lost 146 of 4006, and all were accounted
    for."""
    network = build(topology={"hosts": 2, "family": family}, impair=[{"profile": "clean"}])
    network.listen()
    before, _ = network.settled()
    ends = [network.experiment.topology.host(name).address(family) for name in ("h0", "h1")]
    policy = ("policy", "{}", "src", ends[0], "dst", ends[1], "dir", "in")
    on_host(network, "h1", "xfrm", *" ".join(policy).format("add").split(), "action", "block")
    send_large(network, times=20, size=100, family=family)
    network.settled(since=before)
    on_host(network, "h1", "xfrm", *" ".join(policy).format("delete").split())
    after, _ = network.settled(since=before)
    assert network.changes() == ["h1: an IPsec policy or state (xfrm) changed during the run"]
    inside = after.links[1].sockets
    assert inside is not None and (inside.by_ipsec, inside.turned_away) == (20, 20)
    assert conservation.lost_elsewhere(Between(before, after)) == {"in h1: stopped by IPsec (xfrm)": 20}


@netns
def test_what_a_stack_turns_away_for_its_source_or_by_a_filter_is_lost_elsewhere(build: Build) -> None:
    """As it was: of UDP's InErrors nobody asked for the rest, nor for IPReversePathFilter: all accounted for."""
    network = build(topology={"hosts": 2, "family": "ipv4"}, impair=[{"profile": "clean"}])
    before, _ = network.settled()
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.bind(("10.77.0.2", 5000))
        assert admit_only(receiver, [("10.77.0.1", 4999)])
        for _ in range(20):
            sender.sendto(b"stranger", ("10.77.0.2", 5000))
        middle, _ = network.settled(since=before)
        with network.place("h1").inside():
            namespaces.write_sysctl("ipv4/conf/all/rp_filter", 1)
        on_host(network, "h1", "route", "add", "10.77.0.1/32", "dev", "ctl0")
        for _ in range(30):
            sender.sendto(b"stranger", ("10.77.0.2", 5000))
        after, _ = network.settled(since=middle)
    ((away, count),) = conservation.lost_elsewhere(Between(before, middle)).items()
    assert "a filter of the socket's own (InErrors)" in away and count == 20
    ((source, count),) = conservation.lost_elsewhere(Between(middle, after)).items()
    assert "rp_filter" in source and count == 30


class Told(Stack):
    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def _text(self, name: str) -> str:
        return self.texts.get(name, "")


def test_sockets_of_udp_lite_are_among_those_that_can_be_full() -> None:
    """As it was: of its own tables nobody read a line."""
    texts = {
        "snmp": "Udp: InDatagrams RcvbufErrors\nUdp: 7 1\nUdpLite: InDatagrams RcvbufErrors\nUdpLite: 30 200\n",
        "snmp6": "Udp6RcvbufErrors 3000\nUdpLite6RcvbufErrors 40000\nUdpLite6InDatagrams 500\nIp6InAddrErrors 6\n",
        "netstat": "",
        "xfrm_stat": "",
    }
    found = Told(texts).read()
    assert (found.overflowed, found.received, found.misled) == (43201, 537, 6)


TCP = "TcpExt: ListenOverflows ListenDrops TCPBacklogDrop PFMemallocDrop TCPOFODrop TCPRcvQDrop"


def test_what_tcp_did_not_take_of_what_the_network_brought_is_lost_elsewhere_or_named() -> None:
    """As it was: of TcpExt one field was read, and what its backlog or its receive queue threw away was nobody's."""
    before, after = (
        Told({"netstat": f"{TCP}\nTcpExt: {numbers}\n"}).read() for numbers in ("9 9 9 9 9 9", "10 11 12 13 14 15")
    )
    watched = Watched(before=Reading(links={1: LinkCounts(sockets=before)}))
    watched.after = Reading(links={1: LinkCounts(sockets=after)})
    between = Between(watched.before, watched.after)
    assert conservation.lost_elsewhere(between) == {}, "of both links together: no loss of the data link's"
    assert conservation.kept_from_programs(between) == {
        "in h1's TCP: its program held the socket for too long (TCPBacklogDrop)": 3,
        "in h1's TCP: no room in the receive queue (TCPRcvQDrop)": 6,
    }
    asked = Experiment.model_validate({"name": "t", "workload": {"name": "chatter"}})
    assert "3 packets were lost in h1's TCP" in str(_judge_conservation(watched, between))
    said = judge(experiment=asked, backend="ebpf", proof=None, watched=watched).not_judged
    assert [text.partition(" ")[2] for text in said] == [
        "h1 5 packets that came ahead of their turn found no room in TCP (TCPOFODrop)",
        "h1 2 connections were not taken by TCP at their first try (ListenDrops)",
        "h1 4 packets were refused by sockets, because the machine had only its last memory (PFMemallocDrop)",
    ]
