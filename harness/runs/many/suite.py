"""A suite: every point of an experiment's sweep, every seed, one run each; one folder, one summary. Resumable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lossbench.errors import LossbenchError, UsageError
from lossbench.files import as_json
from lossbench.proof.verdict import Status
from lossbench.results import folders, index, models, provenance, samples
from lossbench.results.folders import SuiteFolder
from lossbench.results.models import FORMAT, RunSummary, SuitePlan
from lossbench.runs import interrupt
from lossbench.runs.ground import About, Ground, ThisMachine
from lossbench.runs.launch.program import own_programs
from lossbench.runs.run import execute
from lossbench.runs.summary import summary
from lossbench.spec.experiment import Experiment, Program
from lossbench.spec.userfile import check

PLAN = "suite.json"
Points = list[tuple[dict[str, Any], Experiment]]
Turns = Callable[[list["Planned"]], Iterator["Planned"]]  # what is run, and when: asked for one after the other


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One run to be made."""

    number: int
    chosen: dict[str, Any]
    experiment: Experiment
    seed: int

    def programs(self) -> list[Program]:
        return [self.experiment.workload, *self.experiment.beside]

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "point": self.chosen,
            "seed": self.seed,
            "experiment": self.experiment.model_dump(mode="json"),
        }


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    name: str
    run_id: str
    folder: Path
    summaries: tuple[RunSummary, ...]

    @property
    def status(self) -> Status:
        return max((Status[one.verdict.upper()] for one in self.summaries), default=Status.UNKNOWN)

    def as_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "verdict": self.status.word,
            "dir": str(self.folder),
            "summary": [one.model_dump() for one in self.summaries],
        }


def plan_of(points: Points, *, seeds: int | None) -> list[Planned]:
    every = [(c, e, e.first_seed + n) for c, e in points for n in range(seeds or e.seeds)]
    return [Planned(number=n, chosen=c, experiment=e, seed=seed) for n, (c, e, seed) in enumerate(every)]


def seed_by_seed(todo: list[Planned]) -> Iterator[Planned]:
    """Every point with one seed, then with the next: what drifts on a machine, or is slow the first time, meets all
    points alike, and differences are paired by seed. One point after the other it would be a difference of points."""
    return iter(sorted(todo, key=lambda one: (one.seed, one.number)))


def run_suite(
    plan: list[Planned],
    *,
    out: Path,
    run_id: str,
    progress: Callable[..., None],
    name: str = "",
    resumed: SuiteFolder | None = None,
    ground: Ground | None = None,
    turns: Turns = seed_by_seed,
) -> SuiteResult:
    """Every point is checked against the machine before the first one runs."""
    with closing(ground or ThisMachine.tried()) as here:
        plan = [replace(one, experiment=here.placed(one.experiment)) for one in plan]
        for one in plan:
            here.backend(one.experiment)
            for program in one.programs():
                here.check(program)
        here.prepare([program for one in plan for program in one.programs()])
        name = name or plan[0].experiment.name
        folder = resumed or SuiteFolder.new(out, name, run_id)
        try:
            with folder.locked():
                if unfinished(folder, plan):
                    _write_plan(folder, plan, name=name, run_id=run_id, about=here.about())
                return run_plan(plan, folder=folder, run_id=run_id, ground=here, progress=progress, turns=turns)
        except (LossbenchError, KeyboardInterrupt):
            interrupt.last_words(f"what was done is in {folder.path}; to go on: lossbench run {folder.path} --resume")
            raise


def unfinished(folder: SuiteFolder, plan: list[Planned]) -> list[Planned]:
    return [one for one in plan if folder.finished(one.number, point=one.chosen, seed=one.seed) is None]


