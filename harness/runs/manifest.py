"""The manifest: enough to understand a run and to repeat it, written before anything happens."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from lossbench.contract import SEEDS_VERSION
from lossbench.results import folders, machine
from lossbench.results.provenance import git_state, of_program
from lossbench.runs.ground import About
from lossbench.runs.launch.program import own_programs
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import path_loss, rules_in_force

HOOK = "MTU-sized packets of a host on entering its switch port (uplink) or leaving it (downlink)"
HOOK_LAB = "packets of the wire at a machine's own interface, on leaving it (uplink) or come to it (downlink)"


def manifest(
    experiment: Experiment,
    seed: int,
    chosen: dict[str, Any],
    backend: str,
    why: str,
    run_id: str,
    folder: Path,
    about: About,
) -> dict[str, Any]:
    topology = experiment.topology
    rules = rules_in_force(experiment, seed=seed)
    hosts = topology.all_hosts()
    losses = {
        f"{a.name} to {b.name}": round(path_loss(rules, source=a, destination=b, family=topology.family), 9)
        for a in hosts
        for b in hosts
        if a != b
    }
    distinct = sorted(set(losses.values()))
    programs = [of_program(command, Path.cwd(), each=True) for command in own_programs([experiment])]
    return {
        "run_id": run_id,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": folders.command_line(),
        "seed": seed,
        "seeds_version": SEEDS_VERSION,
        "chosen": chosen,
        "experiment": experiment.model_dump(mode="json"),
        "profiles": {e.profile.name: e.profile.model_dump(mode="json") for e in experiment.impair},
        "backend": {"name": backend, "why": why},
        "warnings": [text for e in experiment.impair for text in e.profile.warnings()],
        "hook": HOOK_LAB if topology.machines else HOOK,
        "path_loss": distinct[0] if len(distinct) == 1 else losses,  # when the run starts; see timeline.jsonl
        "machine": machine.facts(),  # of a lab: the one that controls
        "gpus": machine.gpus(),
        "machines": about.machines,
        "lab": about.lab,
        "git": git_state(),
        "program": programs[0] if programs else None,
        "programs": programs,
        # Beside the experiment: of the lossy transport. What ran is in every rank's records.
        "transport": {name: os.environ.get(f"LOSSBENCH_{name.upper()}", "") for name in ("policy", "native")},
        "repeat": f"lossbench replay {folder} {about.again}".rstrip(),
    }
