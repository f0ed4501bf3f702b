"""A profile on an interface of this machine: what it does to packets, and to which."""

from __future__ import annotations

import contextlib
import socket
import struct

import numpy as np
import pytest

from lossbench.net.host import namespaces
from lossbench.spec import profile
from lossbench.spec.pattern import predicted
from tests.forms import forms, full
from tests.nic.wire import ADDRESS, PORT, Wire, received

pytestmark = [pytest.mark.netns]
UDP_SEGMENT = 103
BACKENDS = ["ebpf", pytest.param("netem", marks=pytest.mark.guest)]


@pytest.mark.parametrize("backend", BACKENDS)
@forms("side", ["egress", "ingress"])
def test_what_the_rule_dropped_is_what_the_receiver_misses_exactly(wire: Wire, backend: str, side: str) -> None:
    other = Wire(here=wire.there, there=wire.here)
    wire.lossbench(
        "nic", "apply", "nic0", "--profile", "loss_10", "--side", side, "--backend", backend, "--port", str(PORT)
    )
    count = 4000
    if side == "egress":
        arrived = wire.arrived(count)
    else:
        with namespaces.inside(other.there):
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            receiver.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
            receiver.bind((ADDRESS["here"], PORT))
            receiver.settimeout(0.5)
        with namespaces.inside(other.here):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sender.connect((ADDRESS["here"], PORT))
        with sender, receiver:
            for number in range(count):
                sender.send(number.to_bytes(4, "big").ljust(200, b"."))
            arrived = received(receiver)
    report = wire.shown()["sides"][side]
    assert report["seen"] == count and report["dropped"] == count - len(arrived) > 0
    assert report["wrong"] == [] and report["lost_in_detour"] == 0
    assert arrived == sorted(arrived), "the detour puts nothing out of order"


@full
def test_the_pattern_is_the_one_that_the_seed_predicts(wire: Wire) -> None:
    wire.lossbench(
        "nic", "apply", "nic0", "--profile", "bursty_5", "--backend", "ebpf", "--seed", "11", "--port", str(PORT)
    )
    from lossbench.net.nic.request import Request

    known = profile.load("bursty_5")
    rule = Request.of(known, interface="nic0", for_s=1, seed=11).rules["egress"][0]
    count = 3000
    lost = set(np.flatnonzero(predicted(rule, count)).tolist())
    assert wire.arrived(count) == [n for n in range(count) if n not in lost] and lost


@full
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_segmenting_sender_loses_single_packets_and_is_not_told(wire: Wire, backend: str) -> None:
    wire.lossbench(
        "nic", "apply", "nic0", "--profile", "loss_10", "--backend", backend, "--protocol", "udp", "--port", str(PORT)
    )
    sender, receiver = wire.sockets()
    with sender, receiver:
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
        for batch in range(50):
            datagrams = [(batch * 40 + n).to_bytes(4, "big").ljust(1000, b".") for n in range(40)]
            sender.send(b"".join(datagrams))  # an error here would be the loss, reported
        arrived = received(receiver)
    report = wire.shown()["sides"]["egress"]
    assert report["taken"] == report["seen"] == 2000 and report["super_packets"] == 0, "counted as on the wire"
    assert report["dropped"] == 2000 - len(arrived)
    runs = [b - a - 1 for a, b in zip(arrived, arrived[1:], strict=False) if b - a > 1]
    assert max(runs) < 10, "a super-packet that is lost whole takes 40"


@full
def test_total_loss_is_not_reported_to_the_sender(wire: Wire, everything: str) -> None:
    wire.lossbench("nic", "apply", "nic0", "--profile", everything, "--port", str(PORT))
    assert wire.arrived(500) == [] and wire.shown()["sides"]["egress"]["dropped"] == 500


@forms(
    "option, hit, spared",
    [
        (["--port", "29400-29499"], PORT, 30500),
        (["--port", "30000", "--port", str(PORT)], PORT, 30500),
        (["--to", "10.77.0.2"], PORT, None),
        (["--to", "10.78.0.0/16"], None, PORT),
        (["--protocol", "tcp"], None, PORT),
        (["--dscp", "8"], None, PORT),
    ],
)
def test_only_what_was_asked_for_is_hit(
    wire: Wire, everything: str, option: list[str], hit: int | None, spared: int | None
) -> None:
    wire.lossbench("nic", "apply", "nic0", "--profile", everything, *option)
    if hit is not None:
        assert wire.arrived(50, port=hit) == []
    if spared is not None:
        assert len(wire.arrived(50, port=spared)) == 50


@full
def test_a_mark_is_told_from_another(wire: Wire, everything: str) -> None:
    wire.lossbench("nic", "apply", "nic0", "--profile", everything, "--dscp", "8")
    sender, receiver = wire.sockets()
    with sender, receiver:
        for number, dscp in enumerate((8, 10, 8, 0)):
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
            sender.send(struct.pack("!I", number))
        assert received(receiver) == [1, 3]


