"""Everything a profile can say to netem, on a stock kernel: read back field by field, then measured."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

import numpy as np
import pytest
from pyroute2 import IPRoute

from lossbench.net.impair.netem.options import decoded, options_of
from lossbench.net.star.network import StarNetwork
from lossbench.net.tc import kinds
from lossbench.proof import statistics
from lossbench.proof.probe.exchange import Exchange
from lossbench.proof.probe.flows import plan
from lossbench.proof.probe.heard import Heard
from lossbench.proof.verdict import Status
from lossbench.spec import lossmodel, profile
from tests.forms import forms
from tests.networks import Build, open_socket, prove
from tests.shared import z_score

pytestmark = [pytest.mark.netns, pytest.mark.guest]
PACKETS = 50_000
SO_TIMESTAMPNS = 35
TWO = {"hosts": 2}


@pytest.mark.tier
def test_no_device_of_a_module_that_we_need_is_put_into_the_machines_own_namespace(build: Build) -> None:
    """As it was: the kernel loaded ifb for us, and that made ifb0 and ifb1 there."""
    network = build(backend="netem", topology=TWO, impair=[{"profile": "loss_1", "hosts": ["h0"]}])
    assert network.star.switch.get_links(kind="ifb"), "it is in use"
    with IPRoute() as machine:
        assert [link.get_attr("IFLA_IFNAME") for link in machine.get_links(kind="ifb")] == []


@forms("name", ["bursty_5", "loss_1", "loss_5", "loss_10", "wifi_like"])
@pytest.mark.tier
def test_loss_models_are_met_in_rate_and_bursts(build: Build, name: str) -> None:
    network = build(backend="netem", topology=TWO, impair=[{"profile": name, "hosts": ["h0"]}])
    (heard, _) = blast(network, PACKETS)
    chain = profile.load(name).chain()
    assert chain is not None
    missing = heard.missing()
    counters = network.counters()[next(iter(network.rules))]
    (count,) = [c for label, c in counters.items() if label != "unmatched"]
    # On a busy machine some may not get as far as the hook: the kernel counts them, too.
    links = network.read().links.values()
    before, behind = sum(c.lost_entering for c in links), sum(c.lost_leaving + c.down.dropped for c in links)
    assert (count.seen, count.dropped) == (PACKETS - before, int(missing.sum()) - before - behind), (
        "kernel counter equals what the receiver misses"
    )
    assert abs(z_score(count.dropped, count.seen, chain)) < 3.9
    runs, shares, lengths = statistics.bursts(missing), lossmodel.burst_lengths(chain, up_to=1000), np.arange(1, 1001)
    expected = float(shares @ lengths)
    deviation = float(shares @ (lengths - expected) ** 2) ** 0.5 / len(runs) ** 0.5
    assert expected == pytest.approx(lossmodel.burst_mean(chain), rel=1e-3)
    assert abs(runs.mean() - expected) < 3.9 * deviation, "15 % of them are 2.7 deviations: one honest guest in 140"
    p_value = statistics.burst_two_sided(missing, chain)
    assert p_value is None or p_value > 1e-4


def blast(network: StarNetwork, packets: int) -> list[Heard]:
    flows, _ = plan(network.rules, network.experiment.topology)
    with Exchange(flows, place_of=network.place, payload_bytes=64, token=1 << 40) as exchange:
        return exchange.loss(packets=packets, rate_mbit=None, settled=lambda _: False, wait_s=0.5)


EVERYTHING = """seed = 7
duplicate_percent = 1.5
corrupt_percent = 0.5
rate_mbit = 100000
queue_limit_packets = 12345
[loss]
model = "gilbert_elliott"
p_percent = 1
r_percent = 20
h_percent = 30
k_percent = 99.5
[delay]
mean_ms = 12.5
jitter_ms = 1.25
distribution = "pareto"
correlation_percent = 10
[reorder]
percent = 5
gap = 3
correlation_percent = 25
[slot]
min_ms = 0.1
max_ms = 0.2
packets = 16
bytes = 65536
"""


@pytest.mark.tier
def test_every_field_reads_back_as_it_was_sent(build: Build, profile_file: Callable[[str], str]) -> None:
    network = build(backend="netem", topology=TWO, impair=[{"profile": profile_file(EVERYTHING)}])
    for entries in network.read_back().values():
        assert all(e.attached and e.equal for e in entries), entries
    hook = next(iter(network.rules))
    index = network.star.switch.link_lookup(ifname="i0u0")[0]
    (qdisc,) = [q for q in network.star.switch.get_qdiscs(index) if q.get_attr("TCA_KIND") == "netem"]
    real, asked = decoded(qdisc.get_attr("TCA_OPTIONS")), options_of(network.rules[hook][0])
    assert real["rate_bytes_s"] == 12_500_000_000, "a rate above 32 bits"
    for name in (
        "gilbert",
        "reorder",
        "corrupt",
        "corr",
        "slot",
        "latency_ns",
        "jitter_ns",
        "limit",
        "gap",
        "duplicate",
    ):
        assert real[name] == asked[name], name


@pytest.mark.tier
def test_ecn_marks_are_read_back_and_correlated_loss_is_warned_about(
    build: Build, profile_file: Callable[[str], str]
) -> None:
    text = 'ecn = true\n[loss]\nmodel = "iid"\npercent = 10\ncorrelation_percent = 25'
    path = profile_file(text)
    network = build(backend="netem", topology=TWO, impair=[{"profile": path}])
    assert all(e.equal for entries in network.read_back().values() for e in entries)
    assert "correlation changes the loss rate" in profile.load(path).warnings()[0]
    proof = prove(network, packets=8000)
    assert proof.judgement.status == Status.VALID, proof.judgement.reasons()
    assert 0 < sum(row.kernel_dropped for row in proof.rows) < 2 * 800


def test_duplicates_come_twice_and_damaged_packets_not_at_all(build: Build, profile_file: Callable[[str], str]) -> None:
    network = build(
        backend="netem",
        topology=TWO,
        impair=[
            {"profile": profile_file("duplicate_percent = 5"), "hosts": ["h0"]},
            {"profile": profile_file("corrupt_percent = 5"), "hosts": ["h1"]},
        ],
    )
    twice, damaged = blast(network, 8000)
    assert statistics.binomial_two_sided(twice.duplicates(), 8000, 0.05) > 1e-4
    # One flipped bit anywhere: nearly all break a checksum or an address; none may arrive changed.
    assert statistics.binomial_two_sided(int(damaged.missing().sum()), 8000, 0.05) > 1e-6
    assert damaged.wrong_headers == 0


@pytest.mark.tier
def test_from_delay_back_to_none_in_place(build: Build, profile_file: Callable[[str], str]) -> None:
    """A delay table can't be taken back by a change: the qdisc is made anew, and nothing waits any more."""
    from lossbench.spec.placement import rules_in_force

    network = build(backend="netem", topology=TWO, impair=[{"profile": "wan_40ms"}])
    entry = network.experiment.impair[0].model_copy(update={"profile": profile.load("clean")})
    network.put(rules_in_force(network.experiment.model_copy(update={"impair": (entry,)}), seed=2))
    assert all(e.equal for entries in network.read_back().values() for e in entries)
    assert np.median(delays(network)) < 30, "nothing waits its 40 ms any more"


