"""A verdict covers what it speaks of: every way out of a host, every role that should talk, enough packets to tell."""

from __future__ import annotations

import errno
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from lossbench.net.conservation import Between
from lossbench.net.counters import LinkCounts
from lossbench.net.host.sockets import open_from
from lossbench.net.star import stores
from lossbench.proof.covers.rows import covered, not_judged
from lossbench.proof.judge_fault import judge_around
from lossbench.proof.watched import Watched
from lossbench.spec.experiment import Experiment
from tests.forms import forms, full
from tests.networks import Build, open_socket
from tests.proof.test_truth import fault_of

netns = pytest.mark.netns

PROGRAM = """
import contextlib, os, socket, threading, time
rank, peers = int(os.environ["RANK"]), os.environ["LOSSBENCH_ADDRESSES"].split(",")
own, other = socket.gethostbyname(f"h{{rank}}-ctl"), socket.gethostbyname(f"h{{1 - rank}}-ctl")
data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); data.bind((peers[rank], 5000))
around = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); around.bind((own, 5001)); around.connect((other, 5001))
def read(one):
    one.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
    while True:
        with contextlib.suppress(ConnectionRefusedError): one.recv(2000)
for one in (data, around): threading.Thread(target=read, args=(one,), daemon=True).start()
time.sleep(0.5)
for _ in range({data}): data.sendto(bytes(1000), (peers[1 - rank], 5000)); time.sleep(0.0002)
for n in range({around}):
    with contextlib.suppress(ConnectionRefusedError): around.send(bytes(1000))
    if n % 20 == 0: time.sleep(0.004)
time.sleep(0.7)
"""


def experiment(folder: Path, *, data: int, around: int, workload: str = "", more: str = "", loss: bool = True) -> str:
    program = folder / "mine.py"
    program.write_text(PROGRAM.format(data=data, around=around))
    impair = '[[impair]]\nprofile = "loss_10"\n' if loss else ""
    return (
        f"[topology]\nhosts = 2\n[probe]\npackets = 2000\n{impair}"
        f'[workload]\nbarrier = false\ncommand = ["python", "{program}"]\n{workload}\n{more}'
    )


@netns
def test_what_goes_around_the_fault_is_counted_and_named(tmp_path: Path) -> None:
    """As it was: 10 % asked, 20,000 datagrams over the control link, none lost, valid."""
    status, said, row = fault_of(tmp_path, experiment(tmp_path, data=400, around=4000))
    assert status == "unknown" and "MB went over the control links, around the fault" in said
    assert "h0 udp 5001 to" in said, "the ports are named"
    assert row["met"]["control_bytes"] > 7e6


@netns
@forms("workload, around", [("control_mb = 20", 4000), ("", 300)], ids=["declared", "little"])
def test_what_is_declared_and_the_first_megabyte_may_go_around(tmp_path: Path, workload: str, around: int) -> None:
    status, said, row = fault_of(tmp_path, experiment(tmp_path, data=400, around=around, workload=workload))
    assert status == "valid", said
    assert row["met"]["control_bytes"] > around * 1000


@netns
@forms("loss", [False, True], ids=["clean", "lossy"])
def test_a_silent_workload_is_doubted_unless_it_says_so(tmp_path: Path, loss: bool) -> None:
    """As it was: nothing was asked, nothing was sent, valid."""
    status, said, _ = fault_of(tmp_path, experiment(tmp_path, data=0, around=0, loss=loss))
    assert status == "unknown" and "no packet of the workload passed the data links" in said
    (tmp_path / "again").mkdir()
    text = experiment(tmp_path / "again", data=0, around=0, loss=loss, workload="silent = true")
    assert fault_of(tmp_path / "again", text)[0] == "valid"


@netns
def test_what_a_benchmark_agrees_on_beside_its_calls_is_no_way_around_the_fault(tmp_path: Path) -> None:
    """As it was: of small tensors a few thousand turns sent more than a megabyte of barriers, and voided themselves."""
    options = 'options = { mb = 0.001, contenders = ["lossy"], burst = 1, repeats = 700, budget_s = 60 }'
    text = '[topology]\nhosts = 2\n[probe]\npackets = 2000\n[[impair]]\nprofile = "loss_1"\n'
    status, said, row = fault_of(tmp_path, f'{text}[workload]\nname = "allreduce"\n{options}\n')
    assert row["met"]["control_bytes"] > 1.1e6 and status == "valid", said


