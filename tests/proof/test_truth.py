"""Ways to a *valid* that is false, each of them taken once: what was asked of nobody, went round the fault, was lost by
our own devices, or was not as asked at all."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lossbench.contract import HALVES, KINDS, Header
from lossbench.net import conservation
from lossbench.net.conservation import Between
from lossbench.net.host import namespaces
from lossbench.net.impair import registry
from lossbench.net.kernel import Kernel
from lossbench.net.star.network import StarNetwork
from lossbench.proof.verdict import Status
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import rules_ever, rules_in_force
from lossbench.spec.userfile import check
from tests.cli.test_command import CHATTER, run_json, write
from tests.forked import lossbench
from tests.forms import forms
from tests.networks import Build, open_socket, prove, receive_all

pytestmark = pytest.mark.netns


def own_program(path: Path, *, topology: str = "", impair: str = "") -> str:
    """An experiment of two hosts that run a program of the user's."""
    return f"""
[topology]
hosts = 2
{topology}
[probe]
packets = 2000
[[impair]]
profile = "loss_1"
{impair}
[workload]
barrier = false
command = ["python", "{path}"]
"""


def fault_of(tmp_path: Path, text: str) -> tuple[str, str, dict[str, Any]]:
    _, result = run_json(tmp_path / "out", write(tmp_path, text))
    (row,) = result["summary"]
    return row["columns"]["fault"], " ".join(row["reasons"]["fault"]), row


# --- T2: nothing met it --------------------------------------------------------------------------------------

WEB = """
[[impair]]
[impair.profile]
why = "t"
name = "web"
loss = { model = "iid", percent = 30 }
match = { protocol = "tcp", destination_ports = [8080] }
"""


def test_loss_asked_of_packets_that_nobody_sends_is_unknown(tmp_path: Path) -> None:
    status, said, _ = fault_of(tmp_path, CHATTER + WEB)
    assert status == "unknown" and "30 % was asked of tcp/8080" in said and "nothing there" in said


def test_a_window_that_opens_after_the_last_packet_is_unknown(tmp_path: Path) -> None:
    """The program sends everything at once, and ends when the window has opened."""
    program = tmp_path / "early.py"
    program.write_text(
        "import os, pathlib, socket, time\n"
        "me, peers = int(os.environ['RANK']), os.environ['LOSSBENCH_ADDRESSES'].split(',')\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((peers[me], 5000))\n"
        "for _ in range(50): s.sendto(b'x', (peers[1 - me], 5000))\n"
        f"out = pathlib.Path({str(tmp_path / 'out')!r})\n"
        "while not any(len(one.read_text().splitlines()) > 1 for one in out.rglob('timeline.jsonl')): time.sleep(0.1)\n"
        "time.sleep(0.2)\n"
    )
    status, said, _ = fault_of(tmp_path, own_program(program, impair="from_s = 3"))
    assert status == "unknown" and "nothing there" in said


INCAST = """
[[impair]]
direction = "both"
[impair.profile]
why = "t"
name = "incast"
loss = { model = "iid", percent = 20 }
match = { destinations = ["h0"] }
"""


def test_loss_asked_of_what_is_for_one_host_can_be_proven(tmp_path: Path) -> None:
    """As it was: a rule stood at that host's own uplink, too; no probe met it, and no run was valid."""
    status, said, row = fault_of(tmp_path, CHATTER + INCAST)
    assert status == "valid" and row["met"]["rule_loss"] > 0, said


# --- T3, T4: it was gone round -------------------------------------------------------------------------------


def bypass(network: StarNetwork, direction: str) -> None:
    """A pass-all filter ahead of ours at every port."""
    from tests.bench.deeds import PARENT, PASS_ALL

    for port in network.star.ports.values():
        network.star.switch.tc(
            "add-filter", "bpf", port, parent=PARENT[direction], prio=1, handle=7, ops=PASS_ALL, direct_action=True
        )


