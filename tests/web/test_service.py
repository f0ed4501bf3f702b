"""The service itself: both servers answer, clients keep their promises, and what goes wrong is said and counted."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lossbench.contract import Door
from lossbench.workloads.errors import OptionError, WorkloadError
from lossbench.workloads.web import __main__ as web
from lossbench.workloads.web.external import External, read_h2load, read_wrk
from lossbench.workloads.web.http import clock, congestion, nginx
from lossbench.workloads.web.http.client import Client, Request
from lossbench.workloads.web.http.connection import Connection
from lossbench.workloads.web.options import Options
from lossbench.workloads.web.samples import read
from lossbench.workloads.web.schedule import Schedule
from lossbench.workloads.web.server import Server, served
from tests.forms import forms, full
from tests.web.service import Service

KINDS = ["builtin", pytest.param("nginx", marks=pytest.mark.skipif(nginx.find() is None, reason="no nginx here"))]

HOSTS_OWN = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    one = Service(tmp_path)
    yield one
    one.close()


def of(said: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in said if one["kind"] == kind]


def await_up(service: Service) -> None:
    for _ in range(200):
        if len(service.records("server", "ready")) == 2:
            return
        time.sleep(0.05)
    raise AssertionError("no servers")


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_answers_as_many_bytes_as_were_asked_for_on_one_connection(service: Service, kind: str) -> None:
    service.serve(server=kind, bytes=12_345)
    await_up(service)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
    for size in (100_000, 64, 12_345):
        connection.request("GET", f"/{size}")
        answer = connection.getresponse()
        assert answer.status == 200 and len(answer.read()) == size
    connection.request("GET", "/nothing")
    answer = connection.getresponse()
    assert answer.status == 404 and answer.read() is not None
    assert [one["which"] for one in service.records("server", "server")] == [kind, kind]


@forms("kind", KINDS)
def test_every_request_is_sent_answered_and_kept(service: Service, kind: str) -> None:
    service.serve(server=kind)
    service.ask(rate=200, seconds=3)
    service.wait()
    counts = service.records("web", "requests")
    sent, completed = (sum(one[name] for one in counts) for name in ("sent", "completed"))
    assert sent == completed and 450 < sent < 760 and not any(one["failed"] for one in counts)
    (row,) = of(service.concluded(rate=200, seconds=3), "row")
    assert 0 < row["p50_ms"] <= row["p99_ms"] and row["n"] + row["warm_up"] == sent and row["failed"] == 0


def test_nginx_runs_without_privileges_and_leaves_nothing(service: Service) -> None:
    if nginx.find() is None:
        pytest.skip("no nginx here")
    before = set(Path("/tmp").glob("lossbench-web-*"))
    service.serve(server="nginx")
    await_up(service)
    wrapper = service.servers[0].pid
    child = int(Path(f"/proc/{wrapper}/task/{wrapper}/children").read_text().split()[0])
    status = Path(f"/proc/{child}/status").read_text()
    assert "\nUid:\t0" not in status, "nginx is root"
    service.servers[0].kill()
    service.servers[0].wait()
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "\nState:\tZ" in Path(f"/proc/{child}/status").read_text():
            break
        time.sleep(0.05)
    else:
        raise AssertionError("nginx outlived a server that was killed")
    service.close()
    assert set(Path("/tmp").glob("lossbench-web-*")) == before


def test_a_port_that_is_taken_is_named(service: Service) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", service.port))
        other.listen(1)
        code, said = service.server_alone({})
    assert code == 1 and f"port {service.port} of 127.0.0.1 is taken" in said and "Traceback" not in said


def test_a_kind_of_server_that_there_is_not_is_named(service: Service) -> None:
    code, said = service.server_alone({"server": "apache"})
    assert code == 1 and "server is one of auto, nginx, builtin" in said


def test_without_nginx_the_built_in_server_takes_its_place_unless_nginx_was_asked_for(
    service: Service, monkeypatch: Any
) -> None:
    monkeypatch.setattr(nginx, "find", lambda: None)
    door = Door(rank=0, world_size=1, addresses=("127.0.0.1",), options={"server": "nginx", "port": service.port})
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(OptionError, match="there is no nginx here"):
            Server(door).run()
        answered: list[str] = []
        monkeypatch.setattr(Server, "_builtin", lambda self: answered.append("builtin"))
        (service.folder / "records").mkdir()
        path = str(service.folder / "records" / "server-0.jsonl")
        for options in ({}, {"server": "builtin"}):
            one = {"port": service.port, **options}
            Server(Door(rank=0, world_size=1, addresses=("127.0.0.1",), options=one, records_path=path)).run()
        assert answered == ["builtin", "builtin"] and len(service.records("server", "fallback")) == 1
        (note,) = served(service.folder).notes
        assert note == "The built-in server served, since nginx did not: there is none here (apt install nginx-light)."
    finally:
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize("kind", KINDS)
def test_congestion_control_is_the_hosts_own_or_the_one_asked_for_and_said(service: Service, kind: str) -> None:
    """As it was: whatever the machine had, and no word of it. Asked of the connections, from outside."""
    service.serve(server=kind, congestion="reno")
    await_up(service)
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as one:
        one.sendall(b"GET /64 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
        assert congestion.of_socket(one, "") == (HOSTS_OWN, ""), "of this socket nobody asked for another"
        found = served(service.folder)
        said = " ".join(found.notes)
        if "its socket is out of reach" in said:
            pytest.skip(said)
        assert found.words() == {"server": kind, "congestion": "reno"} and "not as asked" not in said
        if shutil.which("ss"):
            seen = subprocess.run(["ss", "-Htin", "src", f"127.0.0.1:{service.port}"], capture_output=True, text=True)
            assert "reno" in seen.stdout.split(), seen.stdout


def test_where_a_servers_socket_is_out_of_reach_the_hosts_own_is_said() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        asked = congestion.of_process(other.pid, "reno")
        none = congestion.of_process(other.pid, "")
        other.kill()
    assert none == (HOSTS_OWN, "") and asked[0] == HOSTS_OWN
    assert asked[1].startswith("reno: its socket is out of reach (")


def test_a_congestion_control_that_this_kernel_lacks_leaves_the_hosts_own_and_is_said(service: Service) -> None:
    service.serve(server="builtin", congestion="nosuch")
    await_up(service)
    found = served(service.folder)
    assert found.words() == {"server": "builtin", "congestion": HOSTS_OWN}
    (note,) = found.notes
    assert note.startswith("The service's TCP is not as asked for: nosuch: this kernel has ") and HOSTS_OWN in note


OLD_NGINX = """#!/bin/sh
echo 'nginx: invalid option: "e"' >&2
exit 1
"""


@pytest.fixture
def old_nginx() -> Iterator[str]:
    """A PATH with one that knows no -e, as before 1.19.5; the user nobody may run it."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        (Path(place) / "nginx").write_text(OLD_NGINX)
        (Path(place) / "nginx").chmod(0o755)
        yield f"{place}:{os.environ['PATH']}"