def test_neighbours_dns_ssh_and_the_gateway_are_never_lost(wire: Wire, everything: str) -> None:
    """The neighbour is unknown at first: without ARP nothing at all would arrive."""
    with namespaces.open_inside(wire.here) as ip:
        ip.route("add", dst="default", gateway="10.77.0.9")
    wire.lossbench("nic", "apply", "nic0", "--profile", everything, "--side", "both", "--yes-this-nic")
    assert len(wire.arrived(20, port=53)) == 20
    assert len(wire.arrived(20, port=53, size=4000)) == 20, "in fragments, of which only the first has ports"
    with namespaces.inside(wire.there):
        server = socket.create_server((ADDRESS["there"], 22))
    with namespaces.inside(wire.here):
        client = socket.create_connection((ADDRESS["there"], 22), timeout=10)
    with server, client:
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"x" * 100_000)
            got = 0
            while got < 100_000:
                got += len(accepted.recv(65536))
    with namespaces.open_inside(wire.there) as ip:
        ip.addr("add", index=ip.link_lookup(ifname="far0")[0], address="10.77.0.9", prefixlen=24)
    with namespaces.inside(wire.there):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind(("10.77.0.9", PORT))
        receiver.settimeout(0.5)
    with namespaces.inside(wire.here):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, receiver:
        for number in range(20):
            sender.sendto(number.to_bytes(4, "big"), ("10.77.0.9", PORT))
        assert len(received(receiver)) == 20
    assert wire.arrived(20) == [], "and everything else is"
    assert wire.shown()["sides"]["egress"]["protected"] > 40


def test_what_ipv6_hides_behind_extension_headers_is_never_lost(wire: Wire, everything: str) -> None:
    """As it was, since programs look behind them: a report of listeners (MLD) has a hop-by-hop header always, and was
    taken for an ICMPv6 of another kind, and lost."""
    router_alert, report = "3a00050200000100", "8f00000000000000"
    addresses = "fe80" + "00" * 13 + "01" + "ff02" + "00" * 13 + "16"
    frame = bytes.fromhex("33330000001602000000000186dd6000000000100001" + addresses + router_alert + report)
    wire.lossbench("nic", "apply", "nic0", "--profile", everything)
    with namespaces.inside(wire.there):
        receiver = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
        receiver.bind(("far0", 0x86DD))
        receiver.settimeout(0.5)
    with namespaces.inside(wire.here):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        sender.bind(("nic0", 0))
    with sender, receiver:
        for _ in range(20):
            sender.send(frame)
        got = 0
        with contextlib.suppress(TimeoutError):
            while got < 20:
                got += receiver.recv(2000).startswith(frame)
    assert got == 20 and wire.shown()["sides"]["egress"]["protected"] >= 20


@full
def test_the_next_hop_of_another_route_is_a_peer_like_any_other(wire: Wire, everything: str) -> None:
    """In clusters that route between nodes every node is the next hop of something."""
    with namespaces.open_inside(wire.here) as ip:
        ip.route("add", dst="10.244.1.0/24", gateway=ADDRESS["there"])
    wire.lossbench("nic", "apply", "nic0", "--profile", everything, "--to", ADDRESS["there"])
    assert wire.arrived(20) == []


@full
def test_an_mtu_that_is_raised_meanwhile_lets_longer_packets_through(wire: Wire) -> None:
    wire.lossbench("nic", "apply", "nic0", "--profile", "clean")
    for place, name in ((wire.here, "nic0"), (wire.there, "far0")):
        with namespaces.open_inside(place) as ip:
            ip.link("set", index=ip.link_lookup(ifname=name)[0], mtu=9000)
    assert len(wire.arrived(20, size=5000)) == 20


@full
def test_what_others_send_on_our_devices_never_reaches_the_nic(wire: Wire) -> None:
    """A network manager may ask for an address wherever it sees a device."""
    wire.lossbench("nic", "apply", "nic0", "--profile", "clean")
    (device,) = [name for name in wire.links() if name.endswith("ea")]
    with namespaces.inside(wire.here):
        speaker = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        speaker.bind((device, 0))
    with namespaces.inside(wire.there):
        listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        listener.bind(("far0", 0))
        listener.settimeout(0.5)
    with speaker, listener:
        for _ in range(5):
            speaker.send(b"\xff" * 6 + b"\x02\0\0\0\0\1" + b"\x08\x00" + bytes(60))
        with pytest.raises(TimeoutError):
            listener.recv(2048)


@pytest.mark.guest
def test_netem_delays_and_what_waits_still_arrives_after_the_revert(wire: Wire) -> None:
    wire.lossbench("nic", "apply", "nic0", "--profile", "wan_40ms_loss_1")
    report = wire.shown()
    assert report["backend"] == "netem" and len(wire.arrived(500)) == 500 - wire.shown()["sides"]["egress"]["dropped"]
    sender, receiver = wire.sockets()
    with sender, receiver:
        for number in range(100):
            sender.send(number.to_bytes(4, "big"))
        wire.lossbench("nic", "revert", "nic0")
        assert len(received(receiver)) > 90
