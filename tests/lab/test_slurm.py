"""Slurm's own daemons in namespaces: a suite on the nodes of an allocation."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lossbench import api
from lossbench.cli.app import app
from lossbench.cli.making import run
from lossbench.errors import NotAbleError, UsageError
from lossbench.runs.lab import slurm
from tests.forms import full
from tests.lab import cluster
from tests.lab.machines import COMMAND, machines
from tests.lab.machines import missing as no_ssh
from tests.nic.wire import until

LACKS = cluster.missing() or no_ssh()


@full
@pytest.mark.netns
@pytest.mark.skipif(LACKS is not None, reason=LACKS or "")
@pytest.mark.parametrize("nodes, more", [(2, []), (3, ["--sudo"])])
def test_a_suite_is_submitted_and_runs_on_the_nodes_that_slurm_gives(
    tmp_path: Path, nodes: int, more: list[str]
) -> None:
    """From the command outside, through sbatch, to agents by srun on every node; there also by sudo."""
    if more and shutil.which("sudo") is None:
        pytest.skip("needs sudo")
    with machines(tmp_path, count=nodes) as made, cluster.cluster(made) as slurm_cluster:
        before = made.snapshots()
        asked = ["run", "proof", "--set", "probe.packets=4000", "--slurm", "--nodes", str(nodes), "--interface", "eth0"]
        done = slurm_cluster.run(*COMMAND, *asked, *more, "--out", str(tmp_path / "runs"))
        assert done.returncode == 0 and "Submitted batch job" in done.stdout, done.stderr
        number = done.stdout.split("Submitted batch job ")[1].split(";")[0]
        said = slurm_cluster.folder / f"lossbench-{number}.out"
        assert until(lambda: said.exists() and "verdict:" in said.read_text(), seconds=180), slurm_cluster.said()
        text = said.read_text()
        assert f"{nodes} hosts, backend" in text and "verdict: valid" in text and text.count("exact") == nodes
        assert until(lambda: made.snapshots() == before)


def test_a_script_asks_for_whole_nodes_and_repeats_the_command_quoted() -> None:
    text = slurm.script(["run", "my suite.toml", "--slurm"], nodes=3, options=["--partition=gpu"])
    assert "#SBATCH --nodes=3\n" in text and "#SBATCH --partition=gpu\n" in text and "--exclusive" in text
    assert text.splitlines()[-1] == f"{sys.executable} -P -m lossbench.cli.main run 'my suite.toml' --slurm"


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAbleError, match="no sbatch here"):
        slurm.submit(slurm.script([], nodes=2), tmp_path)
    with pytest.raises(UsageError, match="one line"):
        slurm.script([], nodes=2, options=["--x\n--y"])


def test_a_user_becomes_root_on_the_nodes_by_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: nobody could ask for it, and agents that are not root refuse."""
    from lossbench.net.lab.channel import agent_command

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm, "_asked", lambda _: "n0\nn1\n")
    asked = {"slurm": True, "interface": "eth1", "nodes": 2, "sbatch": []}
    for sudo in (False, True):
        lab = run._lab_of(None, **asked, sudo=sudo)
        command = agent_command(lab, lab.machine[0], ["python3"])
        assert (command[-3:-1] == ["sudo", "-n"]) == sudo


@pytest.mark.parametrize("past", [False, True])
def test_nodes_whose_interface_has_an_rdma_device_can_be_used_if_one_says_so(
    monkeypatch: pytest.MonkeyPatch, past: bool
) -> None:
    """As it was: nobody could say it, and such nodes were refused."""
    said: list[Any] = []
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm, "_asked", lambda _: "n0\nn1\n")
    monkeypatch.setattr(run, "_made", lambda _, chosen, *__, **___: said.append(chosen["lab"]))
    more = ["--past-rdma"] if past else []
    done = CliRunner().invoke(app, ["run", "proof", "--slurm", "--interface", "eth1", *more])
    assert done.exit_code == 0, done.output
    assert [one.past_rdma for one in said[0].machine] == [past, past]
    done = CliRunner().invoke(app, ["run", "proof", "--past-rdma"])
    assert "--past-rdma goes with --slurm" in str(done.exception)


@pytest.mark.parametrize("where", [["--slurm", "--interface", "eth1"], ["--lab", "lab.toml"], []])
def test_several_ranks_of_a_script_can_be_asked_for_on_every_host(
    monkeypatch: pytest.MonkeyPatch, where: list[str]
) -> None:
    """As it was: under --slurm not at all, in a lab by its file alone, which then refused every suite."""
    said: list[Any] = []
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm, "_asked", lambda _: "n0\nn1\n")
    monkeypatch.setattr(run, "_with_rights", lambda **_: None)
    monkeypatch.setattr(run, "_made", lambda asked, chosen, *_, **__: said.append((asked, chosen["settings"])))
    done = CliRunner().invoke(app, ["run", *where, "--ranks", "8", "--", "python", "train.py"])
    assert done.exit_code == 0, done.output
    ((asked, settings),) = said
    (plan, _) = api.planned(replace(asked, loss="3%"), settings=settings, machines=2)
    assert plan.experiment.workload.torchrun == 8
    done = CliRunner().invoke(app, ["run", "proof", *where, "--ranks", "8"])
    assert "--ranks applies only to a command" in str(done.exception) and "workload.torchrun=8" in str(done.exception)


def test_a_batch_script_is_not_written_through_a_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As it was: whoever can write to the folder chose which file of the user's became the script."""
    monkeypatch.setattr(slurm, "_asked", lambda _: "Submitted batch job 7")
    (tmp_path / "lossbench.sbatch").write_text("of the time before")
    path, _ = slurm.submit("#!/bin/sh\n", tmp_path)
    assert path.read_text() == "#!/bin/sh\n"
    mine = tmp_path / "mine"
    mine.write_text("mine")
    path.unlink()
    path.symlink_to(mine)
    with pytest.raises(NotAbleError, match="is a link"):
        slurm.submit("#!/bin/sh\n", tmp_path)
    assert mine.read_text() == "mine"