@pytest.mark.tier
def test_damage_and_rate_of_an_earlier_profile_do_not_stay(build: Build, profile_file: Callable[[str], str]) -> None:
    """netem keeps every attribute that a change does not send."""
    from lossbench.spec.placement import rules_in_force

    path = profile_file("corrupt_percent = 50\nrate_mbit = 0.5\n[slot]\nmin_ms = 1\nmax_ms = 2")
    network = build(backend="netem", topology=TWO, impair=[{"profile": path}])
    entry = network.experiment.impair[0].model_copy(update={"profile": profile.load("clean")})
    network.put(rules_in_force(network.experiment.model_copy(update={"impair": (entry,)}), seed=2))
    proof = prove(network, packets=4000)
    assert proof.judgement.status == Status.VALID, proof.judgement.reasons()
    assert sum(r.receiver_missing for r in proof.rows) == 0


@pytest.mark.tier
def test_a_rule_that_ends_keeps_its_count(build: Build) -> None:
    from lossbench.spec.placement import rules_in_force

    network = build(backend="netem", topology=TWO, impair=[{"profile": "loss_10", "pairs": [["h0", "h1"]]}])
    blast(network, 4000)
    nothing = network.experiment.model_copy(update={"impair": ()})
    network.put(rules_in_force(nothing, seed=1))
    (count,) = [c for here in network.counters().values() for label, c in here.items() if label != "unmatched"]
    assert count.seen == 4000 and 250 < count.dropped < 550


