"""Rates and priorities: who waits, who loses, and that every lost packet is counted in its class."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from lossbench.net.star.network import StarNetwork
from tests.networks import Build, open_socket, prove, receive_all

pytestmark = pytest.mark.netns
LINK_MBIT = 20
SIZE = 1000
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
    flows = {}
    for name, host, port, dscp, rate in (
        ("web", "h0", 8080, 10, web_mbit),
        ("training", "h1", 29400, 0, training_mbit),
    ):
        receiver, sender = open_socket(network, "h2"), open_socket(network, host)
        receiver.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
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
    out = {}
    for name, (receiver, sender, _, sent) in flows.items():
        out[name] = (sent, len(receive_all(receiver)))
        receiver.close()
        sender.close()
    return out, took


def classes(network: StarNetwork) -> dict[str, Any]:
    return {c.name: c for c in network.classes()["h2 downlink"]}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_link_has_its_rate_and_the_queue_drops_what_is_too_much(build: Build, scheduler: str) -> None:
    network = shaped(build, scheduler)
    reached = []
    while len(reached) < 5 and max(reached, default=0.0) < 0.85 * LINK_MBIT:
        before = classes(network)["training"].dropped
        result, took = blast(network, web_mbit=0, training_mbit=3 * LINK_MBIT, seconds=2)
        sent, received = result["training"]
        assert classes(network)["training"].dropped - before == sent - received, "drops equal what the receiver misses"
        reached.append(received * (SIZE + 42) * 8 / took / 1e6)
        assert reached[-1] < 1.15 * LINK_MBIT, "never faster than the link"
    # A machine that stalls its sender lets the link idle: one undisturbed round in five is enough to see the rate.
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


def test_a_rate_on_the_uplink_is_backpressure_not_loss(build: Build) -> None:
    network = build(topology={"hosts": 2, "uplink_rate_mbit": 50}, impair=[])
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
        receiver.bind(("10.77.0.2", 5000))
        start = time.monotonic()
        for _ in range(5000):
            sender.sendto(bytes(SIZE), ("10.77.0.2", 5000))
        took = time.monotonic() - start
        assert len(receive_all(receiver)) == 5000
    assert took > 0.5 * 5000 * (SIZE + 42) * 8 / 50e6, "the sender was held back"
    assert sum(c.dropped for c in network.classes()["h0 uplink"]) == 0


def test_loss_and_rate_together_add_up(build: Build) -> None:
    network = build(topology={"hosts": 4, "rate_mbit": 100}, impair=[{"profile": "loss_5"}])
    proof = prove(network, packets=20_000)
    assert proof.judgement.status == 0, proof.judgement.reasons()
    assert all(row.exact for row in proof.rows)
    assert {c.rate_mbit for link in network.classes().values() for c in link} == {100.0}