COPIER = """
import contextlib, socket, time
from lossbench.contract import Door
door = Door.from_environment()
own, other = socket.gethostbyname(f"h{door.rank}-ctl"), socket.gethostbyname(f"h{1 - door.rank}-ctl")
around = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); around.bind((own, 5001)); around.connect((other, 5001))
around.setblocking(False)
door.ready()
for n in range(1250):
    with contextlib.suppress(ConnectionRefusedError): around.send(bytes(1000))
    with contextlib.suppress(ConnectionRefusedError, BlockingIOError):
        while around.recv(2000): pass
    if n % 5 == 0: time.sleep(0.004)
"""


@netns
def test_what_a_program_beside_a_benchmark_sends_around_the_fault_is_not_the_benchmarks_own(tmp_path: Path) -> None:
    """As it was: whatever left over the control link while ranks agreed was said to be theirs, and valid."""
    (tmp_path / "copier.py").write_text(COPIER)
    beside = f'[[beside]]\nrole = "copier"\nforeground = true\ncommand = ["python", "{tmp_path / "copier.py"}"]\n'
    options = 'options = { mb = 0.001, contenders = ["lossy"], burst = 1, repeats = 1000000, budget_s = 600 }'
    text = '[topology]\nhosts = 2\n[probe]\npackets = 2000\n[[impair]]\nprofile = "loss_1"\n'
    status, said, _ = fault_of(tmp_path, f'{text}[workload]\nname = "allreduce"\n{options}\n{beside}')
    assert status == "unknown" and "MB went over the control links, around the fault" in said, said


@netns
def test_a_silent_program_beside_a_silent_workload_is_doubted(tmp_path: Path) -> None:
    beside = '[[beside]]\nrole = "late"\nforeground = true\nbarrier = false\ncommand = ["sleep", "1"]\n'
    text = (
        '[topology]\nhosts = 2\n[probe]\npackets = 2000\n[[impair]]\nprofile = "loss_10"\n[workload]\nname = "noop"\n'
    )
    status, said, _ = fault_of(tmp_path, text + beside)
    assert status == "unknown" and "no packet of the workload passed the data links" in said


TOUCH = """
if rank == 0:
    import sys; sys.path[:0] = {paths!r}
    from pyroute2 import IPRoute
    from lossbench.net.tc import kinds
    kinds.install()
    from tests.bench.deeds import PARENT
    with IPRoute() as ip:
        index = ip.link_lookup(ifname="eth0")[0]
        {deed}
"""
DEEDS = {
    "a filter at its own link": "ip.tc('add', 'clsact', index); ip.tc('del', 'clsact', index)",
    "another route": "ip.route('add', dst='10.99.0.0/24', oif=index); ip.route('del', dst='10.99.0.0/24', oif=index)",
    "another address": "ip.addr('add', index=index, address='10.99.0.1', prefixlen=24)",
    "a routing rule": "ip.rule('add', priority=77, table=77, fwmark=9)",
}


@netns
@forms("deed", DEEDS, keep=2)
def test_whatever_is_done_to_the_stack_of_a_host_is_heard_of(tmp_path: Path, deed: str) -> None:
    """As it was: hosts were watched where an uplink had a rate; a filter in one dropped half of its packets, valid."""
    text = experiment(tmp_path, data=400, around=0)
    program = tmp_path / "mine.py"
    touch = TOUCH.format(paths=sys.path, deed=DEEDS[deed])
    program.write_text(program.read_text().replace("time.sleep(0.7)", f"{touch}\ntime.sleep(0.7)"))
    status, said, _ = fault_of(tmp_path, text)
    assert status == "unknown" and "h0" in said and "during the run" in said, said


HELD = """
if rank == 0:
    import os, sys; sys.path[:0] = {paths!r}
    from tests.attached import attach
    ready, done = os.pipe()
    if os.fork() == 0:
        attach("tcx", socket.if_nametoindex("eth0")); os.write(done, b"x"); time.sleep(60)
    os.read(ready, 1)
"""


