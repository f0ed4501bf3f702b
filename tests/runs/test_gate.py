"""Programs begin with the run's clock, whether they know our contract or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lossbench.errors import RunError
from lossbench.net.host.place import Here
from lossbench.results.folders import RunFolder
from lossbench.runs import watch
from lossbench.runs.launch import companion, gate
from lossbench.runs.launch.environment import Identity
from lossbench.runs.launch.nursery import Nurseries
from lossbench.runs.launch.program import Exec, Launcher
from lossbench.runs.launch.ranks import Ranks
from lossbench.spec.experiment import Experiment

BEGAN = 'import pathlib, sys, time; pathlib.Path(sys.argv[1], "began").open("a").write(f"{time.monotonic()}\\n")'
LIMIT_S = 120.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "private").mkdir()
    return tmp_path


def begun(folder: Path) -> list[float]:
    """When commands began, by the monotonic clock."""
    try:
        return [float(line) for line in (folder / "began").read_text().splitlines()]
    except FileNotFoundError:
        return []


def ranks_of(folder: Path, *, hosts: int = 2, launcher: Launcher | None = None, **asked: Any) -> Ranks:
    store = RunFolder(folder / "run")
    store.make()
    text = {"name": "mine", "topology": {"hosts": hosts}, **asked}
    ranks = Ranks(
        folder=folder / "private",
        experiment=Experiment.model_validate(text),
        store=store,
        place_of=Here,
        identity=Identity(run_id="test", token=1, seed=0),
        launcher=launcher or Exec(),
    )
    ranks.prepare()
    return ranks


def wait_for(ranks: Ranks, happened: Any) -> None:
    limit = time.monotonic() + LIMIT_S
    while not happened():
        ranks.read()
        assert time.monotonic() < limit
        time.sleep(0.01)


def of_workload(*command: str) -> dict[str, Any]:
    return {"workload": {"barrier": False, "command": command}}


def of_beside(*command: str, **more: Any) -> dict[str, Any]:
    return {"beside": [{"role": "lead", "barrier": False, "command": command, **more}]}


@pytest.mark.parametrize("role", ["", "lead"])
def test_a_command_begins_with_the_runs_clock(folder: Path, role: str) -> None:
    """As it was: when it was launched, which on forty hosts was seconds before a window in time began to count."""
    command = ("python", "-c", BEGAN, str(folder))
    ranks = ranks_of(folder, **(of_beside(*command, foreground=True) if role else of_workload(*command)))
    begins_at_the_gate(ranks, folder, role)


def begins_at_the_gate(ranks: Ranks, folder: Path, role: str = "") -> None:
    try:
        ranks.start()
        mine = [member for member in ranks.members if member.role == role]
        wait_for(ranks, lambda: begun(folder) or all(member.ready for member in mine))
        assert not begun(folder)
        wait_for(ranks, lambda: not ranks.not_ready() and not ranks.not_at_gate())
        opened = ranks.open_gate()
        wait_for(ranks, lambda: len(begun(folder)) == len(mine))
        assert min(begun(folder)) >= opened
        ranks.check_alive()
    finally:
        ranks.end()


@pytest.mark.parametrize("preload", [False, True])
def test_a_module_of_the_users_begins_with_the_runs_clock(
    folder: Path, preload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.py").write_text(BEGAN.replace("sys.argv[1]", repr(str(folder))))
    if preload:
        (folder / "mine.workload.toml").write_text('preload = ["json"]')
    monkeypatch.chdir(folder)
    launcher = Nurseries()
    try:
        ranks = ranks_of(folder, launcher=launcher, workload={"name": "mine", "barrier": False})
        begins_at_the_gate(ranks, folder)
    finally:
        launcher.close()


def test_a_command_that_says_ready_itself_is_let_through_as_well(folder: Path) -> None:
    ready = "from lossbench.contract import Door; Door.from_environment().ready(); " + BEGAN
    begins_at_the_gate(ranks_of(folder, **of_workload("python", "-c", ready, str(folder))), folder)


def test_a_service_beside_the_workload_begins_before_it(folder: Path) -> None:
    ranks = ranks_of(folder, **of_beside("python", "-c", BEGAN, str(folder), hosts=["h1"]))
    try:
        ranks.start()
        wait_for(ranks, lambda: begun(folder))
    finally:
        ranks.end()


def test_a_program_from_second_0_on_begins_with_the_clock(folder: Path) -> None:
    """As it was: 0 was taken for nothing, and it began before."""
    ranks = ranks_of(folder, **of_beside("python", "-c", BEGAN, str(folder), hosts=["h1"], from_s=0))
    try:
        ranks.start()
        assert [member.role for member in ranks.members] == ["", ""]
        ranks.come_and_go(0.0)
        wait_for(ranks, lambda: begun(folder))
    finally:
        ranks.end()


@pytest.mark.parametrize("role", ["", "lead"])
def test_a_command_that_went_away_is_said_when_it_should_begin(folder: Path, role: str) -> None:
    mine = folder / "mine.sh"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    ranks = ranks_of(folder, **(of_beside(str(mine), foreground=True) if role else of_workload(str(mine))))
    try:
        ranks.start()
        wait_for(ranks, lambda: not ranks.not_ready() and not ranks.not_at_gate())
        mine.unlink()
        ranks.open_gate()
        wait_for(ranks, lambda: any(member.process.poll() for member in ranks.members))
        with pytest.raises(RunError, match="mine.sh: No such file"):
            ranks.check_alive()
    finally:
        ranks.end()


class Launched:
    """Nothing."""

    pid = 1

    def poll(self) -> int | None:
        return 0

    def signal(self, number: int) -> None: ...

    def catches(self, number: int) -> bool:
        return False

    def reap(self) -> None: ...


class Nobody(Exec):
    def start(self, start: Any) -> Any:
        return Launched()


@pytest.mark.parametrize(("barrier", "bytes_"), [(True, 2 * 2 + 3), (False, 2 * 3 + 3)])
def test_every_process_that_may_wait_finds_a_byte(folder: Path, barrier: bool, bytes_: int) -> None:
    """As it was: of a program beside the workload one for each host, however many ranks torchrun starts there."""
    script = {"command": ["python", "train.py"]}
    workload = {**script, "torchrun": 2, "barrier": barrier}
    beside = [{**script, "torchrun": 3, "role": "web", "hosts": ["h1"]}]
    ranks = ranks_of(folder, launcher=Nobody(), workload=workload, beside=beside)
    try:
        ranks.start()
        ranks.open_gate()
        assert len(os.read(ranks._gate, 100)) == bytes_
    finally:
        ranks.end()


# --- while it waits --------------------------------------------------------------------------------------------------


COMMAND = ["touch", "begun"]
WAITING = {"companion": companion.command(COMMAND, held=True), "becomes it": gate.command(COMMAND)}


@pytest.mark.parametrize("command", WAITING.values(), ids=WAITING.keys())
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, None])
def test_what_waits_at_the_gate_ends_when_it_is_told_to_or_nobody_opens_it_any_more(
    tmp_path: Path, command: list[str], how: signal.Signals | None
) -> None:
    os.mkfifo(tmp_path / "go")
    harness = os.open(tmp_path / "go", os.O_RDWR)
    own = {"LOSSBENCH_RECORDS": str(tmp_path / "said"), "LOSSBENCH_GO": str(tmp_path / "go")}
    process = subprocess.Popen(
        command, env={**os.environ, **own}, cwd=tmp_path, text=True, stderr=subprocess.PIPE, start_new_session=True
    )
    limit = time.monotonic() + LIMIT_S
    while not (tmp_path / "said").exists() or not (tmp_path / "said").read_text().endswith("\n"):
        assert time.monotonic() < limit
        time.sleep(0.01)
    if how is None:
        while f"{tmp_path}/go" not in [os.readlink(one) for one in Path(f"/proc/{process.pid}/fd").iterdir()]:
            assert time.monotonic() < limit
        os.close(harness)
    else:
        os.killpg(process.pid, how)
    _, said = process.communicate(timeout=LIMIT_S)
    if how is None:
        assert process.returncode == 1 and said == "the run ended before its programs began\n"
        assert json.loads((tmp_path / "said").read_text())["kind"] == "ready"
    else:
        os.close(harness)
        assert process.returncode == -how and not said
    assert not (tmp_path / "begun").exists()


def test_a_program_finds_signals_as_it_would_without_a_gate(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    harness = os.open(tmp_path / "go", os.O_RDWR)
    os.write(harness, b"g")
    with subprocess.Popen(
        gate.command(["grep", "SigIgn", "/proc/self/status"]),
        env={**os.environ, "LOSSBENCH_GO": str(tmp_path / "go")},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        there, _ = process.communicate(timeout=LIMIT_S)
    os.close(harness)
    alone = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True, check=True)
    assert there == alone.stdout


class Slow:
    """Ranks of which one more has come to the gate at every look."""

    def __init__(self, hosts: int) -> None:
        self.left = hosts

    def not_ready(self) -> list[str]:
        return []

    def not_at_gate(self) -> list[str]:
        self.left -= 1
        return [f"rank {rank}" for rank in range(self.left)]

    def read(self) -> list[Any]:
        return []

    def check_alive(self) -> None: ...

    def ended_early(self) -> bool:
        return False


@pytest.mark.parametrize(("limit_s", "ends"), [(300.0, False), (-1.0, True)])
def test_the_runs_own_limit_does_not_count_while_its_programs_are_launched(
    limit_s: float, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LAUNCH_LIMIT_S", limit_s)
    one = watch.Watch.__new__(watch.Watch)
    one.experiment = Experiment.model_validate({"name": "t", "workload": {"command": ["true"], "time_limit_s": 1e-6}})
    one.ranks, one.schedule = Slow(8), SimpleNamespace()  # type: ignore[assignment]
    if not ends:
        one._wait_until_ready()
        return
    with pytest.raises(RunError, match="rank 0, rank 1.* could not be launched"):
        one._wait_until_ready()
