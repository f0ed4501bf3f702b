"""Slurm: inside an allocation its nodes are the machines of a lab, and agents are started by srun; outside of one, a
batch script asks for it. Scheduling is Slurm's own business."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lossbench.errors import NotAbleError, UsageError
from lossbench.files import write_durably
from lossbench.processes import inherited
from lossbench.spec.lab import Lab
from lossbench.spec.userfile import check

COMMAND_S = 60.0


def inside(environment: Mapping[str, str] = os.environ) -> bool:
    return bool(environment.get("SLURM_JOB_ID"))


def lab(*, interface: str, python: str = "", sudo: bool = False, past_rdma: bool = False) -> Lab:
    """The nodes of this allocation, in Slurm's order. `interface`: of the data network, the same on every node."""
    nodes = _asked(["scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")]).split()
    if len(nodes) < 2:
        raise NotAbleError(f"the allocation has {len(nodes)} nodes", next_step="salloc --nodes 2 or more")
    if not interface:
        raise UsageError("which interface is the data network's?", next_step="--interface eth1")
    each = {"interface": interface, "python": python or sys.executable, "sudo": sudo, "past_rdma": past_rdma}
    machines = [{"ssh": node, **each} for node in nodes]
    name = f"slurm job {os.environ['SLURM_JOB_ID']}"
    return check(Lab, {"name": name, "by": "slurm", "machine": machines}, origin=name)


def script(arguments: Sequence[str], *, nodes: int, options: Sequence[str] = ()) -> str:
    """The same command again, inside an allocation. `options`: for sbatch, such as --partition=gpu."""
    if any(not one.isprintable() for one in options):
        raise UsageError("an option for sbatch is one line", next_step="--sbatch once for each")
    asked = [f"--nodes={nodes}", "--ntasks-per-node=1", "--exclusive", "--output=lossbench-%j.out", *options]
    lines = ["#!/bin/sh", *(f"#SBATCH {one}" for one in asked), ""]
    return "\n".join([*lines, shlex.join([sys.executable, "-P", "-m", "lossbench.cli.main", *arguments])]) + "\n"


def submit(text: str, folder: Path) -> tuple[Path, str]:
    """(the script's file, what sbatch says)."""
    path = folder / "lossbench.sbatch"
    if path.is_symlink():
        raise NotAbleError(f"{path} is a link, and would be written through", next_step="remove it")
    write_durably(path, text)
    return path, _asked(["sbatch", str(path)]).strip()


def _asked(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL, env=inherited()
        )
    except FileNotFoundError:
        raise NotAbleError(f"no {command[0]} here", next_step="log in where Slurm's commands are") from None
    except subprocess.TimeoutExpired:
        raise NotAbleError(f"{command[0]} does not answer", next_step="sinfo: is the controller up?") from None
    if done.returncode:
        words = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        raise NotAbleError(f"{command[0]}: {words}")
    return done.stdout
