"""What every backend must do, measured on real packets. Adding a backend means adding one line to BACKENDS."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from lossbench.net.bpf.classic import classifier
from lossbench.net.impair import registry
from lossbench.net.kernel import Kernel
from lossbench.net.star.network import StarNetwork
from lossbench.net.tc.hook import put_filter
from lossbench.proof.evidence import foils_among
from lossbench.proof.verdict import Status
from lossbench.spec import profile
from lossbench.spec.placement import rules_in_force
from lossbench.spec.profile import Match
from tests.forms import forms, full
from tests.networks import Build, open_socket, prove, receive_all

BACKENDS = [
    "ebpf",
    "cbpf",
    "relay",
    pytest.param("netem", marks=pytest.mark.guest),
    pytest.param("edt", marks=pytest.mark.guest),
]
pytestmark = [pytest.mark.netns, pytest.mark.parametrize("backend", BACKENDS)]


def able(backend: str, name: str) -> None:
    reason = registry.able(Kernel.tried())[backend]
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    refusal = registry.KINDS[backend].refusal(profile.load(name))
    if refusal is not None:
        pytest.skip(f"{backend} refuses {refusal}: by design")


PROFILES = [
    "clean",
    "loss_0p1",
    pytest.param("loss_1", marks=full),
    "loss_5",
    "loss_10",
    "brownout",
    pytest.param("bursty_1", marks=full),
    "bursty_5",
    "dc_tail",
    "wifi_like",
]


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_in_force_as_asked(build: Build, backend: str, name: str) -> None:
    """Read back equal, kernel counter equal to what receivers miss, rate and bursts as the model says."""
    able(backend, name)
    network = build(backend=backend, impair=[{"profile": name}])
    proof = prove(network)
    assert proof.judgement.status == Status.VALID, proof.judgement.reasons()
    assert {row.hook for row in proof.rows} == {f"h{n} uplink" for n in range(4)}
    for row in proof.rows:
        assert row.kernel_dropped == row.receiver_missing
        assert row.kernel_seen == row.receiver_sent
        assert row.read_back == pytest.approx(row.asked, abs=1e-6)


def test_a_filter_that_is_not_ours_is_seen_beside_ours(build: Build, backend: str) -> None:
    """Ours stands as it was put there: only their number tells of the other."""
    able(backend, "loss_5")
    network = build(backend=backend, topology={"hosts": 2}, impair=[{"profile": "loss_5"}])
    assert network.not_in_force() == []
    point = network.star.hook_point(next(hook for hook, here in network.rules.items() if here))
    put_filter(network.star.switch, point, prio=77, ops=classifier(Match()), direct_action=True)
    assert any("1 filters that are not ours" in text for text in network.not_in_force())


@pytest.mark.parametrize("direction", ["uplink", "downlink", "both"])
def test_every_direction_is_counted_apart(build: Build, backend: str, direction: str) -> None:
    able(backend, "loss_10")
    network = build(backend=backend, impair=[{"profile": "loss_10", "direction": direction}])
    proof = prove(network)
    assert proof.judgement.status == Status.VALID, proof.judgement.reasons()
    lossy = {row.hook.split()[1] for row in proof.rows if row.kernel_dropped}
    assert lossy == ({"uplink", "downlink"} if direction == "both" else {direction})


@forms(("mtu", "family"), [(1500, "ipv6"), (9000, "ipv4"), (1500, "ipv4"), (9000, "ipv6")], keep=2)
def test_both_ip_versions_and_mtus(build: Build, backend: str, family: str, mtu: int) -> None:
    able(backend, "loss_5")
    network = build(backend=backend, topology={"family": family, "mtu": mtu}, impair=[{"profile": "loss_5"}])
    assert prove(network).judgement.status == Status.VALID


MATCHES = {
    "udp": 'protocol = "udp"',
    "tcp": 'protocol = "tcp"',
    "destination port": "destination_ports = [4242, 4243]",
    "source port": "source_ports = [5151]",
    "dscp": "dscp = 8",
    "destination host": 'destinations = ["h2"]',
    "destination network": 'destinations = ["10.77.0.2/31", "fd6c:6f73:7362::2/127"]',
    "all of it": 'protocol = "udp"\ndestination_ports = [4242]\ndscp = 10\ndestinations = ["h1"]',
}


# Each in one of them, all of it in both: the other ones are left to `make test-all`.
ONE_FAMILY = {
    "udp": "ipv4",
    "tcp": "ipv6",
    "destination port": "ipv4",
    "source port": "ipv6",
    "dscp": "ipv6",
    "destination host": "ipv4",
    "destination network": "ipv6",
}
MATCHED = [
    pytest.param(match, family, id=f"{name}-{family}", marks=[full] if ONE_FAMILY.get(name, family) != family else [])
    for name, match in MATCHES.items()
    for family in ("ipv4", "ipv6")
]


@pytest.mark.parametrize(("match", "family"), MATCHED)
def test_a_match_takes_its_packets_and_no_others(
    build: Build, backend: str, family: str, match: str, profile_file: Callable[[str], str]
) -> None:
    """Everything lost that matches; a second flow that does not match loses nothing."""
    able(backend, "loss_5")
    path = profile_file(f'[loss]\nmodel = "iid"\npercent = 100\n[match]\n{match}')
    hosts = {"topology": {"family": family, "hosts": 4}}
    network = build(backend=backend, **hosts, impair=[{"profile": path, "hosts": ["h0"]}])
    proof = prove(network, packets=3000)
    assert proof.judgement.status == Status.VALID, proof.judgement.reasons()
    foils = foils_among(proof.rows)
    taken = [row for row in proof.rows if row.hook == "h0 uplink" and row not in foils]
    assert len(taken) == 1 and taken[0].receiver_missing == taken[0].receiver_sent == taken[0].kernel_dropped
    assert foils and all(row.receiver_missing == 0 for row in proof.rows if row not in taken)
    if match != MATCHES["udp"]:  # there every UDP packet matches
        assert _plain_datagrams_arrive(network, family)


def _plain_datagrams_arrive(network: StarNetwork, family: str) -> bool:
    """Unmarked UDP to odd ports of h3, whom no rule here names."""
    kind = socket.AF_INET if family == "ipv4" else socket.AF_INET6
    address = network.experiment.topology.host("h3").address(family)
    with open_socket(network, "h3", kind) as receiver, open_socket(network, "h0", kind) as sender:
        receiver.bind((address, 7777))
        for _ in range(50):
            sender.sendto(b"x", (address, 7777))
        return len(receive_all(receiver, at_least=50)) == 50


def test_a_tcp_rule_is_proven_on_every_host(build: Build, backend: str, profile_file: Callable[[str], str]) -> None:
    able(backend, "loss_5")
    path = profile_file('[loss]\nmodel = "iid"\npercent = 5\n[match]\nprotocol = "tcp"')
    network = build(backend=backend, topology={"hosts": 3}, impair=[{"profile": path}])
    proof = prove(network, packets=6000)
    assert proof.judgement.status == Status.VALID, proof.judgement.reasons()
    foils = foils_among(proof.rows)
    assert all(0 < row.receiver_missing < 300 for row in proof.rows if row not in foils)
    assert foils and all(row.receiver_missing == 0 for row in foils)


def test_two_pairs_of_one_source_lose_apart(build: Build, backend: str) -> None:
    able(backend, "loss_10")
    pairs = [["h0", "h1"], ["h0", "h2"]]
    network = build(backend=backend, topology={"hosts": 3}, impair=[{"profile": "loss_10", "pairs": pairs}])
    proof = prove(network, packets=12_000)
    assert proof.judgement.status == Status.VALID, proof.judgement.reasons()
    assert sum(row.hook == "h0 uplink" and row.asked > 0 for row in proof.rows) == 2


def test_every_rule_at_a_hook_is_probed(build: Build, backend: str, profile_file: Callable[[str], str]) -> None:
    """Rules that differ only in a port must not stand in for each other."""
    able(backend, "loss_10")
    path = profile_file("[match]\ndestination_ports = [29500, 30000]")
    network = build(backend=backend, topology={"hosts": 2}, impair=[{"profile": "loss_10"}, {"profile": path}])
    proof = prove(network, packets=8000)
    assert proof.judgement.status == Status.VALID, proof.judgement.reasons()
    assert sorted(row.asked for row in proof.rows) == [0, 0, 0.1, 0.1]


def test_pairs_lose_only_between_the_two(build: Build, backend: str) -> None:
    able(backend, "brownout")
    network = build(backend=backend, impair=[{"profile": "brownout", "pairs": [["h0", "h2"]]}])
    proof = prove(network, packets=20_000)
    assert proof.judgement.status == Status.VALID, proof.judgement.reasons()
    assert [row.hook for row in proof.rows if row.kernel_dropped] == ["h0 uplink"]


def test_a_change_in_place_tears_no_flow(build: Build, backend: str) -> None:
    """A TCP connection lives through ten changes of the profile, and every change is in force."""
    able(backend, "loss_1")
    network = build(backend=backend, impair=[{"profile": "clean"}])
    with (
        open_socket(network, "h1", kind=socket.SOCK_STREAM) as listener,
        open_socket(network, "h0", kind=socket.SOCK_STREAM) as client,
    ):
        listener.bind(("10.77.0.2", 5000))
        listener.listen(1)
        client.connect(("10.77.0.2", 5000))
        server, _ = listener.accept()
        with server:
            server.settimeout(10)
            for number in range(10):
                name = ("loss_1", "clean")[number % 2]
                experiment = network.experiment.model_copy(
                    update={
                        "impair": (network.experiment.impair[0].model_copy(update={"profile": profile.load(name)}),)
                    }
                )
                network.put(rules_in_force(experiment, seed=number))
                assert all(e.attached and e.equal for here in network.read_back().values() for e in here)
                client.sendall(b"x" * 20_000)
                got = 0
                while got < 20_000:
                    got += len(server.recv(65536))
    total = sum(c.seen for here in network.counters().values() for c in here.values())
    assert total > 150, "counters run on over every change"
