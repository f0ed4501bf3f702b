"""Beside a user's command: to whoever watches it is the command, and at its end there is a record of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lossbench.net.conservation import Met
from lossbench.net.counters import Reading
from lossbench.net.host import tcp
from lossbench.net.host.tcp import Connections
from lossbench.processes import PACKAGE, catches
from lossbench.proof.watched import Watched
from lossbench.runs import summary
from lossbench.runs.launch import companion
from lossbench.spec.experiment import Experiment

NETLINK_SOCK_DIAG = 4
TALK = """
import pathlib, socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
there, _ = server.accept()
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until and not pathlib.Path("enough").exists():
    client.sendall(b"x" * 10_000)
    there.recv(10_000, socket.MSG_WAITALL)
sum(range(3_000_000))
"""


def variables(tmp_path: Path) -> dict[str, str]:
    own = {"RANK": "0", "WORLD_SIZE": "1", "LOSSBENCH_ADDRESSES": "127.0.0.1", "LOSSBENCH_RECORDS": "r/rank-0.jsonl"}
    (tmp_path / "r").mkdir(exist_ok=True)
    return {**os.environ, **own, "LOSSBENCH_RECORDS": str(tmp_path / "r" / "rank-0.jsonl")}


def started(tmp_path: Path, *command: str, **more: str) -> subprocess.Popen[str]:
    environment = {**variables(tmp_path), **more}
    return subprocess.Popen(
        companion.command(list(command)),
        env=environment,
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def test_connections_are_not_its_own_where_programs_stand_beside_it(tmp_path: Path) -> None:
    process = started(tmp_path, sys.executable, "-c", TALK, "1.2", LOSSBENCH_BESIDE="web")
    process.communicate(timeout=60)
    found = recorded(tmp_path)
    assert found["wall_s"] > 1 and not {"rtt_ms", "tcp_resent_percent"} & set(found)


def recorded(tmp_path: Path) -> dict[str, Any]:
    (line,) = (tmp_path / "r" / "rank-0.jsonl").read_text().splitlines()
    return dict(json.loads(line))


def who_asks_of_sockets() -> set[int]:
    """Processes with a netlink socket of SOCK_DIAG; pyroute2 keeps a number of its own above theirs."""
    rows = [line.split() for line in Path("/proc/net/netlink").read_text(encoding="ascii").splitlines()[1:]]
    return {int(row[2]) & 0x3FFFFF for row in rows if row[1] == str(NETLINK_SOCK_DIAG)}


def test_what_the_kernel_knows_of_a_program_is_recorded(tmp_path: Path) -> None:
    process = started(tmp_path, sys.executable, "-c", TALK, "100")
    deadline = time.monotonic() + 100
    while process.pid not in who_asks_of_sockets() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(5 * companion.LOOK_MS / 1000)
    (tmp_path / "enough").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found = recorded(tmp_path)
    assert found["kind"] == "program" and found["rank"] == 0
    assert found["wall_s"] > 1 and found["cpu_s"] > 0 and found["memory_mb"] > 5 and found["exit"] == 0
    assert found["tcp_resent_percent"] >= 0 and found["rtt_ms"] > 0
    assert (tmp_path / "samples" / "rtt_ms.rank-0.f64").stat().st_size >= 8


def test_a_server_of_both_families_has_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: its connections were IPv6's to the kernel, and nobody asked for those."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        client = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
        there, _ = server.accept()
        there.sendall(b"answer")
        assert client.recv(6) == b"answer"
        known = Connections(address="127.0.0.1", alone=False)
        known.open()
        monkeypatch.setattr(known._socket, "get_sock_stats", only_of(known._socket.get_sock_stats, there))
        known.sample()
        known.close()
        client.close()
        there.close()
    assert len(known.rtt_ms) == 1 and known.resent() == 0


def only_of(ask: Any, end: socket.socket) -> Any:
    """This machine has other connections too."""
    return lambda **how: [one for one in ask(**how) if one["idiag_sport"] == end.getsockname()[1]]


def test_segments_that_were_sent_again_are_a_share_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: again / first, since Linux's OutSegs leaves out what RetransSegs counts: 11.1 % of 90 and 10."""
    counted = iter([(1000, 5), (1090, 15)])
    monkeypatch.setattr(tcp, "totals", lambda: next(counted))
    assert Connections(address="127.0.0.1", alone=True).resent() == pytest.approx(0.1)


