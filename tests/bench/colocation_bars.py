"""The web service's suites side by side, for a machine with many cores: a worker for every pair of them takes the next
run, so that each has what a whole machine of two cores would give it.

python tests/bench/colocation_bars.py --minutes 9 [--out FOLDER] [--pack TO] [--only NAME ...] [--cores 2]
    [--set NAME:KEY=VALUE ...]

In order of importance; a run that is not expected to fit is not begun, the same command goes on. Every suite has one
plan, which all workers know: each keeps its own copy of the suite's folder, and `lossbench import` joins them."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from lossbench.report.export.handle import Results  # noqa: E402
from lossbench.report.tables.table import rendered  # noqa: E402
from lossbench.results import archive  # noqa: E402
from lossbench.results.folders import SuiteFolder  # noqa: E402
from lossbench.results.naming import point_name  # noqa: E402
from lossbench.runs import interrupt  # noqa: E402
from lossbench.runs.many import planning  # noqa: E402
from lossbench.runs.many.campaign import Part  # noqa: E402
from lossbench.runs.many.suite import Planned, resume, run_suite  # noqa: E402

JOINED, WORKERS, TAKEN = "joined", "workers", "taken"  # folders below --out
AROUND_S, UNDONE_S = 30.0, 20.0  # a run's way in and out; what is undone when time is up
ALONE = "web alone"
ONE_BUFFER = "shaping.buffer_kb=180"  # of the long form's three


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One suite. Every arm with `first` seeds and those `ahead` with all; then the rest, suites in the order `rest`."""

    name: str
    suite: str
    about_s: float  # a run's own time, as far as none is known
    slow: tuple[str, float] = ("", 0.0)  # that of arms with this word
    seeds: int = 1
    first: int = 1
    ahead: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    full: bool = False
    rest: int = 1

    def part(self, out: Path, more: list[str]) -> Part:
        settings = [*self.settings, *(f"arm={json.dumps(name)}" for name in self.arms), *more]
        _, _, plan = planning.planned(self.suite, settings, self.seeds, full=self.full, out=out, resume=False)
        return Part(name=self.name, plan=plan)

    def turn(self, one: Planned) -> int:
        return self.rest if one.seed >= self.first and point_name(one.chosen) not in self.ahead else 0

    def expected_s(self, one: Planned, part: Part) -> float:
        word, slow_s = self.slow
        guess = slow_s if word and word in point_name(one.chosen) else self.about_s
        return max(guess + AROUND_S, part.expected_s(one))


BARS = ("strict: bounded_drift", "strict: gradient_averaging", "strict: reliable (TCP)", "uncontended", ALONE)
ASKED = [
    Asked(
        name="figure-6",
        suite="colocation",
        full=True,
        settings=(ONE_BUFFER, "beside.1.options.rate=200"),
        about_s=104,
        seeds=3,
        first=3,
    ),
    Asked(
        name="training", suite="colocation-training", about_s=60, slow=("reliable", 120), seeds=5, ahead=BARS, rest=2
    ),
    Asked(name="cost", suite="colocation-cost", about_s=105, seeds=3),
    Asked(name="tail", suite="background-tail", about_s=170),
    *(
        Asked(
            name=f"factor-{factor}",
            suite="colocation",
            full=True,
            settings=(
                ONE_BUFFER,
                f"topology.rate_mbit={1000 / factor:g}",
                f"workload.options.mbit={2400 / factor:g}",
                f"beside.1.options.rate={10_000 / factor:g}",
                f"beside.1.options.factor={factor}",
                f"beside.1.options.seconds={2.07 * factor:g}",
            ),
            arms=(ALONE, "shared queue", "priority .5", "strict"),
            about_s=2.07 * factor,
            seeds=3,
        )
        for factor in (25, 50)  # the same arms and calls for both: to be compared seed by seed, of one session
    ),
]


@dataclass(frozen=True)
class Task:
    suite: str
    number: int
    seed: int
    needs_s: float
    turn: int


def tasks_of(asked: Asked, part: Part) -> list[Task]:
    """Seed by seed, the longest first; what is finished already is no task."""
    tasks = [
        Task(asked.name, one.number, one.seed, asked.expected_s(one, part), asked.turn(one)) for one in part.left()
    ]
    return sorted(tasks, key=lambda task: (task.turn, task.seed, -task.needs_s))


def planned_in(out: Path, part: Part) -> None:
    """Its folder: one of an earlier call, or a new one that holds the plan alone."""
    part.find(out / JOINED)
    if part.folder is None:
        run_suite(part.plan, out=out / JOINED, run_id=secrets.token_hex(3), progress=_silent, turns=lambda _: iter(()))
        part.find(out / JOINED)


def _silent(*_: object) -> None:
    """Each run says a line when it has ended."""


