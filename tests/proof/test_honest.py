"""What honest programs do is no reason for doubt: packets for all, packets for nobody, a core of one's own."""

from __future__ import annotations

import contextlib
import socket
import struct
from ipaddress import ip_address
from pathlib import Path

import pytest

from lossbench.net import conservation
from lossbench.net.conservation import Between
from lossbench.net.star.neighbours import where_nobody_is
from lossbench.net.star.network import StarNetwork
from tests.forms import forms, full
from tests.networks import Build, open_socket
from tests.proof.test_truth import fault_of

netns = pytest.mark.netns
GROUP, GROUP6 = "239.1.2.3", "ff15::1234"
TIMES = 40


def joined(network: StarNetwork, host: str) -> list[socket.socket]:
    """Sockets that hear the groups (which sends a report to all), and broadcasts."""
    four, six = open_socket(network, host), open_socket(network, host, socket.AF_INET6)
    with network.place(host).inside():
        index = socket.if_nametoindex("eth0")
    four.bind(("", 5353))
    own = network.experiment.topology.host(host).ipv4
    four.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + socket.inet_aton(own))
    six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    six.bind(("::", 5353))
    group = socket.inet_pton(socket.AF_INET6, GROUP6) + struct.pack("@I", index)
    six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
    return [four, six]


def waiting_in(one: socket.socket) -> int:
    """Datagrams; and that was all."""
    count = 0
    with one, contextlib.suppress(BlockingIOError):
        one.setblocking(False)
        while one.recv(100):
            count += 1
    return count


@netns
@forms("backend", ["ebpf", "cbpf", "relay"])
def test_what_is_for_all_reaches_all_others_and_is_accounted_for(build: Build, backend: str) -> None:
    """As it was: one packet that is not unicast reached nobody, and voided the run."""
    network = build(backend=backend, topology={"hosts": 4}, impair=[{"profile": "loss_10", "direction": "both"}])
    before, _ = network.settled()
    hosts = network.experiment.topology.all_hosts()
    listening = [one for host in hosts[1:] for one in joined(network, host.name)]
    with open_socket(network, "h0") as four, open_socket(network, "h0", socket.AF_INET6) as six:
        four.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        four.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(hosts[0].ipv4))
        with network.place("h0").inside():
            scope = socket.if_nametoindex("eth0")
        for _ in range(TIMES):
            four.sendto(b"group", (GROUP, 5353))
            four.sendto(b"all", ("10.77.0.255", 5353))
            six.sendto(b"group", (GROUP6, 5353, 0, scope))
    between = Between(before, network.settled(since=before)[0])
    assert conservation.leaks(between) == []
    heard = [waiting_in(one) for one in listening]
    assert sum(heard) > 0.6 * 3 * len(hosts[1:]) * TIMES, "three of each, at every other host, less what is lost"
    assert conservation.met(between).rule > 0 and conservation.lost_elsewhere(between) == {}


@netns
@forms("backend", ["ebpf", "cbpf"])
def test_packets_for_addresses_that_no_host_has_are_counted_and_named(build: Build, backend: str) -> None:
    network = build(backend=backend, topology={"hosts": 3}, impair=[{"profile": "clean"}])
    before, _ = network.settled()
    with open_socket(network, "h0") as four, open_socket(network, "h1", socket.AF_INET6) as six:
        for number in range(TIMES):
            four.sendto(b"x", (f"10.77.0.{4 + number}", 5000))
            six.sendto(b"x", (f"fd6c:6f73:7362::{4 + number:x}", 5000))
    between = Between(before, network.settled(since=before)[0])
    assert conservation.leaks(between) == [] and conservation.met(between).for_nobody == 2 * TIMES


@pytest.mark.parametrize(("known", "prefix"), [(("10.0.0.1", "10.0.0.2"), 24), (("fd00::1", "fd00::5"), 64)])
def test_nobody_is_where_no_host_is_and_nowhere_else(known: tuple[str, ...], prefix: int) -> None:
    pieces = where_nobody_is(known, prefix)
    assert not any(ip_address(one) in piece for piece in pieces for one in known)
    size = 1 << (ip_address(known[0]).max_prefixlen - prefix)
    assert sum(piece.num_addresses for piece in pieces) == size - len(known)


GOSSIP = """
import os, socket, threading, time
rank, peers = int(os.environ["RANK"]), os.environ["LOSSBENCH_ADDRESSES"].split(",")
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 5353))
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(peers[rank]))
group = socket.inet_aton("224.0.0.251") + socket.inet_aton(peers[rank])
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
def read():
    while True: s.recv(100)
threading.Thread(target=read, daemon=True).start()
time.sleep(0.5)
for _ in range(100):
    s.sendto(b"here", ("224.0.0.251", 5353)); s.sendto(b"you?", ("10.77.0.99", 5353))
    s.sendto(b"hello", (peers[1 - rank], 5353)); time.sleep(0.005)
time.sleep(0.5)
"""


@netns
@full
def test_a_program_that_looks_for_others_by_multicast_can_be_valid(tmp_path: Path) -> None:
    program = tmp_path / "gossip.py"
    program.write_text(GOSSIP)
    text = '[topology]\nhosts = 2\n[probe]\npackets = 2000\n[[impair]]\nprofile = "loss_10"\n'
    text += f'[workload]\nbarrier = false\ncommand = ["python", "{program}"]\n'
    status, said, row = fault_of(tmp_path, text)
    assert status == "valid" and "for addresses that no host has" in said, said
    assert row["met"]["for_nobody"] > 100
