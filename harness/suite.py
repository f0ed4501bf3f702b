"""A suite: every point of an experiment's sweep, every seed, one run each; one folder, one summary. Resumable."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import machine, ranks, samples, store
from harness.errors import NotAbleError, UsageError
from harness.experiment import Experiment
from harness.nursery import Nurseries
from harness.run import Result, choose_backend, execute
from harness.store import SuiteFolder
from harness.verdict import Status

FORMAT = 1
Points = list[tuple[dict[str, Any], Experiment]]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One run to be made."""

    number: int
    chosen: dict[str, Any]
    experiment: Experiment
    seed: int

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.number, "point": self.chosen, "seed": self.seed,
            "experiment": self.experiment.model_dump(mode="json"),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    name: str
    run_id: str
    folder: Path
    summaries: tuple[dict[str, Any], ...]

    @property
    def status(self) -> Status:
        return max((Status[one["verdict"].upper()] for one in self.summaries), default=Status.UNKNOWN)

    def as_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id, "verdict": self.status.word, "dir": str(self.folder),
            "summary": list(self.summaries),
        }  # fmt: skip


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
    for key in dict.fromkeys(k for s in summaries for k in s if k not in ignored):
        values = [s[key] for s in summaries if isinstance(s.get(key), int | float) and not isinstance(s[key], bool)]
        if values:
            out[key] = sum(values) / len(values)
    return out


def plan_of(points: Points, *, seeds: int | None) -> list[Planned]:
    every = [(c, e, e.first_seed + n) for c, e in points for n in range(seeds or e.seeds)]
    return [Planned(number=n, chosen=c, experiment=e, seed=seed) for n, (c, e, seed) in enumerate(every)]


def run_suite(plan: list[Planned], *, out: Path, run_id: str, progress: Callable[..., None],
              resumed: SuiteFolder | None = None) -> SuiteResult:  # fmt: skip
    """Every point is checked against the machine before the first one runs."""
    kernel = machine.look()
    if kernel.namespaces is not None:
        raise NotAbleError(kernel.namespaces, next_step="run with sudo")
    for one in plan:
        choose_backend(one.experiment, kernel)
    ranks.prepare([one.experiment.workload for one in plan])
    folder = resumed or SuiteFolder.new(out, plan[0].experiment.name, run_id)
    nurseries = Nurseries()
    try:
        with folder.mine():
            if any(folder.finished(one.number) is None for one in plan):
                _write_plan(folder, plan, run_id)
            return run_plan(plan, folder=folder, run_id=run_id, kernel=kernel, progress=progress, nurseries=nurseries)
    finally:
        nurseries.close()


def run_plan(plan: list[Planned], *, folder: SuiteFolder, run_id: str, kernel: machine.Kernel,
             progress: Callable[..., None], nurseries: Nurseries) -> SuiteResult:  # fmt: skip
    """One run after the other; what is finished is on disk before the next begins, and never run again."""
    summaries: list[dict[str, Any]] = []
    for one in plan:
        done = folder.finished(one.number)
        if done is None:
            folder.clear(one.number)
            place = folder.run(one.number)
            result = execute(
                one.experiment, seed=one.seed, chosen=one.chosen, folder=place, kernel=kernel,
                progress=partial(progress, one, len(plan)), nurseries=nurseries,
            )  # fmt: skip
            done = summary(one.chosen, one.experiment, result)
            samples.pack(place)
            store.RunFolder(place).write("summary.json", done)
        summaries.append(done)
        so_far = SuiteResult(name=one.experiment.name, run_id=run_id, folder=folder.path, summaries=tuple(summaries))
        folder.write("summary.json", json.dumps(so_far.as_json(), indent=1, default=str) + "\n")
    return so_far


# --- the plan on disk ------------------------------------------------------------------------------------------------


def _write_plan(folder: SuiteFolder, plan: list[Planned], run_id: str) -> None:
    sessions = read_plan(folder.path)["sessions"] if (folder.path / "suite.json").exists() else []
    now = store.session()
    if now["git"].get("dirty"):
        folder.write(f"{now['git']['diff_sha256']}.diff", store.git_diff())
    content = {
        "format": FORMAT, "run_id": run_id, "suite": plan[0].experiment.name, "why": plan[0].experiment.why,
        "sessions": [*sessions, now], "plan": [one.as_json() for one in plan],
    }  # fmt: skip
    folder.write("suite.json", json.dumps(content, indent=1, default=str) + "\n")


def read_plan(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "suite.json").read_text(encoding="utf-8"))
        return {"sessions": found["sessions"], "run_id": found["run_id"], "plan": found["plan"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder} can't be resumed: its suite.json can't be read ({error})") from None


def resume(folder: Path) -> tuple[SuiteFolder, str, list[Planned]]:
    """What was planned there, as it was planned: later changes of the suite's file do not matter."""
    found = read_plan(folder)
    plan = [
        Planned(
            number=one["number"], chosen=one["point"], experiment=Experiment.model_validate(one["experiment"]),
            seed=one["seed"],
        )
        for one in found["plan"]
    ]  # fmt: skip
    return SuiteFolder(folder), found["run_id"], plan


def newest_unfinished(out: Path, plan: list[Planned]) -> Path:
    """Of the suites in `out` that planned exactly this."""
    wanted = json.loads(json.dumps([one.as_json() for one in plan]))
    for path in sorted(out.glob(f"*_{plan[0].experiment.name}_*"), reverse=True):
        try:
            same = read_plan(path)["plan"] == wanted
        except UsageError:
            continue
        if same and any(SuiteFolder(path).finished(one.number) is None for one in plan):
            return path
    raise UsageError(
        f"nothing to resume: no unfinished run in {out} was planned like this",
        next_step="give the settings it was started with, or its folder: lossbench run FOLDER --resume",
    )