@pytest.mark.parametrize("direction", ["uplink", "downlink"])
@pytest.mark.parametrize("backend", ["ebpf", "cbpf"])
def test_a_proof_that_went_round_the_rules_is_not_valid(build: Build, backend: str, direction: str) -> None:
    """On downlinks it was: "10 % 10 % 0 of 0 ... p = 1 ... valid"."""
    network = build(backend=backend, topology={"hosts": 2}, impair=[{"profile": "loss_10", "direction": direction}])
    bypass(network, direction)
    found = prove(network, packets=4000).judgement
    assert found.status != Status.VALID
    assert any("not ours" in text or "saw 0 of" in text for f in found.findings for text in [f.text])


def send(network: StarNetwork, count: int) -> int:
    """From h0 to h1; how many arrived."""
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
        receiver.bind(("10.77.0.2", 5000))
        for number in range(count):
            sender.sendto(bytes(100), ("10.77.0.2", 5000))
            if number % 200 == 0:
                time.sleep(0.001)
        return len(receive_all(receiver))


@pytest.mark.parametrize("direction", ["uplink", "downlink"])
def test_packets_past_the_rules_are_found_by_counting_alone(build: Build, direction: str) -> None:
    """Whoever removes the filter again before anybody looks: the counters remember."""
    from tests.bench.deeds import PARENT

    network = build(topology={"hosts": 2}, impair=[{"profile": "loss_10", "direction": direction}])
    before, _ = network.settled()
    send(network, 500)
    bypass(network, direction)
    arrived = send(network, 300)
    for port in network.star.ports.values():
        network.star.switch.tc("del-filter", "bpf", port, parent=PARENT[direction], prio=1, handle=7)
    leaks = conservation.leaks(Between(before, network.settled()[0]))
    assert arrived == 300 and network.not_in_force() == []
    rank = 0 if direction == "uplink" else 1
    assert f"h{rank} {direction}: past the rules" in {leak.place for leak in leaks}
    assert max(abs(leak.missing) for leak in leaks) == 300


@pytest.mark.parametrize("backend", ["ebpf", "cbpf", "relay"])
@forms("direction", ["both", "uplink", "downlink"])
def test_every_packet_of_an_honest_network_is_accounted_for(build: Build, backend: str, direction: str) -> None:
    """TCP and UDP, both IP versions, loss on the way, a queue too short for what is sent."""
    reason = registry.able(Kernel.tried())[backend]
    if reason is not None:
        pytest.skip(reason)
    loss: dict[str, Any] = {"why": "t", "loss": {"model": "iid", "percent": 5}}
    delay = {"delay": {"mean_ms": 3}} if backend == "relay" else {}
    network = build(
        backend=backend,
        topology={"hosts": 3, "rate_mbit": 20},
        impair=[{"profile": {**loss, **delay}, "direction": direction}],
    )
    before, _ = network.settled()
    received = send(network, 4000)
    between = Between(before, network.settled()[0])
    met = conservation.met(between)
    assert conservation.leaks(between) == [] and conservation.lost_elsewhere(between) == {}
    assert met.packets == 4000 and met.rule > 100 and 4000 - received == met.rule + met.queue


# --- T5: lost by our own devices -----------------------------------------------------------------------------


def test_a_wire_that_can_not_keep_up_voids_the_fault(tmp_path: Path) -> None:
    """Small packets evade the limit of packets per second: 20 ms and no loss asked, 478 ms and 8 % got, valid."""
    sender = tmp_path / "blast.py"
    sender.write_text(
        "import os, socket, time\n"
        "me, peers = int(os.environ['RANK']), os.environ['LOSSBENCH_ADDRESSES'].split(',')\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((peers[me], 5000)); s.setblocking(False)\n"
        "end = time.monotonic() + 2.5\n"
        "while time.monotonic() < end:\n"
        "    for _ in range(200): s.sendto(b'x' * 18, (peers[1 - me], 5000))\n"
        "    try:\n"
        "        while True: s.recv(100)\n"
        "    except BlockingIOError: pass\n"
    )
    text = (
        'backend = "relay"\n[topology]\nhosts = 2\nrate_mbit = 100\n[probe]\npackets = 2000\n'
        '[[impair]]\nprofile = { why = "t", delay = { mean_ms = 20 } }\n'
        f'[workload]\nbarrier = false\ncommand = ["python", "{sender}"]\n'
    )
    status, said, row = fault_of(tmp_path, text)
    assert status != "valid", row["met"]
    assert any(words in said for words in ("lost in h", "late", "not accounted for", "delay")), said


