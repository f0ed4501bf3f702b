"""Killed at any moment, lossbench leaves nothing that `lossbench clean` does not find, and touches nothing foreign."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lossbench.net import journal
from lossbench.net.host import namespaces
from tests.conftest import left_behind
from tests.forked import LOSSBENCH, begin, lossbench
from tests.forms import forms
from tests.shared import foreign_network, namespaces_of, wait_until_begun

pytestmark = pytest.mark.netns

DRIVER = """
import os, sys
from pathlib import Path
from lossbench.net import journal
from lossbench.net.kernel import Kernel
from lossbench.runs.ground import ThisMachine
from lossbench.runs import run
from lossbench.results.folders import RunFolder
from lossbench.spec.asking import points
where, number, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
count = 0
def die(*_):
    os.kill(os.getpid(), 9)
def progress(what):
    if where == "step" and str(what).startswith(str(number)): die()
before = journal.Journal.before_making
def making(self, kind, name):
    global count
    before(self, kind, name)
    count += 1
    if where == "making" and count == number: die()
journal.Journal.before_making = making
((chosen, e),) = points.points(points.find("proof"), settings=["workload.options.seconds=0.2"])
run.execute(e, seed=0, chosen={}, folder=RunFolder(folder), ground=ThisMachine(Kernel.tried()), progress=progress)
"""


@pytest.fixture
def foreign() -> Iterator[str]:
    with foreign_network() as (name, stands):
        yield name
        assert stands()


KEPT = [("step", 3), ("step", 5), ("step", 8), ("making", 3)]
POINTS = KEPT + [("step", n) for n in (1, 2, 4, 6, 7, 9)] + [("making", n) for n in (1, 5)]


@forms(("where", "number"), POINTS, keep=len(KEPT))
def test_killed_at_any_step_clean_removes_all_of_ours_and_nothing_else(
    tmp_path: Path, foreign: str, where: str, number: int
) -> None:
    command = [sys.executable, "-c", DRIVER, where, str(number), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    left = left_behind()
    if number >= 5 and where == "step":
        assert left, "the test must leave something, or it shows nothing"
    cleaned = lossbench("clean")
    assert cleaned.returncode == 0
    assert left_behind() == []
    assert all(name in cleaned.stdout for name in left)
    assert not [j for j in journal.networks() if not j.owner_alive() and not j.is_lab()]


def _no_signal_ignored() -> None:
    """nohup and shells hand ignored signals down to what they start, and so would these tests."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EACH_ONCE = list(zip(SIGNALS, (0.8, 1.5, 2.5), strict=True))
INTERRUPTED = EACH_ONCE + [(n, s) for n in SIGNALS for s in (0.8, 1.5, 2.5) if (n, s) not in EACH_ONCE]


@pytest.mark.wallclock
@forms(("number", "delay_s"), INTERRUPTED, keep=3)
def test_interrupted_it_undoes_everything_by_itself(tmp_path: Path, number: signal.Signals, delay_s: float) -> None:
    process = subprocess.Popen(
        [*LOSSBENCH, "run", "proof", "--out", str(tmp_path), "--set", "workload.options.seconds=20"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_no_signal_ignored,
    )
    time.sleep(delay_s)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    # An interpreter through which a KeyboardInterrupt went inside C ends by SIGINT, whatever it was told to say.
    assert process.returncode in (130, -number, -signal.SIGINT), errors
    assert "Traceback" not in errors
    assert process.returncode != 130 or "lossbench: interrupted" in errors
    assert left_behind() == []


WRAPPED = """
import os, signal
from lossbench.cli import app, main

class Member:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass

app.app = lambda **_: type("Class", (), {"member": Member()})
main.main()
"""


def test_an_interruption_that_python_wraps_in_another_error_is_an_interruption() -> None:
    done = subprocess.run([sys.executable, "-c", WRAPPED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "lossbench: interrupted\n")


@pytest.mark.wallclock
def test_ranks_die_with_the_harness(tmp_path: Path) -> None:
    marker = f"600.{os.getpid()}"
    settings = ["--set", f'workload.command=["sleep","{marker}"]', "--set", "workload.barrier=false"]
    process = begin("run", "proof", "--out", str(tmp_path), *settings)
    deadline = time.monotonic() + 120
    while _sleepers(marker) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _sleepers(marker) == 4
    process.kill()
    process.wait()
    while _sleepers(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _sleepers(marker) == 0
    lossbench("clean")
    assert left_behind() == []


def _sleepers(marker: str) -> int:
    """Not the companions that started them, which have the same words."""
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            count += entry.name.isdigit() and (entry / "cmdline").read_bytes() == f"sleep\0{marker}\0".encode()
        except OSError:
            continue
    return count


def test_clean_leaves_a_running_experiment_alone(tmp_path: Path) -> None:
    process = begin("run", "proof", "--out", str(tmp_path), "--set", "workload.options.seconds=3", "--json")
    while not namespaces_of(process.pid):
        time.sleep(0.02)
    assert "in use by a running lossbench" in lossbench("clean").stdout
    process.communicate(timeout=120)
    assert process.returncode == 0


def test_a_full_disk_is_one_line_and_nothing_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)], check=True)
    try:
        done = lossbench("run", "proof", "--out", str(disk))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert done.returncode == 4, done.stderr
    assert "can't be written" in done.stderr and "No space left" in done.stderr and "Traceback" not in done.stderr
    assert left_behind() == []


@pytest.mark.wallclock
def test_a_link_that_goes_away_during_a_run_is_named(tmp_path: Path) -> None:
    process = begin("run", "proof", "--out", str(tmp_path), "--set", "workload.options.seconds=20", together=True)
    wait_until_begun(process, tmp_path)
    (switch,) = [n for n in namespaces_of(process.pid) if n.endswith("-sw")]
    with namespaces.open_inside(switch) as inside:
        inside.link("del", index=inside.link_lookup(ifname="p1")[0])
    errors, _ = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    assert "links went away during the run: switch port p1" in errors and "Traceback" not in errors
    assert left_behind() == []