@pytest.mark.parametrize("code", [0, 7])
def test_it_ends_as_its_command_ends(tmp_path: Path, code: int) -> None:
    process = started(tmp_path, "sh", "-c", f"echo out; echo err >&2; exit {code}")
    assert process.communicate(timeout=60) == ("out\n", "err\n") and process.returncode == code
    assert recorded(tmp_path)["wall_s"] > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_it_dies_as_its_command_dies(tmp_path: Path, number: signal.Signals) -> None:
    process = started(tmp_path, "sh", "-c", f"kill -{number.value} $$")
    process.communicate(timeout=60)
    assert process.returncode == -number == recorded(tmp_path)["exit"]


def test_a_signal_to_the_group_is_the_commands_business_and_what_it_says_then_is_heard(tmp_path: Path) -> None:
    process = started(tmp_path, "sh", "-c", "trap 'echo bye; exit 3' TERM; echo here; while :; do sleep 0.05; done")
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    os.killpg(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "bye\n" and process.returncode == 3


@pytest.mark.parametrize(
    ("command", "caught"),
    [(["sleep", "60"], False), ([sys.executable, "-X", "faulthandler", "-c", "import time; time.sleep(60)"], True)],
)
def test_it_catches_an_abort_only_if_its_command_does(tmp_path: Path, command: list[str], caught: bool) -> None:
    """As it was: it always did, so that a C program was aborted at its time limit before it was asked to end."""
    process = started(tmp_path, *command)
    limit = time.monotonic() + 60
    while catches(process.pid, signal.SIGABRT) is not caught or not catches(process.pid, signal.SIGTERM):
        assert time.monotonic() < limit
        time.sleep(0.02)
    time.sleep(0.6)  # two looks
    assert catches(process.pid, signal.SIGABRT) is caught
    os.killpg(process.pid, signal.SIGABRT if caught else signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -(signal.SIGABRT if caught else signal.SIGTERM)
    assert ("Current thread" in err) is caught


SLOW = """
import sys, time
sys.path.insert(0, sys.argv[1])
from lossbench.net.host.tcp import Connections
Connections.open = lambda self: time.sleep(600)
from lossbench.runs.launch import companion
companion.main()
"""


def test_a_command_that_hangs_can_be_asked_for_its_stack_however_long_its_companion_takes(tmp_path: Path) -> None:
    """On a busy machine the companion's own libraries took longer than the command's limit."""
    command = [sys.executable, "-X", "faulthandler", "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(PACKAGE), *command], env=variables(tmp_path), start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while not catches(process.pid, signal.SIGABRT) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert catches(process.pid, signal.SIGABRT)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_companion_that_is_killed_takes_its_command_along(tmp_path: Path) -> None:
    process = started(tmp_path, "sh", "-c", "echo $$; exec sleep 60")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    limit = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and time.monotonic() < limit:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}").exists()


def test_python_variables_are_the_programs_own(tmp_path: Path) -> None:
    """Modules of a user's folder must not be what the companion imports."""
    for name in ("select", "signal", "lossbench"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "mine.py").write_text("print('mine')")
    process = started(tmp_path, sys.executable, "-c", "import mine", PYTHONPATH=str(tmp_path))
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("mine\n", 0), err


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    process = started(tmp_path, "./nowhere")
    assert "./nowhere: No such file" in process.communicate(timeout=60)[1] and process.returncode == 1


@pytest.mark.parametrize(
    ("beside", "read", "there"),
    [([], True, {"wall_s", "packets", "lost_percent", "sent_mb"}), ([], False, {"wall_s"})]
    + [([{"role": "noise", "command": ["sleep", "9"]}], True, {"wall_s"})],
)
def test_what_the_links_counted_is_a_commands_own_only_where_it_is_alone(
    beside: list[dict[str, Any]], read: bool, there: set[str]
) -> None:
    asked = {"name": "mine", "workload": {"command": ["true"]}, "beside": beside}
    watched = Watched(after=Reading() if read else None, programs=[{"wall_s": 2.0}])
    found = summary._of_command(Experiment.model_validate(asked), watched, Met(packets=10, bytes=9000))
    assert set(found) == there


def test_the_exit_of_a_command_is_that_of_the_rank_that_did_worst() -> None:
    """A mean over ranks of 0, 0 and 3 would be 1, which none of them said."""
    experiment = Experiment.model_validate({"name": "mine", "workload": {"command": ["true"]}})
    for codes, worst in (([0, 0, 3], 3), ([0, -9, 1], -9), ([0, 0], 0)):
        watched = Watched(after=None, programs=[{"wall_s": 2.0, "exit": code} for code in codes])
        assert summary._of_command(experiment, watched, Met())["exit"] == worst
