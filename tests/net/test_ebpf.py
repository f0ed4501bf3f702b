"""What only the ebpf backend does: seeded patterns, traces, duplicates, damage, loss by our own header."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

import numpy as np
import pytest

from lossbench.contract import HALVES, KINDS, Header
from lossbench.net.bpf.syscalls import ArrayMap
from lossbench.net.conservation import Between
from lossbench.net.counters import Reading
from lossbench.net.impair.ebpf import memory
from lossbench.net.star.network import StarNetwork
from lossbench.proof.judge_rules import expected_drops, judge_rules
from lossbench.proof.verdict import Status
from lossbench.proof.watched import Watched
from lossbench.spec import lossmodel
from lossbench.spec.experiment import Experiment
from lossbench.spec.pattern import predicted
from lossbench.spec.placement import Hook, Rule, rules_ever, rules_kept
from lossbench.spec.userfile import check
from tests.networks import Build, open_socket, prove, receive_all

pytestmark = pytest.mark.netns
LATER_S = 0.1


@pytest.mark.parametrize("name", ["loss_5", "bursty_5", "dc_tail", "wifi_like"])
def test_a_seeded_pattern_equals_its_prediction_and_repeats(build: Build, name: str) -> None:
    positions = []
    for _ in range(2):
        network = build(seed=99, topology={"hosts": 2}, impair=[{"profile": name}])
        proof = prove(network, packets=20_000)
        assert all(row.exact for row in proof.rows), proof.judgement.reasons()
        positions.append([(row.kernel_dropped, row.burst_seen) for row in proof.rows])
    assert positions[0] == positions[1]


def test_another_seed_is_another_pattern(build: Build) -> None:
    drops = []
    for seed in (1, 2):
        network = build(seed=seed, topology={"hosts": 2}, impair=[{"profile": "loss_5"}])
        drops.append([row.kernel_dropped for row in prove(network, packets=20_000).rows])
    assert drops[0] != drops[1]


def test_a_packet_that_lives_goes_past_the_bridge_and_through_the_hook_of_its_port(build: Build) -> None:
    network = build(impair=[{"profile": "clean", "direction": "both"}])
    switch = network.star.switch
    switch.link("set", index=switch.link_lookup(ifname="br0")[0], state="down")
    hosts = network.experiment.topology.all_hosts()
    with open_socket(network, "h3") as receiver:
        receiver.bind((hosts[3].ipv4, 5000))
        for source in hosts[:3]:
            with open_socket(network, source.name) as sender:
                sender.sendto(source.name.encode(), (hosts[3].ipv4, 5000))
        assert sorted(receive_all(receiver, at_least=3)) == [b"h0", b"h1", b"h2"]
    seen = {hook.name: sum(c.seen for c in rules.values()) for hook, rules in network.counters().items()}
    assert seen["h3 downlink"] == 3 and seen["h0 uplink"] == 1, seen


@pytest.mark.parametrize("loop", [True, False])
def test_a_trace_is_followed_to_the_packet(build: Build, loop: bool, profile_file: Callable[[str], str]) -> None:
    bits = "0010110" * 30
    path = profile_file(f'[loss]\nmodel = "trace"\nbits = "{bits}"\nloop = {str(loop).lower()}')
    network = build(topology={"hosts": 2}, impair=[{"profile": path}])
    proof = prove(network, packets=2000)
    assert all(row.exact for row in proof.rows)
    wanted = sum(int(b) for b in (bits * 10)[:1000]) if loop else bits.count("1")
    assert [row.kernel_dropped for row in proof.rows] == [wanted, wanted]


def test_duplicates_and_damage_are_counted_and_damage_never_reaches_a_socket(
    build: Build, profile_file: Callable[[str], str]
) -> None:
    path = profile_file("duplicate_percent = 2\ncorrupt_percent = 3")
    network = build(topology={"hosts": 2}, impair=[{"profile": path}])
    proof = prove(network, packets=20_000)
    assert proof.judgement.status == Status.VALID, proof.judgement.reasons()
    for hook, counters in network.counters().items():
        row = next(r for r in proof.rows if r.hook == hook.name)
        (rule,) = [c for label, c in counters.items() if label != "unmatched"]
        assert row.receiver_missing == rule.corrupted and 150 < rule.corrupted < 450
        assert 100 < rule.duplicated < 300
        assert row.duplicates <= rule.duplicated  # a duplicate of a damaged packet is damaged too


def send_headers(network: StarNetwork, headers: list[Header]) -> list[Header]:
    """From h0 to h1; returns what arrived."""
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        receiver.bind(("10.77.0.2", 29400))
        for header in headers:
            sender.sendto(header.pack() + b"payload", ("10.77.0.2", 29400))
        return [h for data in receive_all(receiver) if (h := Header.unpack(data)) is not None]


def grid(kind: str = "data") -> list[Header]:
    return [
        Header(kind=KINDS[kind], tag=1, source=0, destination=1, step=step, half=half, block=block, chunk=chunk)
        for step in range(6)
        for half in HALVES.values()
        for block in range(8)
        for chunk in range(4)
    ]


@pytest.mark.parametrize(
    ("match", "hit"),
    [
        ('halves = ["all_gather"]', lambda h: h.half == 1),
        ("steps = [2, 4]", lambda h: 2 <= h.step < 4),
        ("blocks = [7, 4294967295]", lambda h: h.block == 7),
        (
            'halves = ["reduce_scatter"]\nsteps = [5, 6]\nblocks = [0, 2]',
            lambda h: h.half == 0 and h.step == 5 and h.block < 2,
        ),
    ],
)
def test_loss_by_header_takes_exactly_what_was_asked(
    build: Build, match: str, hit: Callable[[Header], bool], profile_file: Callable[[str], str]
) -> None:
    path = profile_file(f'[loss]\nmodel = "iid"\npercent = 100\n[match.datagram]\n{match}')
    network = build(topology={"hosts": 2}, impair=[{"profile": path}])
    sent = grid()
    assert send_headers(network, sent) == [h for h in sent if not hit(h)]
    assert send_headers(network, grid("marker")) == grid("marker"), "markers and acknowledgements are not data"
    assert prove(network, packets=2000).judgement.status == Status.VALID


def test_block_loss_takes_whole_blocks_as_predicted(build: Build, profile_file: Callable[[str], str]) -> None:
    path = profile_file('[loss]\nmodel = "block"\npercent = 30')
    network = build(seed=4, topology={"hosts": 2}, impair=[{"profile": path}])
    rule = network.rules[next(iter(network.rules))][0]
    sent = grid()

    def lost(h: Header) -> bool:
        return lossmodel.block_lost(
            seed=rule.block_seed, step=h.step, half=h.half, source=0, destination=1, block=h.block, loss=0.3
        )

    arrived = send_headers(network, sent)
    assert arrived == [h for h in sent if not lost(h)]
    assert 0.1 < 1 - len(arrived) / len(sent) < 0.5
    assert all(row.exact for row in prove(network, packets=4000).rows)


def test_ordinary_traffic_passes_a_header_rule(build: Build, profile_file: Callable[[str], str]) -> None:
    path = profile_file('[loss]\nmodel = "block"\npercent = 100')
    network = build(topology={"hosts": 2}, impair=[{"profile": path}])
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.bind(("10.77.0.2", 5000))
        for size in np.linspace(1, 1400, 30, dtype=int):
            sender.sendto(bytes(int(size)), ("10.77.0.2", 5000))
        assert len(receive_all(receiver, at_least=30)) == 30


def sent_for(network: StarNetwork, seconds: float) -> tuple[list[tuple[float, float]], list[int]]:
    """Datagrams from h0 to h1: between which two moments each was sent, and the numbers of those that were lost."""
    stamps = []
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
        receiver.bind(("10.77.0.2", 5000))
        end = time.monotonic() + seconds
        while (before := time.monotonic()) < end:
            sender.sendto(len(stamps).to_bytes(4, "little"), ("10.77.0.2", 5000))
            stamps.append((before, time.monotonic()))
            time.sleep(0.0002)
        heard = {int.from_bytes(data, "little") for data in receive_all(receiver)}
    return stamps, [number for number in range(len(stamps)) if number not in heard]


def test_a_window_in_time_takes_its_packets_alone_and_their_pattern_is_predicted(build: Build) -> None:
    """Nobody switches anything: of the packets that came within the window each met the later entry, of the others each
    the earlier one, whose pattern goes on behind it where it stood."""
    network = build(topology={"hosts": 2}, impair=[])
    window = {"from_s": 0.2, "to_s": 0.5}
    impair = [{"profile": "bursty_5"}, {"profile": "loss_10", **window}, {"profile": "loss_1", "from_s": 1e6}]
    experiment = check(Experiment, {"name": "t", "topology": {"hosts": 2}, "impair": impair}, origin="test")
    network.rules = {}
    network.expect(rules_ever(experiment, seed=3, kept=True))
    network.put(rules_kept(experiment, seed=3))
    hook = next(iter(network.rules))
    _, timed, always = network.rules[hook]
    early, _ = sent_for(network, 0.1)
    assert network.counters()[hook][timed.label].seen == 0, "before the run's clock begins no window is open"
    network.restart()
    began = time.monotonic()
    network.begin(began)
    assert early and network.not_in_force() == []
    stamps, lost = sent_for(network, 0.8)
    counted = network.counters()[hook]
    inside, outside = counted[timed.label].seen, counted[always.label].seen
    assert inside + outside == len(stamps) and expected_drops(timed, counted[timed.label]) is not None
    # A packet meets the hook while it is sent, or on a busy machine a little later.
    surely = sum(before >= began + 0.2 and after < began + 0.5 - LATER_S for before, after in stamps)
    maybe = sum(after >= began + 0.2 - LATER_S and before < began + 0.5 for before, after in stamps)
    assert surely <= inside <= maybe
    one, other = predicted(timed, inside), predicted(always, outside)
    whole = (np.concatenate((other[:at], one, other[at:])).nonzero()[0].tolist() for at in range(outside + 1))
    at = next((at for at, here in enumerate(whole) if here == lost), None)
    assert at is not None, "the two patterns in three pieces, and no packet between them"
    assert stamps[at][1] >= began + 0.2 - LATER_S


def test_memory_in_which_somebody_wrote_what_is_no_chain_is_read_back_as_changed(build: Build) -> None:
    """As it was: a bursty rule whose second state was gone ended the run in a traceback."""
    network = build(topology={"hosts": 2}, impair=[{"profile": "bursty_5"}])
    assert network.not_in_force() == []
    hook = next(iter(network.rules))
    written = network.backend._placed[hook].maps["memory"]
    first_state = 2 * memory.RULE_BYTES - (lossmodel.MAX_STATES - 1) * memory.STATE_BYTES
    written.write(written.read()[:first_state].ljust(2 * memory.RULE_BYTES, b"\0"))
    (said,) = network.not_in_force()
    assert said == f"{hook.name}: rule 0:bursty_5 is changed in the kernel"


def written(network: StarNetwork, name: str) -> ArrayMap:
    """A map of the first hook, by the kernel's own number, as anybody else may open it."""
    held = next(iter(network.backend._placed.values())).maps[name]  # type: ignore[attr-defined]
    return ArrayMap.open(map_id=held.kernel_id(), value_bytes=held.value_bytes)


