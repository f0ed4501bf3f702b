"""What a program has to say of all its ranks together, once they have ended: its own module reads the run's folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lossbench.processes import module_command, module_environment
from lossbench.runs.launch.module import OURS
from lossbench.runs.launch.program import RUNNER
from lossbench.spec import about
from lossbench.spec.experiment import Experiment, Program

LIMIT_S = 120.0


def conclusions(experiment: Experiment, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Records by role, as if a rank had said them."""
    programs: list[tuple[str, Program]] = [("", experiment.workload), *((one.role, one) for one in experiment.beside)]
    for role, program in programs:
        module = "" if program.command else about.about(program.name).conclude
        if module:
            for record in _concluded(module, folder, role, program):
                yield role, {"rank": 0, **record}


def _concluded(module: str, folder: Path, role: str, program: Program) -> list[dict[str, Any]]:
    command = module_command(module) if module.startswith(OURS) else module_command(RUNNER, module)
    asked = {"folder": str(folder), "role": role, "options": dict(program.options)}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(asked),
            env=module_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [{"kind": "error", "message": f"{module} did not come to a conclusion in {LIMIT_S:g} s"}]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        return [{"kind": "error", "message": f"{module} failed: {last}"}]
    try:
        return [record for line in done.stdout.splitlines() if isinstance(record := json.loads(line), dict)]
    except ValueError as error:
        return [{"kind": "error", "message": f"{module} printed something that is no record: {error}"}]