def test_the_built_in_server_takes_the_place_of_an_nginx_that_does_not_come_up(
    service: Service, old_nginx: str, monkeypatch: Any
) -> None:
    """As it was: no server at all."""
    monkeypatch.setenv("PATH", old_nginx)
    service.serve()
    await_up(service)
    assert [one["which"] for one in service.records("server", "server")] == ["builtin", "builtin"]
    for one in service.records("server", "fallback"):
        assert one["to"] == "builtin" and 'invalid option: "e"' in one["why"]
    assert len(service.records("server", "fallback")) == 2


def test_an_nginx_that_was_asked_for_and_does_not_come_up_is_said_with_its_reason(
    service: Service, old_nginx: str
) -> None:
    code, said = service.server_alone({"server": "nginx"}, PATH=old_nginx)
    assert code == 1 and 'invalid option: "e" (1.19.5 or newer is needed)' in said and "Traceback" not in said


class Grumpy(threading.Thread):
    """A server that answers the first request of every connection, and the second as it is told to."""

    def __init__(self, second: bytes, *, holds_s: float = 0.2) -> None:
        super().__init__(daemon=True)
        self.second, self.holds_s = second, holds_s
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer: socket.socket) -> None:
        with peer:
            if peer.recv(4096):
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
            if peer.recv(4096) and self.second:
                peer.sendall(self.second)
                time.sleep(self.holds_s)