def test_the_loss_that_is_read_back_is_what_the_kernel_has_and_not_what_was_asked(build: Build) -> None:
    network = build(topology={"hosts": 2}, impair=[{"profile": "loss_5"}])
    hook = next(iter(network.rules))
    assert network.read_back()[hook][0].mean_loss == pytest.approx(0.05, abs=1e-9)
    other = memory.chain_table(lossmodel.iid(0.01))
    theirs = written(network, "memory")
    theirs.write(theirs.read()[: -len(other)] + other)
    theirs.close()
    (found,) = network.read_back()[hook]
    assert found.mean_loss == pytest.approx(0.01, abs=1e-9) and not found.equal
    assert network.not_in_force() == [f"{hook.name}: rule 0:loss_5 is changed in the kernel"]


def test_a_trace_that_somebody_changed_is_read_back_as_changed(
    build: Build, profile_file: Callable[[str], str]
) -> None:
    """As it was: never read, so that another pattern with as many losses was valid during the run."""
    path = profile_file('[loss]\nmodel = "trace"\nbits = "0010110"\nloop = true')
    network = build(topology={"hosts": 2}, impair=[{"profile": path}])
    assert network.not_in_force() == []
    theirs = written(network, "trace1")
    theirs.write(bytes([0b1010100]).ljust(theirs.value_bytes, b"\0"))
    theirs.close()
    (said,) = network.not_in_force()
    assert said.endswith("is changed in the kernel")