@netns
def test_a_program_that_a_descriptor_holds_in_a_host_is_found_before_whoever_holds_it_is_ended(tmp_path: Path) -> None:
    """As it was: its holder was ended first, and half of the packets were lost by it, valid. This one holds it when the
    workload ends."""
    program = tmp_path / "mine.py"
    text = experiment(tmp_path, data=400, around=0)
    program.write_text(program.read_text() + HELD.format(paths=sys.path))
    status, said, _ = fault_of(tmp_path, text)
    if "No such file" in said or "not permitted" in said:
        pytest.skip("this kernel has no tcx")
    assert status == "unknown" and "h0: a tcx program stands at its own link" in said, said


@netns
def test_a_handful_of_packets_shows_nothing(tmp_path: Path) -> None:
    """As it was: 0 of 5, as asked, for 10 %."""
    status, said, _ = fault_of(tmp_path, experiment(tmp_path, data=3, around=0))
    assert status == "unknown" and "too few to show anything" in said


HOGS = """
import os, signal, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
hogs = []
for _ in range(3):
    hogs.append(os.fork())
    while not hogs[-1]: pass
time.sleep(2)
for one in hogs: os.kill(one, signal.SIGKILL)
"""


@netns
@full
def test_programs_on_a_core_that_hogs_fill_have_no_valid_times(tmp_path: Path) -> None:
    """As it was: the other core idled, and a ping-pong of 8 ms instead of .017 was valid."""
    text = experiment(tmp_path, data=400, around=0)
    program = tmp_path / "mine.py"
    program.write_text(program.read_text() + HOGS)
    _, _, row = fault_of(tmp_path, text)
    assert row["columns"]["timing"] == "unknown" and "waited" in " ".join(row["reasons"]["timing"])


@pytest.mark.parametrize(
    ("backend", "direction", "said"), [("cbpf", "both", 1), ("cbpf", "uplink", 0), ("ebpf", "both", 0)]
)
def test_what_cbpf_counts_of_both_sides_together_is_not_judged(backend: str, direction: str, said: int) -> None:
    """The law holds there by construction: a program that let all pass for 30 ms was valid in three of four runs."""
    asked = Experiment.model_validate({"name": "x", "impair": [{"profile": "loss_10", "direction": direction}]})
    assert len([text for text in not_judged(covered(asked, backend)) if "counts both sides together" in text]) == said


def test_sockets_are_read_as_the_kernel_shows_them() -> None:
    tcp = (
        "  sl  local_address rem_address   st\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n"
        "   1: 0100007F:1F90 0200007F:C350 01 00000000:00000000\n"
    )
    tcp6 = (
        "  sl  local_address                         remote_address\n"
        "   0: 0000000000000000FFFF00000100007F:1F91 0000000000000000FFFF00000200007F:C351 01\n"
        "   1: B80D0120000000000000000001000000:1F91 B80D0120000000000000000002000000:C351 01\n"
    )
    found = open_from("127.0.0.1", [("tcp", tcp), ("tcp6", tcp6)])
    assert found == ["tcp 8080 to 127.0.0.2:50000", "tcp 8081 to 127.0.0.2:50001"]
    assert open_from("2001:db8::1", [("tcp6", tcp6)]) == ["tcp 8081 to 2001:db8::2:50001"]
    udp = tcp.replace("0100007F:1F90 00000000", "00000000:1F92 00000000")
    found = open_from("127.0.0.1", [("tcp", tcp), ("udp", udp)], besides=[("127.0.0.2", 50000)])
    assert found == ["udp 8082 to anybody", "udp 8080 to 127.0.0.2:50000"], "datagrams are no store's"


Ends = tuple[tuple[str, int], tuple[str, int]]  # who speaks, from which port (0: any), and who listens


