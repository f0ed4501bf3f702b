"""What the host itself does not take was not sent: it is tried again, or ends the call; the network is not blamed."""

from __future__ import annotations

import errno
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossbench.net.host import namespaces
from lossbench.net.star.network import StarNetwork
from lossbench.spec.topology import Topology
from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.context import Group
from lossbench.workloads.collective.reduce import all_reduce
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.policy import Policy
from lossbench.workloads.transport.udp.link import Link
from tests.forms import full
from tests.networks import Build, device, on_host
from tests.transport.conftest import Make, Ranks, make_ranks

F32 = CODECS["float32"]
MORE = 8_000_000
COUNT = 1_000_000
ROOT = Path(__file__).parents[2]


def summed(group: Group) -> np.ndarray:
    mine = np.full(COUNT, group.endpoint.rank + 1.0, np.float32)
    all_reduce(group, mine, codec=F32)
    return mine


@contextmanager
def dead_neighbour(ranks: Ranks) -> Iterator[None]:
    """Rank 0's socket is told all the time that somebody else is gone."""
    over, link = threading.Event(), ranks.groups[0].endpoint.link
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        place = closed.getsockname()

    def hammer() -> None:
        while not over.is_set():
            try:
                link.socket.sendto(b"anybody?", place)
            except OSError:
                continue

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_what_the_network_says_of_a_dead_peer_costs_a_healthy_one_nothing(ranks: Make) -> None:
    """As it was: the next packet on the socket was taken for sent; 1.6 % arrived, and the call succeeded."""
    made = ranks(2, policy=Policy(timeout_s=30))
    until = time.monotonic() + 60
    with dead_neighbour(made):
        while made.groups[0].endpoint.read()["refused"] < 3:  # who meets an error is who sends next
            assert time.monotonic() < until
            for got in made.all(summed):
                assert np.all(got == 3.0)
    assert [group.endpoint.read()["lost"] for group in made.groups] == [0, 0]


def test_of_what_a_rank_was_asked_to_send_everything_was_sent_or_withheld(ranks: Make) -> None:
    """Whatever its host refused in between. Each packet that left is data, sent again, a marker or an answer."""
    made = ranks(2, policy=Policy(timeout_s=60, deadline_ms=150))
    asked = [0, 0]

    def job(group: Group, count: int = COUNT) -> None:
        mine = np.full(count, 1.0, np.float32)
        plan = group.plan(group.endpoint.even(count), F32)
        asked[group.endpoint.rank] += plan.scatter_sends.packets + plan.gather_sends.packets
        all_reduce(group, mine, codec=F32)

    def reliable(group: Group) -> None:
        exchange.broadcast(group, np.ones(8, np.uint8), root=0)
        asked[0] += group.endpoint.rank == 0

    until = time.monotonic() + 60
    with dead_neighbour(made):
        while made.groups[0].endpoint.read()["refused"] < 3:
            assert time.monotonic() < until
            made.all(job)
            made.all(reliable)
    for rank in (0, 1):  # the other is late, and this is more than it has given room for: something is withheld
        made.start(rank, lambda group: job(group, MORE)).result(60)
    made.close()
    for group in made.groups:
        got = group.endpoint.read()
        data = sum(got["sent"]) - got["resent"] - got["markers"] - got["acks"]
        assert data + got["withheld"] == asked[group.endpoint.rank], got
    assert made.groups[0].endpoint.read()["withheld"] > 0


def test_a_host_that_takes_nothing_is_said_under_a_deadline_too() -> None:
    """Call after call, in numpy; in C: test_parts.py. As it was: forgotten at every half."""
    made = make_ranks(2, policy=Policy(timeout_s=0.8, deadline_ms=100), engines=["plain", "plain"])
    try:
        made.groups[0].endpoint.link.send_rows = lambda *_: 0  # type: ignore[method-assign]

        def calls(group: Group) -> None:
            for _ in range(40):
                summed(group)

        futures = [made.start(rank, calls) for rank in (0, 1)]
        said = str(futures[0].exception(60))
        assert "rank 0: this host takes no packets to rank 1 for 0.8 s (timeout_s): " in said
    finally:
        made.close()


def test_a_way_that_is_too_narrow_once_is_not_said_to_be_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """By older kernels, of a batch. As it was: a packet alone passed then, and the MTU had fallen."""
    ours, healthy = Link("127.0.0.1", 0), Link("127.0.0.1", 0)
    out, wide, rows = ours._out, [0], np.zeros((4, 100), np.uint8)

    def as_older_kernels(parts: list[Any], cut: list[Any], *more: Any) -> bool:
        if cut and wide[0]:
            wide[0] -= 1
            raise OSError(errno.EINVAL, "too wide")
        return out(parts, cut, *more)

    monkeypatch.setattr(ours, "_out", as_older_kernels)
    for _ in range(2):
        wide[0] = 1
        assert ours.send_rows(rows, healthy.address) == 1
        assert ours.send_rows(rows[1:], healthy.address) == 3
    wide[0] = 2
    assert ours.send_rows(rows, healthy.address) == 1
    with pytest.raises(OSError, match="Message too long"):
        ours.send_rows(rows[1:], healthy.address)
    ours.close()
    healthy.close()