def work(worker: int, cores: set[int], out: Path, folders: dict[str, Path], tasks: list[Task], end: float) -> None:
    os.sched_setaffinity(0, cores)
    interrupt.listen()
    try:
        for turn in range(3):
            for name, joined in folders.items():
                mine = [task for task in tasks if (task.suite, task.turn) == (name, turn)]
                if any(_fits(task, end) and not _claim(out, task).exists() for task in mine):
                    own = out / WORKERS / str(worker) / joined.name
                    own.mkdir(parents=True, exist_ok=True)
                    shutil.copy(joined / "suite.json", own)
                    here, run_id, plan = resume(own)
                    run_suite(
                        plan,
                        out=own.parent,
                        run_id=run_id,
                        progress=_silent,
                        resumed=here,
                        turns=lambda todo, mine=mine, own=own: _taken(out, own, todo, mine, end),
                    )
    except BaseException as error:
        if not interrupt.caused(error):
            raise
        print(f"worker {worker}: time is up", flush=True)
    finally:
        interrupt.finish()


def _claim(out: Path, task: Task) -> Path:
    return out / TAKEN / f"{task.suite}-{task.number}"


def _fits(task: Task, end: float) -> bool:
    return time.monotonic() + task.needs_s <= end


def _taken(out: Path, own: Path, todo: list[Planned], tasks: list[Task], end: float) -> Iterator[Planned]:
    """Those that no other worker has taken, as long as they fit."""
    by_number = {one.number: one for one in todo}
    for task in tasks:
        if not _fits(task, end):
            continue
        try:
            _claim(out, task).touch(exist_ok=False)
        except FileExistsError:
            continue
        began, one = time.monotonic(), by_number[task.number]
        yield one
        done = SuiteFolder(own).finished(one.number, point=one.chosen, seed=one.seed)
        columns = " ".join(done.columns.values()) if done else "not finished"
        print(
            f"{task.suite}: {point_name(one.chosen)}, seed {one.seed}: {columns}, {time.monotonic() - began:.0f} s",
            flush=True,
        )


def join(out: Path) -> None:
    """What the workers have made comes to the rest."""
    for worker in sorted((out / WORKERS).glob("*")):
        made = [folder for folder in sorted(worker.glob("*")) if any(folder.glob("[0-9]*/summary.json"))]
        if made:
            (packed,) = archive.pack([(folder, folder.name) for folder in made], out / f"{worker.name}.tar.gz")
            archive.bring_in(packed, out / JOINED)
            packed.unlink()
    shutil.rmtree(out / WORKERS, ignore_errors=True)


def run(out: Path, asked: list[Asked], changed: dict[str, list[str]], *, minutes: float, cores: int) -> list[Path]:
    """Returns the folders of the suites."""
    end = time.monotonic() + 60 * minutes
    join(out)  # what a call before was kept from joining
    shutil.rmtree(out / TAKEN, ignore_errors=True)
    (out / TAKEN).mkdir(parents=True)
    parts = {one.name: one.part(out, changed.get(one.name, [])) for one in asked}
    for part in parts.values():
        planned_in(out, part)
    tasks = [task for one in asked for task in tasks_of(one, parts[one.name])]
    folders = {name: part.folder for name, part in parts.items() if part.folder is not None}
    print(f"{len(tasks)} of {sum(len(part.plan) for part in parts.values())} runs to do", flush=True)
    allowed = sorted(os.sched_getaffinity(0))
    sets = [set(allowed[n : n + cores]) for n in range(0, len(allowed) - cores + 1, cores)]
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=work, args=(n, one, out, folders, tasks, end)) for n, one in enumerate(sets)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
    for worker in workers:
        if worker.pid is not None and worker.is_alive():
            os.kill(worker.pid, signal.SIGINT)
    for worker in workers:
        worker.join(UNDONE_S)
    join(out)
    return list(folders.values())


def show(folder: Path, console: Console) -> None:
    """What the bars are read from; `lossbench report` has the rest."""
    found = Results.at(folder)
    if found.runs:
        console.print("\n".join(found.findings), markup=False)
        for name in ("colocation", "cost", *(() if "colocation" in found.content.named else ("results",))):
            if name in found.content.named:
                console.print(*rendered(found.content.named[name], width=console.width))
        console.print("\n".join(found.content.reasons), markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--out", type=Path, default=Path("results/colocation-bars"))
    parser.add_argument("--pack", type=Path, help="an archive of all results, in parts of 15 MiB")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in ASKED], default=[])
    parser.add_argument("--cores", type=int, default=2, help="of a worker")
    parser.add_argument("--set", action="append", default=[], metavar="NAME:KEY=VALUE", dest="changed")
    given = parser.parse_args()
    changed: dict[str, list[str]] = {}
    for one in given.changed:
        name, setting = one.split(":", 1)
        changed.setdefault(name, []).append(setting)
    asked = [one for one in ASKED if not given.only or one.name in given.only]
    folders = run(given.out.resolve(), asked, changed, minutes=given.minutes, cores=given.cores)
    if given.pack:
        archive.pack([(one, one.name) for one in folders], given.pack, part_mib=15, leave=("logs",))
    console = Console(width=160)
    for folder in folders:
        show(folder, console)


if __name__ == "__main__":
    main()
