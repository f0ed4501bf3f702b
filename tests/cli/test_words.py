"""What a plan says, and what it refuses as the run would; no network is made for it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lossbench.cli.making import preview
from lossbench.errors import NotAbleError, UsageError
from lossbench.net.kernel import Kernel
from lossbench.runs.launch.program import _present
from lossbench.spec.asking.adhoc import Asked

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