def run_plan(
    plan: list[Planned],
    *,
    folder: SuiteFolder,
    run_id: str,
    ground: Ground,
    progress: Callable[..., None],
    turns: Turns = seed_by_seed,
) -> SuiteResult:
    """One run after the other; what is finished is on disk before the next begins, and never run again."""
    known = {one.number: folder.finished(one.number, point=one.chosen, seed=one.seed) for one in plan}
    todo = [one for one in plan if known[one.number] is None]
    for place, one in enumerate(turns(todo)):
        here = folder.run_folder(one.number)
        result = execute(
            one.experiment,
            seed=one.seed,
            chosen=one.chosen,
            folder=here,
            ground=ground,
            progress=partial(progress, one, len(plan), len(todo) - place),
        )
        done = known[one.number] = summary(one.chosen, one.experiment, result)
        samples.pack(here.way)
        here.write("summary.json", done.model_dump())
        so_far = _so_far(plan, known, folder, run_id)
        folder.write("summary.json", as_json(so_far.as_json(), indent=1) + "\n")
    return _so_far(plan, known, folder, run_id)


def _so_far(plan: list[Planned], known: dict[int, RunSummary | None], folder: SuiteFolder, run_id: str) -> SuiteResult:
    ended = tuple(found for one in plan if (found := known[one.number]) is not None)
    return SuiteResult(name=plan[0].experiment.name, run_id=run_id, folder=folder.path, summaries=ended)


# --- the plan on disk ------------------------------------------------------------------------------------------------


def _write_plan(folder: SuiteFolder, plan: list[Planned], *, name: str, run_id: str, about: About) -> None:
    before = (
        models.read(folder.path / PLAN, SuitePlan).model_dump()["sessions"] if (folder.path / PLAN).exists() else []
    )
    programs = own_programs([one.experiment for one in plan])
    now = folders.session(programs, machines=about.machines, lab=about.lab)
    for place in (provenance.HERE, *(Path(name) for program in now["programs"] for name in program["folders"])):
        state = provenance.git_state(place)
        if state.get("dirty"):
            folder.write(f"{state['diff_sha256']}.diff", provenance.git_diff(place))
    content = {
        "format": FORMAT,
        "run_id": run_id,
        "suite": name,
        "why": plan[0].experiment.why,
        "sessions": [*before, now],
        "plan": [one.as_json() for one in plan],
    }
    folder.write(PLAN, as_json(content, indent=1) + "\n")


def planned(found: SuitePlan, folder: Path) -> list[Planned]:
    """As experiments that can be run; later changes of the suite's file do not matter."""
    return [
        Planned(
            number=one.number,
            chosen=one.point,
            seed=one.seed,
            experiment=check(Experiment, one.experiment, origin=f"{folder / PLAN}, run {one.number}"),
        )
        for one in found.plan
    ]


def is_one(folder: Path) -> bool:
    """A suite of before, or of another time."""
    return (folder / PLAN).exists()


def resume(folder: Path) -> tuple[SuiteFolder, str, list[Planned]]:
    if not is_one(folder):
        step = "give the folder of a result; lossbench report lists them"
        raise UsageError(f"{folder}: nothing was planned there that could be resumed", next_step=step)
    found = models.read(folder / PLAN, SuitePlan)
    return SuiteFolder(folder), found.run_id, planned(found, folder)


def planned_alike(out: Path, plan: list[Planned]) -> Iterator[Path]:
    """Suites in `out` that planned exactly this, the newest first, whatever their folders are called."""
    wanted = json.loads(json.dumps([one.as_json() for one in plan]))
    found: list[tuple[str, Path]] = []
    for path in (file.parent for file in out.glob(f"*/{PLAN}")):
        try:
            stored = models.read(path / PLAN, SuitePlan)
            if stored.suite.endswith(index.REPLAYED):
                continue  # of a single line, it plans the same, and is not what was asked for
            alike = [(one.number, one.seed) for one in stored.plan] == [(one.number, one.seed) for one in plan]
            before = planned(stored, path) if alike else []  # the rest costs more to read
        except UsageError:
            continue
        if json.loads(json.dumps([one.as_json() for one in before])) == wanted:
            found.append((stored.sessions[0].started, path))
    yield from (path for _, path in sorted(found, reverse=True))


def newest_unfinished(out: Path, plan: list[Planned]) -> Path:
    for path in planned_alike(out, plan):
        if unfinished(SuiteFolder(path), plan):
            return path
    raise UsageError(
        f"nothing to resume: no unfinished run in {out} was planned like this",
        next_step="give the settings it was started with, or its folder: lossbench run FOLDER --resume",
    )
