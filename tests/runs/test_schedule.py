"""Windows of a run whose harness is kept from being on time: held against what was asked, or kept by the kernel."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.forked import ROOT, lossbench, start
from tests.forms import full

pytestmark = pytest.mark.netns

FROM_S, TO_S = 0.3, 1.2
STREAM = """
import json, os, pathlib, signal, socket, struct, sys, time
me, peers, here = int(os.environ["RANK"]), os.environ["LOSSBENCH_ADDRESSES"].split(","), pathlib.Path(sys.argv[1])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
s.bind((peers[me], 5000))
with open(os.environ["LOSSBENCH_RECORDS"], "a") as file:
    file.write(json.dumps({"kind": "ready", "rank": me, "time_s": time.time()}) + "\\n")
gate = os.open(os.environ["LOSSBENCH_GO"], os.O_RDONLY)
os.read(gate, 1)
if me == 0:
    harness, began, stamps = int((here / "pid").read_text()), time.monotonic(), []
    os.kill(harness, signal.SIGSTOP)
    awake = False
    while time.monotonic() < began + 1.6:
        before = time.monotonic()
        s.sendto(struct.pack("<I", len(stamps)), (peers[1], 5000))
        stamps.append((before - began, time.monotonic() - began))
        if not awake and before > began + 0.7:
            os.kill(harness, signal.SIGCONT)
            awake = True
        time.sleep(0.0005)
    for _ in range(20):  # the last of them arrive
        s.sendto(struct.pack("<I", 0xFFFFFFFF), (peers[1], 5000))
        time.sleep(0.01)
    (here / "stamps.json").write_text(json.dumps(stamps))
else:
    got = []
    while (number := struct.unpack("<I", s.recv(100))[0]) != 0xFFFFFFFF:
        got.append(number)
    (here / "got.json").write_text(json.dumps(got))
"""


def run_asleep(folder: Path, backend: str) -> dict[str, Any]:
    """The verdict of a run that loses everything for a while; its harness is stopped when the window should open."""
    (folder / "stream.py").write_text(STREAM)
    (folder / "experiment.toml").write_text(f"""
name = "asleep"
backend = "{backend}"
topology = {{ hosts = 2 }}
probe = {{ packets = 1000 }}
[workload]
command = ["python", "{folder}/stream.py", "{folder}"]
[[impair]]
from_s = {FROM_S}
to_s = {TO_S}
profile = {{ name = "all", why = "t", loss = {{ model = "iid", percent = 100 }} }}
""")
    command = ["lossbench", "run", str(folder / "experiment.toml"), "--out", str(folder / "out")]
    with tempfile.TemporaryFile() as output:
        process = start("cli", command, output=output)
        (folder / "pid").write_text(str(process.pid))
        try:
            process.wait(120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            process.kill()
        output.seek(0)
        said = output.read().decode()
    (verdict,) = (folder / "out").rglob("verdict.json")
    return {**json.loads(verdict.read_text()), "said": said}


def widths(folder: Path) -> tuple[float, float]:
    """Seconds for which packets were lost: at least, and at most."""
    stamps = json.loads((folder / "stamps.json").read_text())
    got = set(json.loads((folder / "got.json").read_text()))
    lost = [number for number in range(len(stamps)) if number not in got]
    assert lost and lost[0] > 0 and lost[-1] < len(stamps) - 1, f"{len(lost)} of {len(stamps)} were lost"
    assert lost == list(range(lost[0], lost[-1] + 1)), "one window"
    first, last = lost[0], lost[-1]
    return stamps[last][0] - stamps[first][1], stamps[last + 1][1] - stamps[first - 1][0]


def test_a_window_that_the_kernel_keeps_does_not_need_the_harness(tmp_path: Path) -> None:
    verdict = run_asleep(tmp_path, "ebpf")
    fault = verdict["columns"]["fault"]
    said = " ".join(one["text"] for one in fault["findings"])
    assert f"asked from {FROM_S} s to {TO_S} s and in force from {FROM_S} s to {TO_S} s, by the kernel's clock" in said
    doubts = [one["text"] for one in fault["findings"] if one["status"] != "valid"]
    assert all("before its ranks were let go" in text for text in doubts), verdict  # a machine that is very busy
    least, most = widths(tmp_path)
    # Where a packet meets the rule may come to it a little later than it was sent, on a busy machine.
    assert least - 0.1 <= TO_S - FROM_S <= most + 0.1


EARLY = """
import json, os, pathlib, socket, sys, time
me, peers, here = int(os.environ["RANK"]), os.environ["LOSSBENCH_ADDRESSES"].split(","), pathlib.Path(sys.argv[1])
if me == 0:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    (here / "begun").touch()
    began, sent = time.monotonic(), []
    while time.monotonic() < began + 1.4:
        sent.append(time.monotonic() - began)
        s.sendto(b"x" * 18, (peers[1], 5000))
        time.sleep(0.002)
    (here / "sent.json").write_text(json.dumps(sent))
