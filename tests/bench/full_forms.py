"""What the cheapest and the dearest point of every full form take: a table, from runs that were shortened.

python tests/bench/full_forms.py results/full     after results/published/full-forms.toml, which says how to make them

Projected is training alone, at the mean step that was measured: judging models comes on top. A step of a run that
shared the machine with others takes longer than one alone would, so its projection is more than it would be.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lossbench.results import index
from lossbench.results.folders import SuiteFolder
from lossbench.results.models import RunSummary
from lossbench.results.naming import point_name
from lossbench.runs.many import planning, suite
from lossbench.runs.many.suite import Planned

HEAD = [
    "full form, point",
    "workers",
    "ms a step, mean (p99)",
    "GPU memory",
    "projected, a run",
    "fault, timing, outcome",
]


def first_record(folder: Path, kind: str) -> dict[str, Any]:
    for path in sorted((folder / "records").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if (record := json.loads(line))["kind"] == kind:
                return dict(record)
    return {}


def as_asked(one: Planned) -> dict[str, Any]:
    """The options of the same point when nothing is shortened; an arm that was changed says so behind its name."""
    every = planning.planned(one.experiment.name, [], None, full=True, out=Path(), resume=False)[2]
    for asked in every:
        if all(str(one.chosen.get(key)).startswith(str(value)) for key, value in asked.chosen.items()):
            return dict(asked.experiment.workload.options)
    return {}


def steps_of(options: dict[str, Any], per_epoch: int) -> int:
    return round(options["epochs"] * per_epoch) if "epochs" in options else int(options.get("steps", 0))


def row_of(one: Planned, done: RunSummary, folder: Path) -> list[str]:
    row = done.rows[0] if done.rows else {}
    steps = steps_of(as_asked(one), int(first_record(folder, "begin").get("steps_per_epoch", 1)))
    mean, tail, memory = (row.get(key) for key in ("ms_step_mean", "ms_step_p99", "gpu_mb"))
    return [
        f"{one.experiment.name}, {point_name(one.chosen)}",
        str(one.experiment.topology.hosts),
        f"{mean:.0f} ({tail:.0f})" if mean and tail else "-",
        f"{memory / 1000:.1f} GB" if memory else "-",
        f"{steps * mean / 60_000:.1f} min for {steps} steps" if mean and steps else "-",
        ", ".join(done.columns.values()),
    ]


def table(where: Path) -> list[list[str]]:
    out = []
    for found in index.scan(where)[0]:
        here, _, plan = suite.resume(found.folder)
        for one in plan:
            done = SuiteFolder(here.path).finished(one.number, point=one.chosen, seed=one.seed)
            left = [f"{one.experiment.name}, {point_name(one.chosen)}", *["-"] * (len(HEAD) - 2), "not run"]
            out.append(row_of(one, done, here.run(one.number)) if done is not None else left)
    return sorted(out)


def main() -> None:
    for cells in (HEAD, ["---"] * len(HEAD), *table(Path(sys.argv[1]))):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
