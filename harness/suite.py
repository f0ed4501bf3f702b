"""A suite: every point of an experiment's sweep, every seed, one run each; one folder, one summary."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import machine, ranks, store
from harness.errors import NotAbleError
from harness.experiment import Experiment
from harness.journal import write_durably
from harness.nursery import Nurseries
from harness.run import Result, choose_backend, execute
from harness.verdict import Status


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    run_id: str
    folder: Path
    results: tuple[tuple[dict[str, Any], Experiment, Result], ...]

    @property
    def status(self) -> Status:
        return max((result.verdict.status for _, _, result in self.results), default=Status.UNKNOWN)

    def as_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "verdict": self.status.word,
            "dir": str(self.folder),
            "summary": [summary(chosen, experiment, result) for chosen, experiment, result in self.results],
        }


def summary(chosen: dict[str, Any], experiment: Experiment, result: Result) -> dict[str, Any]:
    """One row per run: what was asked, what the network did, what the workload said, the verdict."""
    rows = result.proof.rows if result.proof else ()
    seen, dropped = sum(r.kernel_seen or 0 for r in rows), sum(r.kernel_dropped or 0 for r in rows)
    sent, missing = _distinct_flows(rows)
    return {
        "point": chosen,
        "seed": result.seed,
        "dir": str(result.folder),
        "backend": result.backend,
        "hosts": experiment.topology.hosts,
        "profiles": [entry.profile.name for entry in experiment.impair],
        "asked_loss": sorted({r.asked for r in rows}),
        "kernel": {"seen": seen, "dropped": dropped, "loss": dropped / seen if seen else None},
        "receiver": {"sent": sent, "missing": missing, "loss": missing / sent if sent else None},
        "verdict": result.verdict.status.word,
        "columns": {name: column.status.word for name, column in result.verdict.columns.items()},
        "reasons": {name: column.reasons() for name, column in result.verdict.columns.items()},
        "marks": list(result.verdict.marks),
        "warnings": [text for e in experiment.impair for text in e.profile.warnings()],
        "workload": _means(result.summaries),
        "rows": list(result.rows),
        "duration_s": result.duration_s,
    }


def _distinct_flows(rows: Any) -> tuple[int, int]:
    """Packets sent and missing, each flow counted once: a flow that passes two hooks stands in two rows."""
    uplinks = [r for r in rows if r.hook.endswith("uplink")]
    return sum(r.receiver_sent for r in uplinks), sum(r.receiver_missing for r in uplinks)


def _means(summaries: tuple[dict[str, Any], ...]) -> dict[str, float]:
    """Numbers of the summary records, mean over ranks."""
    out: dict[str, float] = {}
    ignored = {"rank", "time_s"}
    for key in {k for s in summaries for k in s} - ignored:
        values = [s[key] for s in summaries if isinstance(s.get(key), int | float) and not isinstance(s[key], bool)]
        if values:
            out[key] = sum(values) / len(values)
    return out


def run_suite(points: list[tuple[dict[str, Any], Experiment]], *, seeds: int | None, out: Path, run_id: str,
              progress: Callable[[int, int, str], None]) -> SuiteResult:  # fmt: skip
    """Every point is checked against the machine before the first one runs."""
    kernel = machine.look()
    if kernel.namespaces is not None:
        raise NotAbleError(kernel.namespaces, next_step="run with sudo")
    for _, experiment in points:
        choose_backend(experiment, kernel)
    ranks.prepare([experiment.workload for _, experiment in points])
    plan = [
        (chosen, experiment, experiment.first_seed + number)
        for chosen, experiment in points
        for number in range(seeds or experiment.seeds)
    ]
    folder = store.new_suite_folder(out, points[0][1].name, run_id)
    nurseries = Nurseries()
    try:
        return run_plan(plan, folder=folder, run_id=run_id, kernel=kernel, progress=progress, nurseries=nurseries)
    finally:
        nurseries.close()


def run_plan(plan: list[tuple[dict[str, Any], Experiment, int]], *, folder: Path, run_id: str, kernel: machine.Kernel,
             progress: Callable[[int, int, str], None], nurseries: Nurseries) -> SuiteResult:  # fmt: skip
    """One run after the other; what is finished is on disk before the next begins."""
    results = []
    for number, (chosen, experiment, seed) in enumerate(plan):
        result = execute(
            experiment, seed=seed, chosen=chosen, folder=folder / f"{number:03d}", kernel=kernel,
            progress=partial(progress, number, len(plan)), nurseries=nurseries,
        )  # fmt: skip
        results.append((chosen, experiment, result))
        so_far = SuiteResult(run_id=run_id, folder=folder, results=tuple(results))
        store.RunFolder(folder / f"{number:03d}").write("summary.json", summary(chosen, experiment, result))
        with store.disk_errors(folder):
            write_durably(folder / "summary.json", json.dumps(so_far.as_json(), indent=1, default=str) + "\n")
    return so_far
