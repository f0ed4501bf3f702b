"""What hosts do to packets themselves, before the fault and behind it: pieces of large ones, sockets nobody counts."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from lossbench.net import conservation
from lossbench.net.conservation import Between
from lossbench.net.counters import LinkCounts, Reading, Sockets
from lossbench.net.host import namespaces
from lossbench.net.star.network import StarNetwork
from lossbench.proof.covers.rows import covered, not_judged
from lossbench.proof.judge_rules import judge_fragments
from lossbench.proof.watched import Watched
from lossbench.spec.placement import Hook, Rule
from lossbench.spec.profile import Profile
from tests.forms import forms
from tests.networks import Build, open_socket

netns = pytest.mark.netns


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
