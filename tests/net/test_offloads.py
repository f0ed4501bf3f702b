"""Loss acts on MTU packets, whatever the sender's offloads do; if not, the fault is unknown."""

from __future__ import annotations

import socket
import struct
import threading

import numpy as np
import pytest

from lossbench.net.host import namespaces
from lossbench.net.star.network import StarNetwork
from lossbench.net.tc import offloads
from lossbench.proof import statistics
from lossbench.proof.probe.exchange import SO_RCVBUFFORCE
from lossbench.proof.probe.probing import prove_network
from lossbench.proof.verdict import Status
from lossbench.spec.topology import DATA_INTERFACE, SWITCH
from tests.networks import Build, open_socket, prove

pytestmark = pytest.mark.netns
LOSS = 0.05


class Tap:
    """Every TCP data packet that passes a switch port, in order: (IP id, sequence number)."""

    def __init__(self, network: StarNetwork, port: str) -> None:
        with namespaces.inside(network.star.namespace(SWITCH)):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self.socket.bind((port, 3))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
        self.socket.settimeout(0.3)
        self._done = threading.Event()
        self.keys: list[tuple[int, int]] = []
        self.longest = 0
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                frame = self.socket.recv(65536)
            except TimeoutError:
                if self._done.is_set():
                    return
            else:
                if frame[12:14] == b"\x08\x00" and frame[23] == 6 and frame[26:30] == bytes([10, 77, 0, 1]):
                    self.longest = max(self.longest, len(frame))
                    if len(frame) > 200:
                        self.keys.append(
                            (struct.unpack_from(">H", frame, 18)[0], struct.unpack_from(">I", frame, 38)[0])
                        )

    def stop(self) -> list[tuple[int, int]]:
        self._done.set()
        self._thread.join()
        self.socket.close()
        return self.keys


def send_tcp(network: StarNetwork, total: int) -> None:
    """With the socket's and interface's own defaults."""
    with (
        open_socket(network, "h1", kind=socket.SOCK_STREAM) as listener,
        open_socket(network, "h0", kind=socket.SOCK_STREAM) as client,
    ):
        listener.bind(("10.77.0.2", 5000))
        listener.listen(1)
        client.connect(("10.77.0.2", 5000))
        server, _ = listener.accept()

        def drain() -> None:
            while server.recv(1 << 18):
                pass

        reader = threading.Thread(target=drain)
        reader.start()
        client.sendall(bytes(total))
        client.shutdown(socket.SHUT_WR)
        reader.join(timeout=120)
        server.close()


@pytest.mark.parametrize("backend", ["ebpf", "cbpf", pytest.param("netem", marks=pytest.mark.guest)])
def test_a_tcp_sender_loses_single_mtu_packets(build: Build, backend: str) -> None:
    network = build(backend=backend, topology={"hosts": 2}, impair=[{"profile": "loss_5"}])
    before, after = Tap(network, "p0"), Tap(network, "p1")
    send_tcp(network, 24_000_000)
    sent, arrived = before.stop(), set(after.stop())
    missing = np.array([key not in arrived for key in sent])
    assert len(missing) > 10_000
    assert before.longest <= 1514
    assert statistics.bursts(missing).mean() == pytest.approx(1 / (1 - LOSS), rel=0.03)
    counters = [c for here in network.counters().values() for c in here.values()]
    assert sum(c.super_packets for c in counters) == 0


@pytest.mark.parametrize("backend", ["ebpf", "cbpf", pytest.param("netem", marks=pytest.mark.guest)])
def test_a_udp_segment_sender_loses_single_mtu_packets(build: Build, backend: str) -> None:
    """The probe sends 64 packets to a system call with UDP_SEGMENT: its own bursts are the measurement."""
    network = build(backend=backend, topology={"hosts": 2}, impair=[{"profile": "loss_5"}])
    proof = prove_network(network, packets=40_000, payload_bytes=1000, token=1 << 40)
    assert proof.judgement.status == Status.VALID
    for row in proof.rows:
        assert row.burst_seen == pytest.approx(1 / (1 - LOSS), rel=0.03)


@pytest.mark.parametrize("backend", ["ebpf", "cbpf", pytest.param("netem", marks=pytest.mark.guest)])
def test_offloads_switched_back_on_make_the_fault_unknown_never_silently_bursty(build: Build, backend: str) -> None:
    network = build(backend=backend, topology={"hosts": 2}, impair=[{"profile": "loss_5"}])
    with namespaces.inside(network.star.namespace("h0")):
        offloads.switch(DATA_INTERFACE, dict.fromkeys(offloads.SEGMENTATION, True))
    proof = prove_network(network, packets=20_000, payload_bytes=1000, token=1 << 40)
    assert proof.judgement.status != Status.VALID
    said = " ".join(f.text for f in proof.judgement.findings)
    assert "super-packets passed the loss point" in said and "offloads are not as they must be" in said


def test_receivers_keep_their_gro_fast_path(build: Build) -> None:
    """Packets are merged again behind the loss point: a GRO socket reads many at a time."""
    network = build(topology={"hosts": 2}, impair=[{"profile": "clean"}])
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.setsockopt(socket.IPPROTO_UDP, 104, 1)
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        receiver.bind(("10.77.0.2", 5000))
        receiver.settimeout(1)
        for _ in range(20):
            sender.sendmsg(
                [bytes(1000 * 60)], [(socket.IPPROTO_UDP, 103, struct.pack("<H", 1000))], 0, ("10.77.0.2", 5000)
            )
        sizes = []
        try:
            while sum(sizes) < 20 * 60_000:
                sizes.append(len(receiver.recv(65536)))
        except TimeoutError:
            pass
    assert sum(sizes) == 20 * 60_000
    assert np.mean(sizes) > 5_000, "GRO is not at work"


def test_the_probe_notices_a_wrong_rate(build: Build) -> None:
    """Someone else's hand on the kernel: the rule is replaced behind our back."""
    network = build(topology={"hosts": 2}, impair=[{"profile": "loss_5"}])
    network.star.switch.tc("del", "clsact", network.star.ports[0])
    assert prove(network, packets=4000).judgement.status != Status.VALID
