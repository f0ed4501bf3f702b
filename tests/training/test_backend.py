"""torch programs on the backend "lossy", unchanged: every collective; DDP, ZeRO, FSDP2 on links that lose packets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from lossbench.contract import Door
from lossbench.net.kernel import Kernel
from lossbench.results.folders import RunFolder
from lossbench.runs import run
from lossbench.runs.ground import ThisMachine
from lossbench.runs.launch.nursery import Nurseries
from lossbench.spec.experiment import Experiment
from lossbench.spec.userfile import check
from lossbench.workloads.collective.where import own_address
from lossbench.workloads.collective.work import AllWork, Results, Work
from tests.forked import start
from tests.forms import forms

HERE = Path(__file__).parent
PATHS = f"{HERE.parent.parent}/.package:{HERE.parent.parent}"
pytestmark = pytest.mark.training


def torchrun(*arguments: str, world: int = 3, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", *arguments]
    variables = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=False)


def side_by_side(script: str, *, world: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """As torchrun starts them, without the imports of torch for each of them and for itself."""
    if os.environ.get("LOSSBENCH_REAL"):
        return torchrun(script, world=world, **environment)
    known = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "PYTHONPATH": PATHS}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        variables = [{**os.environ, **known, **environment, "RANK": str(rank)} for rank in range(world)]
        ranks = [start("torch", [script], output=out, errors=errors, environment=one) for one in variables]
        try:
            codes = [rank.wait(200) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        said = [(one.seek(0), one.read().decode())[1] for one in (out, errors)]
    return subprocess.CompletedProcess(script, next(filter(None, codes), 0), *said)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@forms("native", ["", "0"], ids=["compiled", "python"])
def test_every_collective_under_torchrun(native: str) -> None:
    done = torchrun(str(HERE / "every_collective.py"), LOSSBENCH_NATIVE=native)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("all is well") == 3


@forms("native", ["", "0"], ids=["compiled", "python"])
def test_habits_of_torch_programs(native: str) -> None:
    """A group made again on one store, a wait with a time, refused calls, forks, groups that end, dropped results,
    coalescing, meshes, a group's own timeout."""
    done = side_by_side(str(HERE / "habits.py"), world=2, LOSSBENCH_NATIVE=native, HABITS_PORT=free_port())
    assert done.returncode == 0, done.stderr[-3000:]
    both = "made again on one store", "refusals", "after a fork", "no thread is left", "nobody waits"
    for habit in (*both, "coalesced", "on a mesh"):
        assert done.stdout.count(habit) == 2, done.stdout
    for habit in ("a wait that ends", "a group with a time"):
        assert done.stdout.count(habit) == 1


def test_the_first_interface_of_a_list_that_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(rank=0, world_size=1, addresses=())
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothere0,lo")
    assert own_address(door) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothere0,nothere1")
    with pytest.raises(OSError, match="interface nothere0 or nothere1 has no IP address"):
        own_address(door)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("MASTER_ADDR", "::1")
    assert own_address(door) == "::1"


def test_a_wrong_policy_is_one_clear_line() -> None:
    done = side_by_side(str(HERE / "every_collective.py"), world=2, LOSSBENCH_POLICY="deadlines=3")
    assert done.returncode != 0
    assert "no setting 'deadlines': known are timeout_s" in done.stderr


def experiment(module: str, profile: str, **options: object) -> Experiment:
    """Under `make test-all` it is a user's own command, which is started by itself."""
    program: dict[str, object] = {"name": module}
    if os.environ.get("LOSSBENCH_REAL"):
        program = {"command": ["python", str(HERE.parent.parent / f"{module.replace('.', '/')}.py")]}
    return check(
        Experiment,
        {
            "name": "test",
            "topology": {"hosts": 3},
            "impair": [{"profile": profile}],
            "workload": {
                **program,
                "options": options,
                "time_limit_s": 200,
                "control_mb": 1000,  # what it is compared with is Gloo over the control link
            },
        },
        origin="test",
    )


@pytest.mark.netns
@forms(("wrapper", "policy"), [("ddp", ""), ("fsdp", ""), ("zero", ""), ("fsdp", "fsdp_gather=stale")])
def test_unchanged_training_lives_with_ten_percent_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrapper: str, policy: str
) -> None:
    monkeypatch.setenv("LOSSBENCH_POLICY", policy)
    monkeypatch.setenv("PYTHONPATH", PATHS)
    nurseries = Nurseries()
    try:
        result = run.execute(
            experiment("tests.training.toy", "loss_10", wrapper=wrapper, steps=100),
            seed=1,
            chosen={},
            folder=RunFolder(tmp_path / "run"),
            ground=ThisMachine(Kernel.tried(), nurseries),
            progress=lambda _: None,
        )
    finally:
        nurseries.close()
    assert result.verdict.columns["fault"].status == 0, result.verdict.columns["fault"].reasons()
    assert result.verdict.columns["outcome"].status == 0, result.verdict.columns["outcome"].reasons()
    for summary in result.watched.summaries:
        assert 0.08 < summary["lost"] / summary["data_expected"] < 0.12, "packets were really lost"
        parameters = 64 * 256 + 256 * 256 + 256 * 4
        assert summary["payload_bytes"] > 100 * 4 * parameters * 0.5, "the gradients went the lossy way"
        assert summary["lossy"] < 0.6 * summary["first_lossy"], "it learns"
    gap = np.mean([s["lossy"] / s["gloo"] - 1 for s in result.watched.summaries])
    print(f"{wrapper} {policy}: final loss {gap:+.1%} against reliable")
    assert gap < 0.5


def test_a_work_of_several_calls_is_over_when_all_are() -> None:
    """As it was: coalesced gathers were over with the last, which may end before the first."""

    class Ended(Work):
        def __init__(self, log: list[str], name: str, error: Exception | None = None) -> None:
            super().__init__([], Results())
            self._log, self._name, self._error = log, name, error

        def wait(self, timeout: object = None) -> bool:
            self._log.append(self._name)
            if self._error:
                raise self._error
            return True

        def is_completed(self) -> bool:
            return self._name != "first"

    log: list[str] = []
    both = AllWork([Ended(log, "first", OSError("lost")), Ended(log, "second")], [], Results())
    assert not both.is_completed()
    with pytest.raises(OSError, match="lost"):
        both.wait()
    assert log == ["first", "second"]
