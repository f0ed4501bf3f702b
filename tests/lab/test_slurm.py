"""Slurm's own daemons in namespaces: a suite on the nodes of an allocation."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

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
    from lossbench.cli.making import run
    from lossbench.net.lab.channel import agent_command

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm, "_asked", lambda _: "n0\nn1\n")
    asked = {"slurm": True, "interface": "eth1", "nodes": 2, "sbatch": []}
    for sudo in (False, True):
        lab = run._lab_of(None, **asked, sudo=sudo)
        command = agent_command(lab, lab.machine[0], ["python3"])
        assert (command[-3:-1] == ["sudo", "-n"]) == sudo