@pytest.mark.netns
def test_a_way_that_narrows_ends_the_call_and_is_named(build: Build, ranks: Make) -> None:
    """As it was: every call succeeded, and none of its numbers was right."""
    network = build(topology={"hosts": 2, "family": "ipv4"}, impair=[])
    made = meet(network, ranks, timeout_s=30)
    for got in made.all(summed):
        assert np.all(got == 3.0)
    on_host(network, "h0", "link", "set", "dev", device(network, HOSTS[1]), "mtu", "1000")
    futures = [made.start(rank, summed) for rank in (0, 1)]
    said = [str(future.exception(120)) for future in futures]
    assert said[0] == "rank 0: packets to rank 1 no longer fit the way there: its MTU has fallen since the group met"
    assert "rank 0 gave this call up: its host does not take its packets to rank 1" in said[1]


@pytest.mark.netns
@pytest.mark.parametrize("reliable", [False, True])
def test_a_way_that_is_gone_for_a_while_costs_time_and_not_packets(build: Build, ranks: Make, reliable: bool) -> None:
    """As it was: the host had said that it had no way, and what it had not sent was called lost on the network."""
    network = build(topology={"hosts": 2, "family": "ipv4"}, impair=[])
    made = meet(network, ranks, timeout_s=60)
    made.all(summed)
    on_host(network, "h0", "route", "add", "unreachable", HOSTS[1])
    jobs = {0: summed, 1: summed} if not reliable else {0: exchange.barrier, 1: exchange.barrier}
    futures = [made.start(rank, job) for rank, job in jobs.items()]
    until = time.monotonic() + 40
    while made.groups[0].endpoint.read()["refused"] < 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not futures[0].done()
    on_host(network, "h0", "route", "del", "unreachable", HOSTS[1])
    for future in futures:
        future.result(120)
    for got in made.all(summed):
        assert np.all(got == 3.0)
    assert [group.endpoint.read()["lost"] for group in made.groups] == [0, 0]


@full
@pytest.mark.netns
def test_a_host_that_takes_nothing_ends_the_call_after_the_timeout(build: Build, ranks: Make) -> None:
    """Its queue has no room for a whole packet, ever. As it was: it was asked for ever, and its peer answered."""
    network = build(topology={"hosts": 2, "family": "ipv4"}, impair=[])
    made = meet(network, ranks, timeout_s=2)
    made.all(summed)
    narrow = [
        "qdisc",
        "replace",
        "dev",
        device(network, HOSTS[1]),
        "root",
        "tbf",
        "rate",
        "1gbit",
        "burst",
        "800",
        "limit",
        "9000",
    ]
    on_host(network, "h0", *narrow, tool="tc")
    futures = [made.start(rank, summed) for rank in (0, 1)]
    said = [str(future.exception(120)) for future in futures]
    assert "rank 0: this host takes no packets to rank 1 for 2 s (timeout_s): " in said[0], said
    assert "rank 0 gave this call up: its host does not take its packets to rank 1" in said[1], said


@full
@pytest.mark.netns
def test_on_a_network_that_changes_calls_end_right_or_with_the_right_sentence() -> None:
    """Two of each: tests/bench/network_drills.py does more of the same, and looks at the time, too."""
    drills = [sys.executable, str(ROOT / "tests" / "bench" / "network_drills.py"), "--times", "14"]
    drills += ["--timeout", "10", "--grace", "60"]  # numpy on a busy machine may say nothing for seconds
    done = subprocess.run(drills, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0 and "nothing wrong" in done.stdout, (done.stdout + done.stderr)[-4000:]


HOSTS = [host.ipv4 for host in Topology(hosts=2).all_hosts()]


def meet(network: StarNetwork, ranks: Make, *, timeout_s: float) -> Ranks:
    return ranks(
        2,
        policy=Policy(timeout_s=timeout_s),
        addresses=HOSTS,
        inside=lambda rank: namespaces.inside(network.star.namespace(f"h{rank}")),
    )


def test_what_is_said_of_a_dead_peer_does_not_keep_a_socket_ready_for_ever() -> None:
    """As it was: a send took the error and left its report, and whoever waited for packets span."""
    ours, healthy = Link("127.0.0.1", 0), Link("127.0.0.1", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        dead = closed.getsockname()
    assert ours.send(b"anybody?", dead)  # it goes; what comes back is an error for the next one
    assert ours.send(b"hello", healthy.address)
    ready = select.poll()
    ready.register(ours.socket, select.POLLIN)
    assert ready.poll(0) == []
    ours.close()
    healthy.close()