@pytest.mark.parametrize(
    ("second", "failed", "again"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 5, 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", 5, 0),
        (b"", 0, 9),
    ],
    ids=["refuses", "breaks off", "closes"],
)
def test_only_a_kept_connection_that_was_closed_unused_is_tried_again(second: bytes, failed: int, again: int) -> None:
    server = Grumpy(second)
    door = Door(rank=1, world_size=2, addresses=("127.0.0.1", "127.0.0.1"))
    client = Client(door, Options(port=server.port, timeout_s=5, bytes=3))
    client.begin = time.monotonic()
    for _ in range(10):
        done = client.count.completed + client.count.failed
        client.start(Request(time.monotonic(), 0.0, 0, 3))
        while client.count.completed + client.count.failed == done:
            client.wait(time.monotonic() + 0.05)
    server.listener.close()
    assert (client.count.failed, client.count.again) == (failed, again)
    assert client.count.completed == 10 - failed


def test_a_short_refusal_on_a_kept_connection_is_told_with_its_reason() -> None:
    """As it was: it is shorter than what was asked for, woke nobody, and was a timeout without a reason."""
    server = Grumpy(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", holds_s=10)
    door = Door(rank=1, world_size=2, addresses=("127.0.0.1", "127.0.0.1"))
    client = Client(door, Options(port=server.port, timeout_s=3))
    client.begin = time.monotonic()
    for size in (3, 100_000):
        client.start(Request(time.monotonic(), 0.0, 0, size))
        while client.under_way:
            client.wait(time.monotonic() + 0.05)
    server.listener.close()
    assert (client.count.completed, client.count.failed, client.count.timed_out) == (1, 1, 0)
    assert client.count.reasons == {"answered 503": 1}


def test_a_good_response_wakes_its_client_once_however_many_packets_it_comes_in(monkeypatch: Any) -> None:
    looks: list[int] = []
    receive = Connection.receive
    monkeypatch.setattr(Connection, "receive", lambda self: looks.append(self.fd) or receive(self))
    body = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n" + bytes(60_000)
    server = Grumpy(body)
    door = Door(rank=1, world_size=2, addresses=("127.0.0.1", "127.0.0.1"))
    client = Client(door, Options(port=server.port, timeout_s=5))
    client.begin = time.monotonic()
    for size in (3, 60_000):
        looks.clear()
        client.start(Request(time.monotonic(), 0.0, 0, size))
        while client.under_way:
            client.wait(time.monotonic() + 0.05)
    server.listener.close()
    assert client.count.completed == 2 and len(looks) <= 2, "the head comes on top of the size: a second look at most"


def test_a_request_takes_from_when_it_was_due_and_not_from_when_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a client that comes a second late."""
    got: dict[str, list[float]] = {}
    monkeypatch.setattr(Door, "samples", lambda _, name, values, **__: got.setdefault(name, []).extend(values))
    server = Grumpy(b"")
    door = Door(rank=1, world_size=2, addresses=("127.0.0.1", "127.0.0.1"))
    client = Client(door, Options(port=server.port, timeout_s=60, bytes=3))
    client.begin = clock.now() - 1.0
    one = Schedule(at_s=np.zeros(1), server=np.zeros(1, int), size=np.full(1, 3), page=np.full(1, -1))
    client.run(one, until_s=60, stop=lambda: client.count.completed > 0)
    server.listener.close()
    assert got["completion_ms"][0] >= got["lag_ms"][0] >= 1000 and got["at_s"] == [0.0]


class Slow(Grumpy):
    """Reads a request, however long it is, only when its sender can't send more; answers three bytes."""

    def __init__(self) -> None:
        self.blocked = threading.Event()
        super().__init__(b"")

    def serve(self, peer: socket.socket) -> None:
        with peer:
            while self.blocked.wait(60):
                asked = b""
                while not asked.endswith(b"\r\n\r\n"):
                    more = peer.recv(1 << 20)
                    if not more:
                        return
                    asked += more
                self.blocked.clear()
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")


def test_a_request_that_does_not_fit_the_send_buffer_is_sent_to_its_end(monkeypatch: Any) -> None:
    """As it was: what the socket did not take at once was never sent, on a new connection as on a kept one."""
    ask = Connection.ask
    long = "x" * (16 << 20)
    monkeypatch.setattr(Connection, "ask", lambda self, size, path: ask(self, size, f"{path}?{long}"))
    server = Slow()
    client = Client(
        Door(rank=1, world_size=2, addresses=("127.0.0.1", "127.0.0.1")), Options(port=server.port, timeout_s=30)
    )
    client.begin = time.monotonic()
    for _ in range(2):
        client.start(Request(time.monotonic(), 0.0, 0, 3))
        client.wait(time.monotonic() + 0.2)
        server.blocked.set()
        while client.under_way:
            client.wait(time.monotonic() + 0.05)
    server.listener.close()
    assert (client.count.completed, client.count.timed_out, client.count.connections) == (2, 0, 1)


@pytest.mark.parametrize(("rates", "aside"), [((), False), ((50.0, 100.0), True)])
def test_completions_at_several_rates_are_in_no_common_distribution(
    rates: tuple[float, ...], aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: the tail of a search was that of all its rates together, the overloaded ones too."""
    door, said = Door(rank=0, world_size=2, addresses=("127.0.0.1", "127.0.0.2")), {}
    monkeypatch.setattr(door, "samples", lambda name, values, **how: said.update({name: how["aside"]}))
    client = Client(door, Options(rates=rates))
    for name in ("completion_ms", "size_bytes"):
        client._new[name].append(5.0)
    client._write()
    assert said == {"completion_ms": aside, "size_bytes": True}


def test_a_client_counts_what_was_due_for_long_and_never_sent() -> None:
    """What is not due yet when it is told to end is no fault of anybody."""
    client = Client(Door(rank=0, world_size=2, addresses=("127.0.0.1", "127.0.0.2")), Options())
    client.begin, client.ended = clock.now() - 3600, True
    at = np.array([1.0, 2.0, 3.0, 7200.0])
    client.run(Schedule(at_s=at, server=np.ones(4, int), size=np.ones(4, int), page=np.arange(4)), until_s=7300)
    assert (client.count.missed, client.count.sent) == (3, 0)


def test_servers_that_never_come_are_named_in_bounded_time(service: Service, monkeypatch: Any) -> None:
    monkeypatch.setattr(web, "SERVERS_S", 0.3)
    door = Door(rank=0, world_size=2, addresses=("127.0.0.1", "127.0.0.2"))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(WorkloadError, match="no server at host 0"):
            web.Clients(door, Options(port=service.port)).run()
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_a_server_that_is_killed_is_counted_and_doubted_and_the_clients_end(service: Service) -> None:
    service.serve(server="builtin")
    service.ask(rate=100, seconds=3, timeout_s=2)
    for _ in range(200):
        if len(service.records("web", "began")) == 2:
            break
        time.sleep(0.05)
    time.sleep(1)
    service.servers[1].kill()
    service.wait()
    failed = sum(one["failed"] + one["timed_out"] for one in service.records("web", "requests"))
    assert failed > 20
    doubts = [one["text"] for one in of(service.concluded(rate=100, seconds=3), "doubt")]
    assert any("requests were not answered" in text and "connect" in text for text in doubts), doubts


def test_more_than_can_be_carried_is_dropped_counted_and_doubted(service: Service) -> None:
    service.serve(server="builtin")
    service.ask(rate=4000, seconds=2, bytes=20_000_000, most_open=20, timeout_s=3)
    service.wait()
    counts = service.records("web", "requests")
    assert sum(one["dropped"] for one in counts) > 100
    said = service.concluded(rate=4000, seconds=2)
    assert of(said, "doubt")
    lost = sum(one[name] for one in counts for name in ("failed", "timed_out", "dropped", "unfinished"))
    assert lost == len(read(service.folder, "web").lost), "each with its intended time"
    assert [row["failed"] for row in of(said, "row")] == ([lost] if sum(one["completed"] for one in counts) else [])


def test_a_client_that_is_told_to_end_writes_what_it_has(service: Service) -> None:
    service.serve(server="builtin")
    service.ask(rate=100, seconds=0)
    for _ in range(200):
        if len(service.records("web", "began")) == 2:
            break
        time.sleep(0.05)
    time.sleep(1.5)
    for one in service.clients:
        one.send_signal(signal.SIGTERM)
    service.wait()
    assert [one["told_to_end"] for one in service.records("web", "requests")] == [True, True]
    (row,) = of(service.concluded(rate=100, seconds=0), "row")
    assert row["n"] + row["warm_up"] >= 80


def test_it_ends_when_the_wanted_percentile_is_known(service: Service) -> None:
    """Half of the median: on a machine that stops and goes more can't be known in so short a time."""
    service.serve(server="builtin", bytes=1000)
    service.ask(rate=600, seconds=40, until="p50=50%", bytes=1000)
    service.wait()
    said = service.concluded(rate=600, seconds=40, until="p50=50%", bytes=1000)
    (row,) = of(said, "row")
    assert row["note"].startswith("Ended early: p50 is known to")
    assert sum(one["sent"] for one in service.records("web", "requests")) < 600 * 30


@full
def test_a_precision_out_of_reach_is_refused_early(service: Service) -> None:
    service.serve(server="builtin", bytes=1000)
    service.ask(rate=200, seconds=12, until="p99.9=1%", bytes=1000)
    service.wait()
    said = service.concluded(rate=200, seconds=12, until="p99.9=1%", bytes=1000)
    assert any("can't be known to 1% in 12 s" in one["text"] for one in of(said, "doubt")), of(said, "doubt")
    assert sum(one["sent"] for one in service.records("web", "requests")) < 200 * 11


@full
def test_one_rate_after_the_other_ends_at_the_first_above_the_mean(service: Service) -> None:
    service.serve(server="builtin", bytes=1000)
    options = {"rates": [50, 100, 200, 400], "seconds": 1.5, "stop_mean_ms": 0.0001, "bytes": 1000}
    service.ask(**options)
    service.wait()
    rows = of(service.concluded(**options), "row")
    assert [row["offered"] for row in rows] == [50]


@full
def test_the_rate_at_which_the_tail_is_long_enough_is_held(service: Service) -> None:
    service.serve(server="builtin", bytes=1000)
    options = {"rates": [700, 900], "seconds": 2, "stop_ratio": 1.0, "hold_s": 2, "bytes": 1000}
    service.ask(**options)
    service.wait()
    said = service.concluded(**options)
    rows = of(said, "row")
    assert [row["offered"] for row in rows] == [700, 700] and rows[1]["from_s"] > rows[0]["from_s"]
    assert any("at the lowest rate already (700/s)" in one["text"] for one in of(said, "doubt"))


@full
def test_a_tail_that_never_gets_long_enough_is_said(service: Service) -> None:
    service.serve(server="builtin", bytes=1000)
    options = {"rates": [50, 100], "seconds": 1, "stop_ratio": 1e6, "hold_s": 2, "bytes": 1000}
    service.ask(**options)
    service.wait()
    assert any("never came to 1e+06" in one["text"] for one in of(service.concluded(**options), "doubt"))


@forms("connections", ["fresh", "keep-alive"])
def test_connections_are_kept_or_made_anew(service: Service, connections: str) -> None:
    service.serve(server="builtin", bytes=1000)
    service.ask(rate=100, seconds=2, connections=connections, bytes=1000)
    service.wait()
    counts = service.records("web", "requests")
    assert sum(one["completed"] for one in counts) > 120
    made = sum(one["connections"] for one in counts)
    assert made > 100 if connections == "fresh" else made < 60


def test_a_closed_loop_says_that_its_tail_is_understated(service: Service) -> None:
    service.serve(server="builtin", bytes=1000)
    service.ask(loop="closed", users=2, seconds=2, bytes=1000)
    service.wait()
    (row,) = of(service.concluded(loop="closed", users=2, seconds=2, bytes=1000), "row")
    assert "understated" in row["note"] and row["n"] > 100


@forms("reads", ["wrk", "h2load"])
def test_the_users_own_generator_runs_and_is_read(service: Service, reads: str) -> None:
    if shutil.which(reads) is None:
        pytest.skip(f"no {reads} here")
    service.serve(server="builtin")
    await_up(service)
    service.ask("web.external", reads=reads, seconds=2, bytes=1000)
    said = service.wait()
    summaries = service.records("web", "summary")
    assert len(summaries) == 2 and all(one["n"] > 50 and one["rate"] > 10 for one in summaries), said
    assert service.records("web", "row")[0]["mean_ms"] > 0


WRK = """Running 2s test @ http://127.0.0.1:8080/1000
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   415.79us  285.41us   5.32ms   91.84%
    Req/Sec     9.87k   811.81    11.12k    80.95%
  Latency Distribution
     50%  349.00us
     75%  433.00us
     90%  600.00us
     99%    1.61ms
  20614 requests in 2.10s, 22.43MB read
  Socket errors: connect 1, read 2, write 3, timeout 4
Requests/sec:   9816.74
Transfer/sec:     10.68MB
"""
H2LOAD = """finished in 2.00s, 9123.50 req/s, 9.52MB/s
requests: 18247 total, 18247 started, 18247 done, 18240 succeeded, 7 failed, 0 errored, 0 timeout
                     min         max         mean         sd        +/- sd
time for request:       85us      5.21ms       432us       211us    89.35%
time for connect:      112us       281us       190us        71us    75.00%
"""


def test_what_wrk_prints_is_read() -> None:
    found = read_wrk(WRK)
    assert found["mean_ms"] == pytest.approx(0.41579) and found["p50_ms"] == pytest.approx(0.349)
    assert found["p99_ms"] == pytest.approx(1.61)
    assert (found["n"], found["rate"], found["failed"]) == (20614, 9816.74, 10)


def test_responses_that_wrk_calls_non_2xx_have_failed() -> None:
    """As it was: none had."""
    refused = WRK.replace("Requests/sec", "  Non-2xx or 3xx responses: 614\nRequests/sec")
    assert read_wrk(refused)["failed"] == 624
    assert read_wrk(refused.replace("  Socket errors: connect 1, read 2, write 3, timeout 4\n", ""))["failed"] == 614


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (WRK.replace("Requests/sec", "  Non-2xx or 3xx responses: 614\nRequests/sec"), "624 requests of cat failed"),
        (H2LOAD.replace("18240 succeeded, 7", "18140 succeeded, 107"), "107 requests of cat failed, 18140 were"),
        (H2LOAD.replace("18240 succeeded, 7", "0 succeeded, 18247"), "none of its requests was answered"),
        (WRK.replace("Socket errors: connect 1, read 2", "Socket errors: connect 0, read 1"), ""),
    ],
)
def test_a_generator_whose_requests_failed_is_doubted(tmp_path: Path, said: str, found: str) -> None:
    """As it was: the times of error pages, or of nothing, were those of the service, valid."""
    (tmp_path / "said").write_text(said)
    reads = "h2load" if "succeeded" in said else "wrk"
    options = {"command": ["cat", str(tmp_path / "said")], "reads": reads}
    door = SimpleNamespace(options=options, addresses=["10.0.0.1"], rank=0, world_size=1, ready=lambda: None)
    records: list[dict[str, Any]] = []
    door.record = lambda kind, **more: records.append({"kind": kind, **more})
    if found.startswith("none"):
        with pytest.raises(WorkloadError, match=found):
            External(door).run()  # type: ignore[arg-type]
        return
    External(door).run()  # type: ignore[arg-type]
    texts = [one["text"] for one in records if one["kind"] == "doubt"]
    assert len(texts) == bool(found) and all(text.startswith(found) for text in texts), texts


def test_what_h2load_prints_is_read() -> None:
    found = read_h2load(H2LOAD)
    assert found["mean_ms"] == pytest.approx(0.432) and found["max_ms"] == pytest.approx(5.21)
    assert (found["n"], found["rate"], found["failed"]) == (18240, 9123.5, 7)
