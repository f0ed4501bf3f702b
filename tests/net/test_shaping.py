"""Rates and priorities: who waits, who loses, and that every lost packet is counted in its class."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress
from statistics import median
from typing import Any

import pytest

from lossbench.net.star.network import StarNetwork
from tests.networks import Build, open_socket, prove, receive_all

pytestmark = pytest.mark.netns
LINK_MBIT = 20
SIZE = 1000
SO_TIMESTAMPNS = 35
QUEUED = 60  # packets that the queue and the bucket still took
CLASSES = [
    {"name": "web", "dscp": 10, "share_percent": 90, "priority": 0, "queue_kb": 150},
    {"name": "training", "ports": [29400], "share_percent": 5, "priority": 7, "queue_kb": 30},
]
SCHEDULERS = ["htb", *(pytest.param(name, marks=pytest.mark.guest) for name in ("prio", "ets"))]


def shaped(build: Build, scheduler: str, *, mbit: float = LINK_MBIT, **more: Any) -> StarNetwork:
    topology = {"hosts": 3, "downlink_rate_mbit": mbit}
    return build(topology=topology, shaping={"scheduler": scheduler, "classes": CLASSES}, impair=[], **more)


def blast(
    network: StarNetwork, *, web_mbit: float, training_mbit: float, seconds: float
) -> tuple[dict[str, tuple[int, int]], float]:
    """h0 sends web, h1 sends training, both to h2; returns (sent, received) packets of each, and how long it really
    took: a slow machine overruns the asked time inside the last round."""
    out, took, _ = timed_blast(network, web_mbit=web_mbit, training_mbit=training_mbit, seconds=seconds)
    return out, took


def timed_blast(
    network: StarNetwork, *, web_mbit: float, training_mbit: float, seconds: float
) -> tuple[dict[str, tuple[int, int]], float, dict[str, list[float]]]:
    """As `blast`, and when each packet came."""
    flows = {}
    for name, host, port, dscp, rate in (
        ("web", "h0", 8080, 10, web_mbit),
        ("training", "h1", 29400, 0, training_mbit),
    ):
        receiver, sender = open_socket(network, "h2"), open_socket(network, host)
        receiver.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.bind(("10.77.0.3", port))
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        sender.connect(("10.77.0.3", port))
        flows[name] = [receiver, sender, rate * 1e6 / 8 / (SIZE + 42), 0]
    start = time.monotonic()
    while (elapsed := time.monotonic() - start) < seconds:
        for flow in flows.values():
            while flow[3] < flow[2] * elapsed:
                flow[1].send(bytes(SIZE))
                flow[3] += 1
        time.sleep(0.001)
    took = time.monotonic() - start
    out, times = {}, {}
    for name, (receiver, sender, _, sent) in flows.items():
        times[name] = arrivals(receiver, sent + 1, quiet_s=1.0)
        out[name] = (sent, len(times[name]))
        receiver.close()
        sender.close()
    return out, took, times


def fastest(times: list[float], packets: int = 24) -> float:
    """Mbit/s of the fastest so many packets one after another: stalls of sender, receiver or timer are left out, and a
    bucket (two packets) can't make them much faster than the link."""
    spans = [last - first for first, last in zip(times, times[packets:], strict=False)]
    return packets * (SIZE + 42) * 8 / min(spans) / 1e6 if spans else 0.0


def classes(network: StarNetwork) -> dict[str, Any]:
    return {c.name: c for c in network.classes()["h2 downlink"]}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_link_has_its_rate_and_the_queue_drops_what_is_too_much(build: Build, scheduler: str) -> None:
    network = shaped(build, scheduler)
    reached = []
    while len(reached) < 5 and max(reached, default=0.0) < 0.85 * LINK_MBIT:
        before = classes(network)["training"].dropped
        result, took, times = timed_blast(network, web_mbit=0, training_mbit=3 * LINK_MBIT, seconds=2)
        sent, received = result["training"]
        assert classes(network)["training"].dropped - before == sent - received, "drops equal what the receiver misses"
        assert received * (SIZE + 42) * 8 / took / 1e6 < 1.15 * LINK_MBIT, "never faster than the link"
        reached.append(fastest(times["training"]))
    # A full machine stalls its sender or its timers, and the link idles: an undisturbed 10 ms is enough.
    assert max(reached) > 0.85 * LINK_MBIT, reached


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_web_is_served_first_and_training_loses(build: Build, scheduler: str) -> None:
    # On a machine that can't send as much as the link carries, a slower link is crowded just as well.
    for mbit in (LINK_MBIT, LINK_MBIT, LINK_MBIT / 4, LINK_MBIT / 4, LINK_MBIT / 16):
        network = shaped(build, scheduler, mbit=mbit)
        before = classes(network)["training"].dropped
        result, took = blast(network, web_mbit=0.8 * mbit, training_mbit=1.5 * mbit, seconds=2)
        state = classes(network)
        assert result["web"][0] == result["web"][1] and state["web"].dropped == 0
        sent, received = result["training"]
        assert state["training"].dropped - before == sent - received
        # A slow machine sends less than it should: training loses what the link can't carry beside the web.
        carried = mbit * 1e6 / 8 * took / (SIZE + 42)
        too_much = sent - max(carried - result["web"][0], 0)
        if too_much > 0.1 * sent:
            break
    else:
        pytest.fail("this machine never sent more than the link carries")
    assert sent - received > 0.5 * too_much - QUEUED, "a first-come queue would take from both"