def test_a_program_in_the_place_of_ours_is_seen_whatever_it_does(build: Build) -> None:
    """The same code and the same maps: but not the program that we put there."""
    network = build(topology={"hosts": 2}, impair=[{"profile": "loss_5"}])
    hook, here = next(iter(network.rules.items()))
    backend, point = network.backend, network.star.hook_point(hook)
    backend._attach(point, here, backend._placed[hook])  # type: ignore[attr-defined]
    assert any("is not attached in the kernel" in text for text in network.not_in_force())


def test_a_generator_that_somebody_set_during_a_run_is_found_though_it_loses_as_many(build: Build) -> None:
    """As it was: only how many were lost was asked, and one in eight other patterns of 200 packets loses as many."""
    network = build(topology={"hosts": 2}, impair=[{"profile": "loss_5", "hosts": ["h0"]}])
    network.restart()
    hook, (rule,) = next((hook, here) for hook, here in network.rules.items() if here)
    before, _ = network.settled()
    theirs = network.backend._placed[hook].maps["lock"]  # type: ignore[attr-defined]
    target = network.experiment.topology.all_hosts()[1].ipv4
    with open_socket(network, "h0") as sender:
        for _ in range(100):
            sender.sendto(bytes(100), (target, 9))
        assert found_wrong(network, before, hook, rule) == []
        theirs.write(struct.pack("<IIQQ", 0, 0, lossmodel.advanced(rule.seed, 7), 100), entry=1)
        for _ in range(100):
            sender.sendto(bytes(100), (target, 9))
    assert any("generator" in text for text in found_wrong(network, before, hook, rule))