@pytest.mark.tier
@pytest.mark.parametrize("scheduler", ["prio", "ets"])
def test_strict_schedulers_read_back_under_their_rate(build: Build, scheduler: str) -> None:
    from lossbench.net.kernel import Kernel

    if not Kernel.tried().qdiscs[scheduler]:
        pytest.skip(f"this kernel has no sch_{scheduler}")
    classes = [{"name": "training", "ports": [29400], "priority": 7}, {"name": "web", "dscp": 10, "priority": 0}]
    network = build(
        backend="netem",
        topology={"hosts": 2, "downlink_rate_mbit": 50},
        impair=[],
        shaping={"scheduler": scheduler, "classes": classes},
    )
    found = {q.get_attr("TCA_KIND") for q in network.star.switch.get_qdiscs(network.star.ports[0])}
    assert {"htb", scheduler, "bfifo"} <= found
    assert [c.name for c in network.classes()["h0 downlink"]] == ["training", "web", "rest"]
    assert network.experiment.shaping.resolved()[-1].name == "rest"


# --- timing: in a boot whose clock counts instructions ---------------------------------------------------------------


def delays(network: StarNetwork) -> np.ndarray:
    flows, _ = plan(network.rules, network.experiment.topology)
    with Exchange(flows[:1], place_of=network.place, payload_bytes=64, token=1 << 40) as exchange:
        exchange.delay(wait_s=0.2)  # the first packets of a path are slow
        (heard,) = exchange.delay(wait_s=0.2)
    return np.array(heard.delays_ms)


@pytest.mark.clock
@pytest.mark.parametrize("backend", ["netem", "edt", "relay"])
def test_a_delay_of_20_ms_is_20_ms(build: Build, profile_file: Callable[[str], str], backend: str) -> None:
    bare = float(np.median(delays(build(backend=backend, topology=TWO, impair=[{"profile": "clean"}]))))
    path = profile_file("[delay]\nmean_ms = 20")
    network = build(backend=backend, topology=TWO, impair=[{"profile": path, "hosts": ["h0"]}])
    # A user-space wire adds its own scheduling: within 25 %.
    assert np.median(delays(network)) - bare == pytest.approx(20, rel=0.25 if backend == "relay" else 0.05)


@pytest.mark.clock
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_jitter_has_the_asked_spread(build: Build, profile_file: Callable[[str], str], distribution: str) -> None:
    text = f'[delay]\nmean_ms = 20\njitter_ms = 4\ndistribution = "{distribution}"'
    network = build(backend="netem", topology=TWO, impair=[{"profile": profile_file(text), "hosts": ["h0"]}])
    seen = delays(network)
    # By quartiles, since the guest itself now and then holds a packet up: uniform over 8 ms, or a normal's 1.35 sigma.
    low, high = np.quantile(seen, (0.25, 0.75))
    assert high - low == pytest.approx(4.0 if distribution == "uniform" else 1.35 * 4, rel=0.3)
    assert np.median(seen) == pytest.approx(20, rel=0.08)


@pytest.mark.clock
@pytest.mark.parametrize("distribution", ["pareto", "paretonormal"])
def test_heavy_tails_follow_their_table(build: Build, profile_file: Callable[[str], str], distribution: str) -> None:
    bare = float(np.median(delays(build(backend="netem", topology=TWO, impair=[{"profile": "clean"}]))))
    text = f'[delay]\nmean_ms = 20\njitter_ms = 4\ndistribution = "{distribution}"'
    network = build(backend="netem", topology=TWO, impair=[{"profile": profile_file(text), "hosts": ["h0"]}])
    asked = 20 + 4 * np.frombuffer(kinds.distribution_table(distribution), dtype=np.int16) / 8192
    odd: list[str] = []
    for _ in range(4):  # the guest now and then holds packets up: one undisturbed round is enough to see the table
        seen = delays(network) - bare
        odd = [
            f"{q}: {np.quantile(seen, q):.2f}"
            for q in (0.1, 0.25, 0.5, 0.75, 0.9)
            # The quantile of so few samples is itself spread; asked values a little to both sides are as good.
            if not np.quantile(asked, max(q - 0.12, 0)) - 0.5
            <= np.quantile(seen, q)
            <= np.quantile(asked, min(q + 0.12, 1)) + 0.5
        ]
        if not odd:
            break
    assert not odd, odd
    upper, lower = np.quantile(seen, 0.95) - np.median(seen), np.median(seen) - np.quantile(seen, 0.05)
    assert upper > 1.5 * lower, "the tail is on the late side"


@pytest.mark.clock
def test_delay_correlation_is_taken_by_the_kernel_and_correlates_nothing(
    build: Build, profile_file: Callable[[str], str]
) -> None:
    """netem takes its correlated number modulo the spread, which wipes the correlation out: a user is warned."""
    path = profile_file("[delay]\nmean_ms = 20\njitter_ms = 4\ncorrelation_percent = 95")
    network = build(backend="netem", topology=TWO, impair=[{"profile": path, "hosts": ["h0"]}])
    assert all(e.equal for entries in network.read_back().values() for e in entries)
    seen = arrivals_ms(network, packets=400, spacing_s=0.02)[:, 2]
    assert abs(np.corrcoef(seen[:-1], seen[1:])[0, 1]) < 0.4, "95 % was asked"
    assert "delay correlation" in profile.load(path).warnings()[0]


