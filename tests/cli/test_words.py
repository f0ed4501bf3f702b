"""What a plan says, and what it refuses as the run would; no network is made for it."""

from __future__ import annotations

import inspect
import os
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lossbench.cli.making import init, preview, run
from lossbench.errors import NotAbleError, UsageError
from lossbench.net.kernel import Kernel
from lossbench.runs.ground import ThisMachine
from lossbench.runs.launch.program import _present
from lossbench.spec.asking import adhoc, points, written
from lossbench.spec.asking.adhoc import Asked
from lossbench.spec.experiment import Workload

QDISCS = ("clsact", "htb", "fq", "prio", "tbf")


def kernel(**how: Any) -> Kernel:
    """One that has eBPF, and neither netem nor a TUN device."""
    return Kernel(
        **{
            "namespaces": None,
            "qdiscs": dict.fromkeys(QDISCS, True) | {"netem": False},
            "classifiers": {"bpf": True, "u32": True},
            "mirred": True,
            "ifb": True,
            "bpf": None,
            "tun": "not allowed",
            "offloads": None,
            **how,
        }
    )


def shown(monkeypatch: pytest.MonkeyPatch, folder: Path, asked: Asked, *, machines: int = 0, **how: Any) -> str:
    said: list[str] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(preview, "say", said.append)
    monkeypatch.setattr(Kernel, "tried", lambda: kernel(**how))
    try:
        preview.show(asked, out=folder / "runs", machines=machines)
    except NotAbleError as error:
        said.append(f"refused: {error}")
    return "\n".join(said)


def test_a_plan_names_its_backend_and_the_direction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown(monkeypatch, tmp_path, Asked(command=("true",), loss="3%"))
    assert "loss_3 (uplink)" in said and said.endswith("  backend: ebpf")
    said = shown(monkeypatch, tmp_path, Asked(command=("true",), loss="3%"), namespaces="no permission")
    assert said.endswith("  not on this machine: no permission")
    said = shown(monkeypatch, tmp_path, Asked(command=("rong",), loss="3%"), machines=3)
    assert "3 hosts" in said and "not asked" in said, "what is there is there to say"


def test_a_plan_that_no_backend_can_do_is_refused_as_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: a delay was planned where no backend has one, and a script that is not there."""
    without = {"qdiscs": {"clsact": True, "netem": False}}
    said = shown(monkeypatch, tmp_path, Asked(command=("true",), delay="20ms"), **without)
    assert "20_ms (uplink)" in said and "refused: no backend of this machine can do what was asked" in said
    with pytest.raises(UsageError, match="no such script: rong.py"):
        shown(monkeypatch, tmp_path, Asked(command=("python", "rong.py")))


def test_torchrun_is_refused_unless_it_knows_of_the_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "torchrun"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UsageError, match="world of its own; lossbench sets what torchrun sets: -- python train.py"):
        _present(["torchrun", "train.py"])
    assert _present(["torchrun", "--nnodes=4", "train.py"])[0] == "torchrun"


def test_the_list_of_schemas_has_all_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: without `commands` and `covers`, which it makes."""
    from lossbench.cli import schema

    said: list[str] = []
    monkeypatch.setattr(schema, "say", said.append)
    schema.schema(SimpleNamespace(), kind="", markdown=False)  # type: ignore[arg-type]
    assert said[0].splitlines()[-2:] == ["commands", "covers"]


OF_THIS_ONCE = {
    *("suite", "arm", "full", "until"),  # a command has no arms and no full form, and none can end by --until
    *("out", "resume", "dry_run", "tee", "as_json", "html", "plots", "junit", "github_summary", "tag", "note"),
    *("lab", "slurm", "nodes", "interface", "sbatch", "sudo", "past_rdma", "yes_these_nics"),
}


def test_init_takes_every_option_of_run_that_a_file_can_hold() -> None:
    """As it was: no --seeds, --capture, --set, --backend, --data-dir; what it wrote was not what the words ran."""
    taken = {verb: set(inspect.signature(verb).parameters) - {"ctx"} for verb in (run.run, init.init)}
    assert taken[run.run] - taken[init.init] == OF_THIS_ONCE
    assert taken[init.init] - taken[run.run] == {"file"}


@pytest.mark.parametrize(
    "settings",
    [
        ["seeds=3", "capture.packets=100000", "backend=simulated"],
        ["topology.hosts=3", "topology.rate_mbit=1gbit", "topology.mtu=1400"],
        ["impair.0.direction=both", 'essential=["fault"]', "probe.packets=500"],
        ["workload.options.data_dir='/some where'", "workload.barrier=true", "workload.time_limit_s=20m"],
        ["why=a sentence, with a [bracket]", "shaping.queue=fifo", "capture.bytes=64"],
    ],
)
def test_what_is_set_stands_in_the_file_that_init_writes(settings: list[str]) -> None:
    asked, file = Asked(delay="5ms", rate="1gbit", sweep=("loss=1,2",)), Path("mine.toml")
    text = written.text(asked, settings=settings, file=file)
    ran = points.points_of(tomllib.loads(adhoc.text(asked)), path=file, settings=settings)
    assert points.points_of(tomllib.loads(text), path=file, settings=[]) == ran
    assert written.text(asked, settings=[], file=file) == adhoc.text(asked)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("topolgy.hosts=2", "unknown key 'topolgy'"),
        ('sweep={"topology.hosts" = [2, 3]}', "can't be written at its place; leave it out, and edit the file"),
    ],
)
def test_what_has_no_place_in_a_file_is_no_line_of_it(setting: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        written.text(Asked(), settings=[setting], file=Path("mine.toml"))


@pytest.mark.parametrize("out_of_reach", [sys.executable, "reader", "train.py"])
def test_what_an_ordinary_user_may_not_read_is_said_before_a_network_is_built(
    out_of_reach: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: Permission denied from the first rank, with the network built and the advice to --resume."""
    reader = tmp_path / "reader"
    reader.write_text("")
    (tmp_path / "train.py").write_text(f"#!{reader}\n")
    (tmp_path / "train.py").chmod(0o755)
    reader.chmod(0o755)
    able = os.access
    refused = str(reader) if out_of_reach == "reader" else out_of_reach
    monkeypatch.setattr(os, "access", lambda path, mode, **how: str(path) != refused and able(path, mode, **how))
    command = ("./train.py",) if out_of_reach == "reader" else ("python", "train.py")
    said = shown(monkeypatch, tmp_path, Asked(command=command))
    assert said.startswith(f"refused: {refused}"), said
    assert "can't be read without root; chmod a+rX on it and on the folders above it, or run with sudo" in said
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotAbleError):
        ThisMachine(kernel()).check(Workload(command=command))