def found_wrong(network: StarNetwork, before: Reading, hook: Hook, rule: Rule) -> list[str]:
    after, moving = network.settled(since=before)
    watched = Watched(before=before, after=after, moving=moving, rules={hook: {rule.label: rule}})
    return [one.text for one in judge_rules(watched, Between(before, after)) if one.status != Status.VALID]


@pytest.mark.parametrize("options", [(), (59,), (54, 59)], ids=["none", "one", "two"])
def test_options_of_ipv6_hide_neither_protocol_nor_ports(
    build: Build, profile_file: Callable[[str], str], options: tuple[int, ...]
) -> None:
    """As it was: behind a header of options every packet of udp/5000 escaped the rule, and nothing was said."""
    text = (
        'name = "x"\nloss = { model = "iid", percent = 100 }\nmatch = { protocol = "udp", destination_ports = [5000] }'
    )
    network = build(topology={"hosts": 2}, impair=[{"profile": profile_file(text)}])
    before = network.read()
    with open_socket(network, "h0", socket.AF_INET6) as sender:
        for option in options:  # IPV6_DSTOPTS, IPV6_HOPOPTS: eight bytes of padding, then sixteen
            words = 1 if option == 54 else 0
            padding = bytes((0, words, 1, 4 + 8 * words, *[0] * (4 + 8 * words)))
            sender.setsockopt(socket.IPPROTO_IPV6, option, padding)
        for _ in range(20):
            sender.sendto(b"x", (network.experiment.topology.host("h1").ipv6, 5000))
    network.settled(since=before)  # what a busy machine has not yet carried out of the host counts
    (count,) = (c for c in network.counters()[Hook(rank=0, direction="uplink")].values() if c.dropped)
    assert (count.seen, count.dropped) == (20, 20)