@netns
def test_of_what_goes_over_the_control_links_only_the_stores_own_is_counted_as_the_stores(build: Build) -> None:
    """A port beside the store's, its number on another host, and datagrams are nobody's rendezvous."""
    network = build(topology={"hosts": 3}, beside=[{"role": "web", "hosts": ["h1", "h2"], "command": ["true"]}])
    address = {host.name: host.control_ipv4 for host in network.experiment.topology.all_hosts()}

    def grown(kind: int, ends: Ends) -> tuple[int, int]:
        (source, port), (target, listens) = ends
        before = network.read()
        with open_socket(network, target, kind=kind) as server, open_socket(network, source, kind=kind) as client:
            server.bind((address[target], listens))
            client.bind((address[source], port))
            if kind == socket.SOCK_STREAM:
                server.listen()
            client.connect((address[target], listens))
            there = server.accept()[0] if kind == socket.SOCK_STREAM else server
            with there:
                for _ in range(40):
                    client.send(bytes(1400))
                received = 0
                while received < 40 * 1400:
                    received += len(there.recv(1400))
                if kind == socket.SOCK_STREAM:
                    there.sendall(bytes(50_000))
                    client.settimeout(30)
                    while received < 40 * 1400 + 50_000:
                        received += len(client.recv(1 << 16))
        time.sleep(0.3)
        between = Between(before, network.read())
        return between.store_bytes, sum(link.control_bytes for link in between.links.values())

    for ends in ((("h1", 0), ("h0", 29500)), (("h2", 0), ("h1", 29501))):
        store, everything = grown(socket.SOCK_STREAM, ends)
        assert store == everything > 100_000, ends
    others = [(("h1", 0), ("h0", 29501)), (("h0", 0), ("h1", 29500)), (("h2", 29500), ("h0", 29499))]
    for ends in others:
        store, everything = grown(socket.SOCK_STREAM, ends)
        assert store == 0 and everything > 100_000, ends
    store, everything = grown(socket.SOCK_DGRAM, (("h1", 29500), ("h0", 29500)))
    assert store == 0 and everything > 50_000


@netns
@pytest.mark.parametrize("fails", range(4))
def test_a_meter_of_the_store_that_the_kernel_lets_us_make_by_half_is_none_and_that_is_said(
    build: Build, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """As it was: what could be made stood, counted one direction or one program's, and nobody was told."""
    made, real = [0], stores.aside

    def aside(device: int, how: str = "redirect") -> dict[str, Any]:
        made[0] += 1
        if made[0] > fails:
            raise NetlinkError(errno.EOPNOTSUPP, "no act_mirred")
        return real(device, how)

    monkeypatch.setattr(stores, "aside", aside)
    network = build(topology={"hosts": 2}, beside=[{"role": "web", "hosts": ["h1"], "command": ["true"]}])
    assert made[0] == fails + 1
    reading = network.read()
    assert not reading.store_told and not network.look().device("store")
    for index in network.star.control_ports.values():
        assert all(one.kind != "clsact" for one in network.look().qdiscs.get(index, ()))
    after = replace(reading, links={0: LinkCounts(control_bytes=3_000_000), 1: LinkCounts()})
    before = replace(reading, links=dict.fromkeys(range(2), LinkCounts()))
    asked = network.experiment
    assert any("can't copy it aside" in text for text in not_judged(covered(asked, "ebpf", after)))
    (found,) = judge_around(asked, Watched(), Between(before, after))
    assert "the ranks' store (h0 tcp 29500, h1 tcp 29501) nobody could count here" in found.text


@netns
@full
def test_a_copy_past_the_fault_is_no_rendezvous_of_many_hosts(tmp_path: Path) -> None:
    """As it was: with 32 hosts two megabytes were free, to whatever port: 1.5 of a copy met no fault, valid."""
    program = tmp_path / "copy.py"
    program.write_text(COPY)
    head = '[topology]\nhosts = 32\n[probe]\npackets = 500\n[[impair]]\nprofile = "loss_10"\n'
    text = f'{head}[workload]\nbarrier = false\ncommand = ["python", "{program}"]\n'
    status, said, row = fault_of(tmp_path, text)
    assert 1.4e6 < row["met"]["control_bytes"] < 2e6
    assert status == "unknown" and "1.5 MB went over the control links" in said, said
    assert "0.0 MB of that to and from the ranks' store (h0 tcp 29500)" in said and "h0 tcp 29501" in said, said


COPY = """
import os, socket, time
rank, peers = int(os.environ["RANK"]), os.environ["LOSSBENCH_ADDRESSES"].split(",")
data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); data.bind((peers[rank], 5000))
for n in range(60): data.sendto(bytes(1000), (peers[(rank + 1) % len(peers)], 5000)); time.sleep(0.01)
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1)
if rank == 0:
    server = socket.create_server(place); other = server.accept()[0]
    while other.recv(1 << 16): pass
    time.sleep(1)
if rank == 1:
    while True:
        try: other = socket.create_connection(place); break
        except OSError: time.sleep(0.1)
    other.sendall(bytes(1_450_000)); time.sleep(1)
"""
