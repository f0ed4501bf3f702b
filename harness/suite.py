"""A suite: every point of an experiment's sweep, every seed, one run each; one folder, one summary. Resumable."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import interrupt, machine, provenance, ranks, results, samples, store
from harness.contract import SEEDS_VERSION
from harness.errors import LossbenchError, NotAbleError, UsageError
from harness.experiment import Experiment
from harness.files import as_json
from harness.nursery import Nurseries
from harness.ranks import command_of_user
from harness.results import FORMAT, SuitePlan
from harness.run import Result, choose_backend, execute
from harness.store import SuiteFolder
from harness.userfile import check
from harness.verdict import Status

PLAN = "suite.json"
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
        "met": result.met.as_json(),
        "kernel": {"seen": seen, "dropped": dropped, "loss": dropped / seen if seen else None},
        "receiver": {"sent": sent, "missing": missing, "loss": missing / sent if sent else None},
        "verdict": result.verdict.status.word,
        "columns": {name: column.status.word for name, column in result.verdict.columns.items()},
        "reasons": {name: column.reasons() for name, column in result.verdict.columns.items()},
        "marks": list(result.verdict.marks),
        "not_judged": list(result.verdict.not_judged),
        "seeds_version": SEEDS_VERSION,
        "units": result.units,
        "warnings": [*(text for e in experiment.impair for text in e.profile.warnings()), *result.not_numbers],
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


def run_suite(plan: list[Planned], *, out: Path, run_id: str, progress: Callable[..., None], name: str = "",
              resumed: SuiteFolder | None = None) -> SuiteResult:  # fmt: skip
    """Every point is checked against the machine before the first one runs."""
    kernel = machine.look()
    if kernel.namespaces is not None:
        raise NotAbleError(kernel.namespaces, next_step="run with sudo")
    for one in plan:
        choose_backend(one.experiment, kernel)
        ranks.command_of(one.experiment.workload)
    ranks.prepare([one.experiment.workload for one in plan])
    name = name or plan[0].experiment.name
    folder = resumed or SuiteFolder.new(out, name, run_id)
    nurseries = Nurseries()
    try:
        with folder.mine():
            if unfinished(folder, plan):
                _write_plan(folder, plan, name=name, run_id=run_id)
            return run_plan(plan, folder=folder, run_id=run_id, kernel=kernel, progress=progress, nurseries=nurseries)
    except (LossbenchError, KeyboardInterrupt):
        interrupt.last_words(f"what was done is in {folder.path}; to go on: lossbench run {folder.path} --resume")
        raise
    finally:
        nurseries.close()


def unfinished(folder: SuiteFolder, plan: list[Planned]) -> list[Planned]:
    return [one for one in plan if folder.finished(one.number, point=one.chosen, seed=one.seed) is None]


def run_plan(plan: list[Planned], *, folder: SuiteFolder, run_id: str, kernel: machine.Kernel,
             progress: Callable[..., None], nurseries: Nurseries) -> SuiteResult:  # fmt: skip
    """One run after the other; what is finished is on disk before the next begins, and never run again."""
    known = {one.number: folder.finished(one.number, point=one.chosen, seed=one.seed) for one in plan}
    todo = [one for one in plan if known[one.number] is None]
    for place, one in enumerate(todo):
        folder.clear(one.number)
        result = execute(
            one.experiment, seed=one.seed, chosen=one.chosen, folder=folder.run(one.number), kernel=kernel,
            progress=partial(progress, one, len(plan), len(todo) - place), nurseries=nurseries,
        )  # fmt: skip
        known[one.number] = summary(one.chosen, one.experiment, result)
        samples.pack(folder.run(one.number))
        store.RunFolder(folder.run(one.number)).write("summary.json", known[one.number])
        so_far = _so_far(plan, known, folder, run_id)
        folder.write("summary.json", as_json(so_far.as_json(), indent=1) + "\n")
    return _so_far(plan, known, folder, run_id)


def _so_far(plan: list[Planned], known: dict[int, Any], folder: SuiteFolder, run_id: str) -> SuiteResult:
    ended = tuple(known[one.number] for one in plan if known[one.number] is not None)
    return SuiteResult(name=plan[0].experiment.name, run_id=run_id, folder=folder.path, summaries=ended)


# --- the plan on disk ------------------------------------------------------------------------------------------------


def _write_plan(folder: SuiteFolder, plan: list[Planned], *, name: str, run_id: str) -> None:
    before = (
        results.read(folder.path / PLAN, SuitePlan).model_dump()["sessions"] if (folder.path / PLAN).exists() else []
    )
    commands = dict.fromkeys(one.experiment.workload.command for one in plan if one.experiment.workload.command)
    now = store.session([command_of_user(list(command)) for command in commands])
    for place in (provenance.HERE, *(Path(name) for program in now["programs"] for name in program["folders"])):
        state = provenance.git_state(place)
        if state.get("dirty"):
            folder.write(f"{state['diff_sha256']}.diff", provenance.git_diff(place))
    content = {
        "format": FORMAT, "run_id": run_id, "suite": name, "why": plan[0].experiment.why, "sessions": [*before, now],
        "plan": [one.as_json() for one in plan],
    }  # fmt: skip
    folder.write(PLAN, as_json(content, indent=1) + "\n")


def planned(found: SuitePlan, folder: Path) -> list[Planned]:
    """As experiments that can be run; later changes of the suite's file do not matter."""
    return [
        Planned(
            number=one.number, chosen=one.point, seed=one.seed,
            experiment=check(Experiment, one.experiment, origin=f"{folder / PLAN}, run {one.number}"),
        )
        for one in found.plan
    ]  # fmt: skip


def resume(folder: Path) -> tuple[SuiteFolder, str, list[Planned]]:
    found = results.read(folder / PLAN, SuitePlan)
    return SuiteFolder(folder), found.run_id, planned(found, folder)


def newest_unfinished(out: Path, plan: list[Planned]) -> Path:
    """Of the suites in `out` that planned exactly this."""
    wanted = json.loads(json.dumps([one.as_json() for one in plan]))
    for path in sorted(out.glob(f"*_{plan[0].experiment.name}_*"), reverse=True):
        try:
            same = results.read(path / PLAN, SuitePlan).model_dump()["plan"] == wanted
        except UsageError:
            continue
        if same and unfinished(SuiteFolder(path), plan):
            return path
    raise UsageError(
        f"nothing to resume: no unfinished run in {out} was planned like this",
        next_step="give the settings it was started with, or its folder: lossbench run FOLDER --resume",
    )