def arrivals_ms(network: StarNetwork, *, packets: int, spacing_s: float = 0.0, size: int = 100) -> np.ndarray:
    """Rows (number, arrival, delay) in order of arrival, of packets from h0 to h1."""
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.bind(("10.77.0.2", 5000))
        receiver.settimeout(1.0)
        sender.connect(("10.77.0.2", 5000))
        sender.send(bytes(size))  # the first packet of a path is slow
        receiver.recv(2048)
        for number in range(packets):
            sender.send(struct.pack("<Iq", number, time.time_ns()).ljust(size, b"."))
            time.sleep(spacing_s)
        rows = []
        for _ in range(packets):
            data, ancillary, _, _ = receiver.recvmsg(2048, 64)
            number, sent = struct.unpack_from("<Iq", data)
            seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
            arrived = seconds * 1_000_000_000 + nanoseconds
            rows.append((number, arrived / 1e6, (arrived - sent) / 1e6))
    return np.array(rows)


@pytest.mark.clock
def test_a_rate_spaces_packets_by_their_size(build: Build, profile_file: Callable[[str], str]) -> None:
    network = build(backend="netem", topology=TWO, impair=[{"profile": profile_file("rate_mbit = 5"), "hosts": ["h0"]}])
    arrived = arrivals_ms(network, packets=150, size=1000)[:, 1]
    assert arrived[-1] - arrived[0] == pytest.approx(149 * (1000 + 42) * 8 / 5e6 * 1000, rel=0.08)


@pytest.mark.clock
def test_slots_let_packets_out_together(build: Build, profile_file: Callable[[str], str]) -> None:
    path = profile_file("[slot]\nmin_ms = 40\nmax_ms = 40")
    network = build(backend="netem", topology=TWO, impair=[{"profile": path, "hosts": ["h0"]}])
    arrived = arrivals_ms(network, packets=200, spacing_s=0.003)[:, 1]
    gaps = np.diff(arrived)
    between = gaps[gaps > 15]
    assert len(between) >= 5 and (gaps < 15).sum() > 3 * len(between), "many packets to a slot"
    starts = arrived[1:][gaps > 15]
    assert np.median(np.diff(starts)) == pytest.approx(40, rel=0.15)


@pytest.mark.clock
def test_with_a_gap_every_fifth_packet_overtakes(build: Build, profile_file: Callable[[str], str]) -> None:
    path = profile_file("[delay]\nmean_ms = 30\n[reorder]\npercent = 100\ngap = 5")
    network = build(backend="netem", topology=TWO, impair=[{"profile": path, "hosts": ["h0"]}])
    rows = arrivals_ms(network, packets=100, spacing_s=0.002)
    at_once = np.sort(rows[rows[:, 2] < 15, 0])
    assert set(np.diff(at_once)) == {5} and len(at_once) == 20


@pytest.mark.tier
def test_ecn_marks_what_allows_it_instead_of_dropping_it(build: Build, profile_file: Callable[[str], str]) -> None:
    path = profile_file('ecn = true\n[loss]\nmodel = "iid"\npercent = 10')
    network = build(backend="netem", topology=TWO, impair=[{"profile": path, "hosts": ["h0"]}])
    packets = 4000
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        receiver.bind(("10.77.0.2", 5000))
        receiver.settimeout(1.0)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)  # ECT(0)
        for _ in range(packets):
            sender.sendto(b"x", ("10.77.0.2", 5000))
        codes = [receiver.recvmsg(64, 64)[1][0][2][0] & 3 for _ in range(packets)]
    marked = codes.count(3)
    assert statistics.binomial_two_sided(marked, packets, 0.10) > 1e-4, "all arrived, the asked share is marked"
    (count,) = [c for label, c in network.counters()[next(iter(network.rules))].items() if label != "unmatched"]
    assert count.dropped == marked, "netem counts a mark as a drop"


@pytest.mark.clock
def test_the_asked_share_of_packets_overtakes(build: Build, profile_file: Callable[[str], str]) -> None:
    text = "[delay]\nmean_ms = 10\n[reorder]\npercent = 25"
    network = build(backend="netem", topology=TWO, impair=[{"profile": profile_file(text), "hosts": ["h0"]}])
    seen = delays(network)
    at_once = int((seen < 5).sum())
    assert statistics.binomial_two_sided(at_once, len(seen), 0.25) > 1e-4
