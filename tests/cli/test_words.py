"""What a plan says, and what it refuses as the run would; no network is made for it."""

from __future__ import annotations

import inspect
import os
import sys
import tomllib
from dataclasses import replace
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
from lossbench.spec.delay import Delay
from lossbench.spec.experiment import Impair, Workload
from lossbench.spec.losses import BlockLoss, IidLoss, TraceLoss
from lossbench.spec.profile import Match, Profile, load, names

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
    assert "loss_3 (uplink): 3 % lost\n" in said and said.endswith("  backend: ebpf")
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
    assert said.startswith("refused: no backend of this machine can do what was asked"), "before any of the plan"
    with pytest.raises(UsageError, match="no such script: rong.py"):
        shown(monkeypatch, tmp_path, Asked(command=("python", "rong.py")))


def test_a_refused_plan_names_the_rate_that_makes_it_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: of the whole plan first, and then "give one"."""
    here: dict[str, Any] = {"tun": None, "qdiscs": {"clsact": True, "htb": True, "netem": False}}
    asked = Asked(command=("true",), hosts="8", loss="3%", burst="8", delay="20ms")
    said = shown(monkeypatch, tmp_path, asked, **here)
    assert said.startswith("refused: backend relay carries") and "with --rate 50mbit (of a suite" in said
    said = shown(monkeypatch, tmp_path, replace(asked, rate="50mbit"), **here)
    assert "(uplink): 3 % lost, in bursts of 8 on average; kept for 20 ms\n" in said and "backend: ebpf, relay" in said
    assert "at most 20 min of workload (2 runs x a time limit of 10 min)" in said
    entry = Impair(profile=load("wifi_like"), hosts=("h1", "h2"), to_s=5, from_step=3)
    assert preview._in_force(entry).startswith("wifi_like (uplink, h1, h2, until 5 s, from step 3): ")


@pytest.mark.parametrize("name", names())
def test_what_a_profile_does_is_said_in_words(name: str) -> None:
    """Every number of its file, and of a burst what it amounts to."""
    profile = load(name)
    said = profile.in_words()
    assert f"{100 * profile.mean_loss():.3g} % lost" in said or not profile.mean_loss()
    assert profile.delay is None or f"{profile.delay.mean_ms:g} ms" in said
    assert ("overtake" in said) == (profile.reorder is not None) and ("slots" in said) == (profile.slot is not None)
    chain = None if isinstance(profile.loss, IidLoss | None) else profile.chain()
    assert ("bursts" in said) == (chain is not None)


def test_what_else_a_profile_may_do_is_said_too() -> None:
    said = Profile(
        why="x",
        loss=TraceLoss(model="trace", bits="0100"),
        delay=Delay(mean_ms=20, jitter_ms=5, distribution="normal"),
        duplicate_percent=1,
        corrupt_percent=2,
        rate_mbit=30,
        ecn=True,
        match=Match(protocol="tcp", destination_ports=(80,)),
    ).in_words()
    assert said == (
        "of tcp/80: 25 % lost, as in a trace of 4 packets, again and again; kept for 20 ms, spread by 5 ms (normal); "
        "1 % delivered twice; 2 % damaged; 30 Mbit/s; marked instead of lost where the packet allows it"
    )
    once = Profile(why="x", loss=TraceLoss(model="trace", bits="0100", loop=False)).in_words()
    assert once == "25 % lost of the first packets, as in a trace of 4 packets; then none"
    assert Profile(why="x", loss=BlockLoss(model="block", percent=5)).in_words() == "5 % lost, whole blocks at a time"


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