"""
SLOW = """
import pathlib, sys, time
from lossbench.contract import Door
until = time.monotonic() + 1
while time.monotonic() < until and not pathlib.Path(sys.argv[1], "begun").exists(): time.sleep(0.02)
time.sleep(0.8)
Door.from_environment().ready()
time.sleep(600)
"""


def test_a_window_counts_from_when_programs_begin_that_do_not_know_us(tmp_path: Path) -> None:
    """As it was: a program that was launched long before the last one met its window until half a second after that
    had come: all that it sent was lost, and "in force to 0.5 s, by the kernel's clock" valid."""
    for name, text in (("early", EARLY), ("slow", SLOW)):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "experiment.toml").write_text(f"""
name = "early"
backend = "ebpf"
topology = {{ hosts = 2 }}
probe = {{ packets = 1000 }}
[workload]
barrier = false
command = ["python", "{tmp_path}/early.py", "{tmp_path}"]
[[beside]]
role = "slow"
hosts = ["h1"]
command = ["python", "{tmp_path}/slow.py", "{tmp_path}"]
[[impair]]
hosts = ["h0"]
direction = "uplink"
to_s = 0.5
profile = {{ name = "all", why = "t", loss = {{ model = "iid", percent = 100 }} }}
""")
    done = lossbench("run", str(tmp_path / "experiment.toml"), "--out", str(tmp_path / "out"))
    (verdict,) = (tmp_path / "out").rglob("verdict.json")
    fault = json.loads(verdict.read_text())["columns"]["fault"]
    assert "by the kernel's clock" in json.dumps(fault), done.stderr
    sent = json.loads((tmp_path / "sent.json").read_text())
    lost = json.loads(verdict.with_name("counters.json").read_text())["met"]["lost_by_rule"]
    lasted = sent[lost - 1] if lost else 0.0
    assert lasted < 0.5, f"the first {lasted:.1f} s of what it sent were lost: {fault}"


@full
def test_a_window_that_the_harness_slept_through_is_unknown_with_both_times(tmp_path: Path) -> None:
    verdict = run_asleep(tmp_path, "cbpf")
    fault = verdict["columns"]["fault"]
    assert fault["status"] == "unknown", verdict
    reasons = " ".join(fault["reasons"])
    # A machine that is busy beyond that sleeps until the window is over.
    assert f"asked from {FROM_S} s to {TO_S} s and in force from" in reasons or "was never in force" in reasons


@full
def test_a_harness_in_a_time_namespace_knows_the_kernels_clock() -> None:
    code = "from lossbench.net.kernel import clock_offset_ns; print(clock_offset_ns())"
    command = ["unshare", "-T", "--monotonic", "5000", "--fork", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": f"{ROOT}/.package"})
    if "unshare" in done.stderr:
        pytest.skip(f"no time namespaces here ({done.stderr.strip()})")
    assert done.stdout.strip() == str(5000 * 10**9), done.stderr
