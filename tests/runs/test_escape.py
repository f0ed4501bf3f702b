"""What a run started ends with it, whatever it makes of itself meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lossbench.net.host import cgroups
from tests.conftest import left_behind
from tests.forked import begin, lossbench
from tests.forms import full

pytestmark = pytest.mark.netns

# A daemon: a session, a network and mounts of its own, nobody's child.
ESCAPE = """
import ctypes, os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).unshare(0x40000000 | 0x00020000)
        null = os.open(os.devnull, os.O_RDWR)
        for one in (0, 1, 2): os.dup2(null, one)
        {become}
    os._exit(0)
time.sleep({seconds})
"""
SLEEP = 'os.execvp("sleep", ["sleep", "{marker}"])'
NOTHING = 'os.execve("/bin/sleep", ["sleep", "{marker}"], {{}})'  # not even its environment is left


def sleepers(marker: str) -> list[int]:
    out = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path("/proc", entry, "cmdline").read_bytes() == f"sleep\0{marker}\0".encode():
                out.append(int(entry))
        except OSError:
            continue
    return out


def gone(marker: str) -> bool:
    until = time.monotonic() + 60
    while sleepers(marker) and time.monotonic() < until:
        time.sleep(0.02)
    return not sleepers(marker)


def experiment(folder: Path, marker: str, become: str, seconds: float) -> str:
    program = folder / "escape.py"
    program.write_text(ESCAPE.format(become=become.format(marker=marker), seconds=seconds))
    path = folder / "mine.toml"
    path.write_text(
        f'[topology]\nhosts = 2\n[probe]\npackets = 1000\n[[impair]]\nprofile = "loss_1"\n'
        f'[workload]\nbarrier = false\ncommand = ["python", "{program}"]\n'
    )
    return str(path)


@pytest.fixture
def marker() -> str:
    return f"7{os.getpid()}.{time.monotonic_ns() % 10**6}"


def has_groups() -> bool:
    path = cgroups.folder("test")
    return path is not None and os.access(path.parent, os.W_OK)


@pytest.mark.parametrize("become", [SLEEP, NOTHING], ids=["with its environment", "without"])
def test_a_child_that_leaves_its_namespaces_ends_with_the_run(tmp_path: Path, marker: str, become: str) -> None:
    """As it was: a child with a network namespace of its own outlived the run, unsaid."""
    if become == NOTHING and not has_groups():
        pytest.skip("no cgroup v2 that we may write to: without it a process is known by its environment")
    lossbench("run", experiment(tmp_path, marker, become, 0.5), "--out", str(tmp_path))
    assert sleepers(marker) == [] and left_behind() == []


def test_so_it_does_after_a_kill_by_clean(tmp_path: Path, marker: str) -> None:
    process = begin("run", experiment(tmp_path, marker, SLEEP, 600), "--out", str(tmp_path))
    until = time.monotonic() + 60
    while len(sleepers(marker)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    assert len(sleepers(marker)) == 2
    process.kill()
    process.wait()
    lossbench("clean")
    assert gone(marker) and left_behind() == []


@full
def test_where_there_is_no_group_a_process_is_known_by_its_environment(marker: str) -> None:
    named = {**os.environ, "LOSSBENCH_RUN": "zzzz"}
    mine = subprocess.Popen(["sleep", marker], env=named, start_new_session=True)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        assert cgroups.end_started_for("zzzz") == [mine.pid]
        assert mine.wait(60) == -9 and other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_group_goes_with_those_that_were_made_below_it(marker: str) -> None:
    if not has_groups():
        pytest.skip("no cgroup v2 that we may write to")
    path = cgroups.folder(f"t{os.getpid()}")
    assert path is not None and cgroups.make(path)
    (path / "below").mkdir()
    process = subprocess.Popen(["sleep", marker], preexec_fn=lambda: cgroups.join(str(path / "below" / "cgroup.procs")))
    assert cgroups.remove(path) == [process.pid] and not path.exists()
    assert process.wait(60) == -9