def test_drops_in_a_queue_under_an_asked_rate_are_valid_and_stand_in_the_table(tmp_path: Path) -> None:
    """Asked 1 %, half of all packets met a full queue, and the table said 1.03 %.

    A step is ten queues long, so that it overflows on a machine, too, that is late with sending it."""
    text = """
[topology]
hosts = 3
rate_mbit = 4
[shaping]
classes = [{ name = "rest", queue_kb = 10, host_queue_kb = 10, share_percent = 100 }]
[workload]
name = "chatter"
options = { steps = 12, spacing_ms = 0, chunks = 64 }
[probe]
packets = 2000
[[impair]]
profile = "loss_1"
"""
    status, said, row = fault_of(tmp_path, text)
    assert status == "valid", said
    met = row["met"]
    assert met["lost_in_queues"] > 0.05 * met["packets"] and met["lost_elsewhere"] == 0
    assert 0 < met["rule_loss"] < 0.03 < met["loss"]
    assert "% queue" in lossbench("report", str(tmp_path / "out" / Path(row["dir"]).parent.name)).stdout


def test_a_probe_that_was_held_up_does_not_overrun_a_slow_link(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it made up for lost time in one go, overran the queue, and failed an honest network."""
    from lossbench.proof.probe.exchange import Exchange

    held, drain = [0.4], Exchange.drain

    def late(self: Exchange, heard: Any) -> int:
        time.sleep(held.pop() if held else 0)
        return drain(self, heard)

    monkeypatch.setattr(Exchange, "drain", late)
    queue = {"name": "rest", "queue_kb": 10, "host_queue_kb": 10, "share_percent": 100}
    network = build(topology={"hosts": 2, "rate_mbit": 4}, shaping={"classes": [queue]}, impair=[{"profile": "loss_1"}])
    found = prove(network, packets=2000).judgement
    assert found.status == Status.VALID, found.findings


def test_a_probe_whose_turn_passes_between_two_looks_at_the_clock_goes_on(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked to sleep for less than no time, and the run ended in a traceback."""
    from lossbench.proof.probe import exchange

    class Leaping:
        now = 0.0

        def __getattr__(self, name: str) -> Any:
            return getattr(time, name)

        def monotonic(self) -> float:
            self.now += 0.0015  # a round takes 4 ms here: due after the second look, over at the third
            return self.now

        def sleep(self, seconds: float) -> None:
            time.sleep(seconds)
            self.now += seconds

    monkeypatch.setattr(exchange, "time", Leaping())
    network = build(topology={"hosts": 2, "rate_mbit": 4}, impair=[{"profile": "loss_1"}])
    assert prove(network, packets=400).rows


def test_datagrams_that_overflow_a_socket_of_ours_void_the_fault(tmp_path: Path) -> None:
    """A receiver that sleeps: the kernel throws its datagrams away, and no rule did."""
    program, bound, sent = (tmp_path / name for name in ("sleepy.py", "bound", "sent"))
    program.write_text(
        "import os, pathlib, socket, time\n"
        "me, peers = int(os.environ['RANK']), os.environ['LOSSBENCH_ADDRESSES'].split(',')\n"
        f"bound, sent = pathlib.Path({str(bound)!r}), pathlib.Path({str(sent)!r})\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((peers[me], 5000))\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)\n"
        "if me == 1: bound.touch()\n"
        "while not bound.exists(): time.sleep(0.05)\n"
        "time.sleep(0.5)\n"
        "if me == 0:\n"
        "    for _ in range(300): s.sendto(bytes(1000), (peers[1], 5000))\n"
        "    sent.touch()\n"
        "while not sent.exists(): time.sleep(0.05)\n"
        "time.sleep(0.5)\n"
    )
    status, said, row = fault_of(tmp_path, own_program(program, impair='hosts = ["h0"]'))
    assert status == "unknown" and "in h1's sockets: they were full" in said
    assert row["met"]["lost_elsewhere"] > 200


# --- T7: a rate ----------------------------------------------------------------------------------------------


def test_a_link_faster_than_its_rate_fails_and_a_rate_that_is_gone_is_unknown(tmp_path: Path) -> None:
    """The workload deleted its qdisc: 440 Mbit/s on a link of 10, valid."""
    program = tmp_path / "greedy.py"
    program.write_text(
        "import os, socket, subprocess, time\n"
        "from pyroute2 import IPRoute\n"
        "me, peers = int(os.environ['RANK']), os.environ['LOSSBENCH_ADDRESSES'].split(',')\n"
        "if me == 0:\n"
        "    with IPRoute() as ip: ip.tc('del', index=ip.link_lookup(ifname='eth0')[0], parent=0xFFFFFFFF)\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "end = time.monotonic() + 2\n"
        "while me == 0 and time.monotonic() < end:\n"
        "    for _ in range(20): s.sendto(bytes(1400), (peers[1], 5000))\n"
        "    time.sleep(0.001)\n"
        "time.sleep(max(0, end - time.monotonic()))\n"
    )
    status, said, row = fault_of(tmp_path, own_program(program, topology="uplink_rate_mbit = 10"))
    assert status == "failed" and "Mbit/s" in said and "10 asked" in said
    words = json.loads((Path(row["dir"]) / "verdict.json").read_text())["columns"]["fault"]["findings"]
    assert any("qdisc removed" in one["text"] or "is gone" in one["text"] for one in words)


@pytest.mark.parametrize("what", ["queue_kb", "rate"])
def test_queues_and_classes_are_read_back_as_they_were_asked(build: Build, what: str) -> None:
    classes = [
        {"name": "web", "dscp": 10, "share_percent": 50, "queue_kb": 100},
        {"name": "training", "ports": [29400]},
    ]
    network = build(topology={"hosts": 2, "rate_mbit": 50}, shaping={"classes": classes}, impair=[])
    assert network.shaping_wrong() == []
    port = network.star.ports[1]
    if what == "rate":
        more = {"burst": 20_000, "cburst": 20_000, "prio": 0, "quantum": 1514, "mtu": 1600}
        network.star.switch.tc("change-class", "htb", port, handle=0x10001, parent=0x10000, rate=100, ceil=1000, **more)
    else:
        network.star.switch.tc("change", "bfifo", port, handle=0x1000000, parent=0x10010, limit=5000)
    (said,) = network.shaping_wrong()
    assert (
        said.startswith("h1 downlink: ") and ("its rate is" if what == "rate" else "a queue holds 5000 bytes") in said
    )


# --- T8, T9: patterns ----------------------------------------------------------------------------------------


def scheduled(**window: Any) -> Experiment:
    impair = [{"profile": "bursty_5"}, {"profile": "loss_10", **window}]
    return check(Experiment, {"name": "t", "topology": {"hosts": 2}, "impair": impair}, origin="test")


def burst_of(network: StarNetwork, first: int, count: int) -> list[int]:
    """Numbers of those of our datagrams that were lost between h0 and h1."""
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
        receiver.bind(("10.77.0.2", 29400))
        for number in range(first, first + count):
            header = Header(kind=KINDS["data"], tag=1, source=0, destination=1, half=HALVES["all_gather"], chunk=number)
            sender.sendto(header.pack(), ("10.77.0.2", 29400))
        heard = {h.chunk for data in receive_all(receiver) if (h := Header.unpack(data)) is not None}
    return [number for number in range(first, first + count) if number not in heard]


def test_a_change_of_the_schedule_does_not_wind_a_rule_back(build: Build) -> None:
    """Three segments each began by losing packets 30, 31, 32, 33, 40, 42."""
    from lossbench.spec.lossmodel import predict

    network = build(topology={"hosts": 2}, impair=[])
    experiment = scheduled(from_step=5, to_step=10)
    network.rules = {}
    network.expect(rules_ever(experiment, seed=3))
    lost: list[int] = []
    for part, step in enumerate((0, 7, 12)):
        network.put(rules_in_force(experiment, seed=3, step=step))
        found = burst_of(network, 1000 * part, 1000)
        lost += found if step != 7 else []
    (rule,) = rules_in_force(experiment, seed=3, step=0)[next(iter(network.rules))]
    wanted = predict(rule.profile.chain(), seed=rule.seed, count=2000).nonzero()[0]
    assert lost == [number if number < 1000 else number + 1000 for number in wanted.tolist()]
    counted = network.counters()[next(iter(network.rules))][rule.label]
    assert (counted.seen, counted.dropped) == (2000, len(wanted)) and counted.position.packets == 2000


def test_bursts_longer_than_the_run_lose_what_was_asked_from_the_first_packet(build: Build) -> None:
    """99.999 % in very long bursts asked, 0 % realised, "as asked"."""
    loss = {"model": "gilbert_elliott", "mean_percent": 99.999, "burst_packets_mean": 1_000_000}
    network = build(topology={"hosts": 2}, impair=[{"profile": {"why": "t", "loss": loss}}])
    rows = prove(network, packets=2000).rows
    assert sum(row.receiver_missing for row in rows) > 0.9 * sum(row.receiver_sent for row in rows)


# --- what ran ------------------------------------------------------------------------------------------------


def test_the_users_script_interpreter_and_packages_are_in_the_manifest(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("print('hello')\n")
    _, _, row = fault_of(tmp_path, own_program(script))
    program = json.loads((Path(row["dir"]) / "manifest.json").read_text())["program"]
    assert len(program["files"][str(script)]) == 16
    assert program["python"]["path"] == sys.executable and "numpy" in program["python"]["packages"]
    assert str(tmp_path) in program["folders"]


# --- the watch -----------------------------------------------------------------------------------------------


def test_a_link_that_nobody_asked_to_be_slow_is_watched_in_linear_time(build: Build) -> None:
    """Twice the hosts, about twice the CPU of one look; it was four times, and 3.3 s at 64."""

    def seconds(network: StarNetwork) -> float:
        best = 9.0
        for _ in range(5):
            began = time.process_time()
            look = network.look()
            network.read(look=look)
            network.not_in_force(look)
            network.shaping_wrong(look)
            network.classes(look)
            best = min(best, time.process_time() - began)
        return best

    classes = [{"name": "web", "dscp": 10, "share_percent": 50}, {"name": "training", "ports": [29400]}]
    spent = [
        seconds(
            build(topology={"hosts": n, "rate_mbit": 50}, shaping={"classes": classes}, impair=[{"profile": "loss_1"}])
        )
        for n in (6, 24)
    ]
    assert spent[1] < 8 * spent[0], spent


def test_a_namespace_that_a_run_leaves_running_programs_in_is_still_counted(build: Build) -> None:
    """Packets that move while counters are read are bounded, not ignored."""
    network = build(topology={"hosts": 2}, impair=[{"profile": "loss_5"}])
    before, _ = network.settled()
    code = "import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    code += "while True: s.sendto(b'x', ('10.77.0.2', 9)); time.sleep(0.002)"
    with namespaces.inside(network.star.namespace("h0")):
        child = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(0.5)
        after, moving = network.settled()
        assert all(abs(leak.missing) <= max(moving, 1) for leak in conservation.leaks(Between(before, after)))
    finally:
        child.kill()
        child.wait()
