"""What an agent starts on its machine ends there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lossbench.net import journal
from lossbench.net.host import cgroups
from lossbench.runs.lab.crew import Crew
from tests.conftest import left_behind
from tests.forked import lossbench

pytestmark = pytest.mark.netns

# A daemon, nobody's child, with nothing of its environment left.
ESCAPE = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        null = os.open(os.devnull, os.O_RDWR)
        for one in (0, 1, 2): os.dup2(null, one)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
"""
HOLD = """
import sys, time
from lossbench.runs.lab.crew import Crew
Crew().start(key="r0", host="h0", program={"command": sys.argv[1:]}, variables={}, options="{}", gated=False)
time.sleep(600)
"""


@pytest.fixture
def escaped(tmp_path: Path) -> Path:
    """Where the daemon says its number."""
    group = cgroups.folder("test")
    if group is None or not os.access(group.parent, os.W_OK):
        pytest.skip("no cgroup v2 that we may write to")
    return tmp_path / "pid"


def daemon(said: Path) -> int:
    until = time.monotonic() + 60
    while not (said.exists() and said.read_text()):
        assert time.monotonic() < until, "it did not start"
        time.sleep(0.02)
    return int(said.read_text())


def gone(pid: int) -> bool:
    until = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def test_a_daemon_that_a_rank_left_on_a_machine_ends_with_the_run(escaped: Path) -> None:
    """As it was: only the rank's own process group was ended."""
    crew, before = Crew(), {one.id for one in journal.networks()}
    try:
        program = {"command": [sys.executable, "-c", ESCAPE, str(escaped)]}
        crew.start(key="r0", host="h0", program=program, variables={}, options="{}", gated=False)
        pid = daemon(escaped)
        crew.end()
        assert gone(pid) and {one.id for one in journal.networks()} == before
    finally:
        crew.close()


def test_and_after_a_kill_of_the_agent_by_clean(escaped: Path) -> None:
    command = [sys.executable, "-c", HOLD, sys.executable, "-c", ESCAPE, str(escaped)]
    agent = subprocess.Popen(command)
    pid = daemon(escaped)
    agent.kill()
    agent.wait()
    assert Path(f"/proc/{pid}").exists(), "nobody ended it yet"
    assert lossbench("clean").returncode == 0
    assert gone(pid) and left_behind() == []


BEGAN = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()"


def test_a_command_on_a_machine_begins_when_the_controller_says_so(tmp_path: Path) -> None:
    """As it was: when it was started there, machine after machine."""
    crew, said, until = Crew(), "", time.monotonic() + 60
    try:
        program = {"command": [sys.executable, "-c", BEGAN, str(tmp_path / "began")]}
        crew.start(key="r0", host="h0", program=program, variables={}, options="{}", gated=True, held=True)
        while '"ready"' not in said:
            assert time.monotonic() < until
            said += crew.news()["processes"].get("r0", {"records": ""})["records"]
        assert not (tmp_path / "began").exists()
        crew.let_go()
        while not (tmp_path / "began").exists():
            assert time.monotonic() < until
    finally:
        crew.close()


OLD = 3600.0


def test_an_agent_sweeps_what_killed_ones_left_and_never_a_living_ones_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: by the number in its name. Where machines or containers share a TMPDIR a living agent's folder went,
    since nobody here has that number."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("killed", "unlocked", "young"):
        (tmp_path / f"lossbench-agent-999999999-{name}").mkdir()
    (tmp_path / "lossbench-agent-999999999-killed" / "lock").touch()
    living = Crew()
    mine = living._place()
    elsewhere = mine.rename(tmp_path / "lossbench-agent-999999999-living")
    living._folder = elsewhere
    for name in ("killed", "unlocked", "living"):
        os.utime(tmp_path / f"lossbench-agent-999999999-{name}", (time.time() - OLD,) * 2)
    other = Crew()
    other._place()
    left = {one.name.rpartition("-")[2] for one in tmp_path.glob("lossbench-agent-999999999-*")}
    assert left == {"young", "living"}
    for one in (other, living):
        one.close()
    assert [one.name for one in tmp_path.iterdir()] == ["lossbench-agent-999999999-young"]