@pytest.mark.guest
def test_fq_codel_marks_tcp_and_drops_what_does_not_know_ecn(build: Build) -> None:
    """Every packet that it drops is counted in its class, and TCP that asks for marks gets them instead."""
    network = build(
        topology={"hosts": 3, "downlink_rate_mbit": 2}, shaping={"queue": "fq_codel", "target_ms": 20}, impair=[]
    )
    assert network.shaping_wrong() == [], "as asked, by the kernel's own words"
    before = sole(network)
    result, _ = blast(network, web_mbit=0, training_mbit=6, seconds=8)
    sent, received = result["training"]
    after = sole(network)
    assert after.dropped - before.dropped == sent - received > 0
    assert after.marked == before.marked, "UDP of ours does not know ECN"
    stream(network, seconds=8)
    assert sole(network).marked > after.marked, "TCP does"


def sole(network: StarNetwork) -> Any:
    (state,) = network.classes()["h2 downlink"]
    return state


def stream(network: StarNetwork, *, seconds: float) -> None:
    """As much as TCP will send from h0 to h2."""
    with (
        open_socket(network, "h2", kind=socket.SOCK_STREAM) as door,
        open_socket(network, "h0", kind=socket.SOCK_STREAM) as out,
    ):
        door.bind(("10.77.0.3", 8080))
        door.listen(1)
        out.connect(("10.77.0.3", 8080))
        taken, _ = door.accept()
        with taken:
            out.setblocking(False)
            taken.setblocking(False)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                with suppress(BlockingIOError):
                    out.send(bytes(64_000))
                with suppress(BlockingIOError):
                    taken.recv(1 << 20)
                time.sleep(0.001)


@pytest.mark.parametrize("mbit", [20, 100, 500])
def test_a_message_after_a_pause_is_not_faster_than_the_link(build: Build, mbit: float) -> None:
    """As it was: an idle link saved up a millisecond, an eighth of a 100 KB message at 100 Mbit/s."""
    network, packets = build(topology={"hosts": 2, "rate_mbit": mbit}, impair=[]), 70
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.bind(("10.77.0.2", 5000))
        sender.connect(("10.77.0.2", 5000))
        spans = []
        for _ in range(9):
            time.sleep(0.1)
            for _ in range(packets):
                sender.send(bytes(1458))
            came = arrivals(receiver, packets)
            assert len(came) == packets
            spans.append(came[-1] - came[0])
    least = (packets - 1) * 1500 * 8 / (mbit * 1e6)
    assert median(spans) > 0.93 * least, (spans, least)


def arrivals(receiver: socket.socket, count: int, *, quiet_s: float = 5.0) -> list[float]:
    """When packets came, by the kernel: so many, or as many as come before it is quiet."""
    receiver.settimeout(quiet_s)
    said = []
    with suppress(TimeoutError):
        while len(said) < count:
            said.append(receiver.recvmsg(2000, 64)[1][0][2])
    return [seconds + nanoseconds * 1e-9 for seconds, nanoseconds in (struct.unpack("qq", one) for one in said)]


def test_a_rate_on_the_uplink_is_backpressure_not_loss(build: Build) -> None:
    network = build(topology={"hosts": 2, "uplink_rate_mbit": 50}, impair=[])
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
        receiver.bind(("10.77.0.2", 5000))
        start = time.monotonic()
        for _ in range(5000):
            sender.sendto(bytes(SIZE), ("10.77.0.2", 5000))
        took = time.monotonic() - start
        assert len(receive_all(receiver, at_least=5000)) == 5000
    assert took > 0.5 * 5000 * (SIZE + 42) * 8 / 50e6, "the sender was held back"
    assert sum(c.dropped for c in network.classes()["h0 uplink"]) == 0


def test_loss_and_rate_together_add_up(build: Build) -> None:
    network = build(topology={"hosts": 4, "rate_mbit": 100}, impair=[{"profile": "loss_5"}])
    proof = prove(network, packets=20_000)
    assert proof.judgement.status == 0, proof.judgement.reasons()
    assert all(row.exact for row in proof.rows)
    assert {c.rate_mbit for link in network.classes().values() for c in link} == {100.0}
