"""A campaign's runs several at once, within a limit of time: for machines with many cores, where what is asked for is
what was learned. Times of runs that shared a machine are what its load made of them: where that was too much, their
timing is unknown.

python tests/bench/at_once.py FILE --minutes 9 [--at-once 8] [--own-cores] [--ranks 24] --out FOLDER

The same command again makes what is left. Seed by seed, so that whatever is done when time is up can be compared; a run
that is not expected to fit is not begun. Results are one folder a suite, as of `lossbench campaign`, whose file this
takes (minutes of single suites do not count).
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossbench.files import as_json
from lossbench.runs import interrupt
from lossbench.runs.ground import ThisMachine
from lossbench.runs.many import planning, suite
from lossbench.runs.many.campaign import Part

PATIENCE_S = 30.0  # a run that is interrupted undoes what it made


@dataclass(kw_only=True)
class Task:
    """One run; or, of a suite that nothing is known of yet, its plan."""

    part: int
    number: int = -1
    seed: int = 0
    ranks: int = 1
    name: str = ""

    @property
    def plans(self) -> bool:
        return self.number < 0


@dataclass
class Queue:
    """What is left, for several who work on it: in order, but for what is too wide beside what others have."""

    tasks: list[Task]
    ranks: int
    end: float
    busy: int = 0
    took: dict[int, list[float]] = field(default_factory=dict)
    turn: threading.Condition = field(default_factory=threading.Condition)

    def next(self) -> Task | None:
        """Waits while nothing fits beside the others; None: nothing is left that would fit into the time."""
        with self.turn:
            while self.tasks:
                if time.monotonic() >= self.end:
                    return None
                fitting = (one for one in self.tasks if not self.busy or self.busy + one.ranks <= self.ranks)
                found = next(fitting, None)
                if found is None:
                    self.turn.wait(1)
                    continue
                self.tasks.remove(found)
                if time.monotonic() + self.expected_s(found) > self.end:
                    continue
                self.busy += found.ranks
                return found
            return None

    def done(self, task: Task, seconds: float) -> None:
        with self.turn:
            self.busy -= task.ranks
            if not task.plans:
                self.took.setdefault(task.part, []).append(seconds)
            self.turn.notify_all()

    def expected_s(self, task: Task) -> float:
        known = self.took.get(task.part, [])
        return sum(known) / len(known) if known and not task.plans else 0.0


class Hand:
    """A process that makes one run after the other: its libraries are loaded once."""

    def __init__(self, file: Path, out: Path, cores: set[int]) -> None:
        command = [sys.executable, __file__, str(file), "--out", str(out), "--hand"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),  # noqa: PLW1509 - no thread is there yet
        )  # fmt: skip

    def make(self, task: Task) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(task.part, task.number, file=self.process.stdin, flush=True)
            return dict(json.loads(self.process.stdout.readline()))
        except (BrokenPipeError, ValueError):
            return {"problem": f"its process ended ({self.process.poll()})"}

    def end(self) -> None:
        """Whatever is under way is undone, as by Ctrl-C."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        with suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()


def work(queue: Queue, hand: Hand) -> None:
    while (task := queue.next()) is not None:
        began = time.monotonic()
        said = hand.make(task)
        took = time.monotonic() - began
        queue.done(task, took)
        if not task.plans or "problem" in said:
            print(f"{task.name}: {took:.0f} s {said.get('line') or said.get('problem')}", flush=True)


def together(tasks: list[Task], hands: list[Hand], *, ranks: int, end: float) -> None:
    """Ends by itself, or when the time is over: then whatever is under way is not kept."""
    queue = Queue(tasks, ranks, end)
    threads = [threading.Thread(target=work, args=(queue, hand), daemon=True) for hand in hands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def runs_of(parts: list[Part]) -> list[Task]:
    """Whatever is left: suites in their order, every point with one seed, then with the next."""
    return [
        Task(part=place, number=one.number, seed=one.seed, ranks=one.experiment.topology.hosts,
             name=f"{part.name} {suite_point(one)}")
        for place, part in enumerate(parts)
        for one in sorted(part.left(), key=lambda one: (one.seed, one.number))
    ]  # fmt: skip


def suite_point(one: suite.Planned) -> str:
    return f"{one.number} ({', '.join(str(value) for value in one.chosen.values())}; seed {one.seed})"


# --- in a hand -------------------------------------------------------------------------------------------------------


def plan(part: Part, out: Path) -> dict[str, Any]:
    """Its folder, with all that will be in it; nothing is run."""
    suite.run_suite(part.plan, out=out, run_id=secrets.token_hex(3), progress=lambda *_: None, turns=lambda _: iter(()))
    return {}


def run(part: Part, number: int, ground: ThisMachine) -> dict[str, Any]:
    assert part.folder is not None
    here, run_id, planned = suite.resume(part.folder)
    found = suite.run_plan(
        planned,
        folder=here,
        run_id=run_id,
        ground=ground,
        progress=lambda *_: None,
        turns=lambda todo: (one for one in todo if one.number == number),
    )
    (one,) = (planned for planned in planned if planned.number == number)
    done = here.finished(number, point=one.chosen, seed=one.seed)
    words = [f"{sum(one.verdict == 'valid' for one in found.summaries)} valid so far"]
    if done is not None:
        row = done.rows[0] if done.rows else {}
        shown = {key: value for key in ("ms_step", "gpu_mb") if isinstance(value := row.get(key), float)}
        words = [*map(str, done.columns.values()), *(f"{key}={value:.1f}" for key, value in shown.items())]
        words += [] if done.verdict == "valid" else [str(done.reasons)[:300]]
    return {"line": " ".join(words)}


def hand(file: Path, out: Path) -> None:
    """Reads what to do line by line: the suite's place in the campaign, the run's number."""
    interrupt.listen()
    parts = planning.parts_of(file)
    with closing(ThisMachine.tried()) as ground:
        for line in sys.stdin:
            place, number = map(int, line.split())
            part, said = parts[place], {}
            try:
                if part.folder is None:
                    part.folder = next(suite.planned_alike(out, part.plan), None)
                said = plan(part, out) if number < 0 else run(part, number, ground)
            except Exception as error:  # noqa: BLE001 - the others go on
                if interrupt.caused(error):
                    raise
                said = {"problem": str(error) or type(error).__name__}
            print(json.dumps(said), flush=True)


# --- all of it -------------------------------------------------------------------------------------------------------


def summed_up(part: Part) -> str:
    """The suite's summary, which hands wrote with what each of them knew."""
    if part.folder is None:
        return f"{part.name}: not begun"
    here, run_id, _ = suite.resume(part.folder)
    done = tuple(part.done())
    found = suite.SuiteResult(name=part.plan[0].experiment.name, run_id=run_id, folder=part.folder, summaries=done)
    with here.locked():
        here.write("summary.json", as_json(found.as_json(), indent=1) + "\n")
    columns = [dict(one.columns) for one in done]
    said = [f"{name} valid in {sum(one[name] == 'valid' for one in columns)}" for name in (columns or [{}])[0]]
    return f"{part.name}: {len(done)} of {len(part.plan)} runs; {', '.join(said)}; {part.folder}"


def shares(at_once: int, own: bool) -> list[set[int]]:
    """Cores for each of so many; ranks of a run start as many threads as they have cores."""
    every = sorted(os.sched_getaffinity(0))
    each = len(every) // at_once
    if not own or not each:
        return [set(every)] * at_once
    return [set(every[n * each : (n + 1) * each]) for n in range(at_once)]


def all_of(file: Path, out: Path, *, minutes: float, cores: list[set[int]], ranks: int) -> int:
    """How many runs are left."""
    end = time.monotonic() + 60 * minutes
    out.mkdir(parents=True, exist_ok=True)
    parts = planning.parts_of(file)
    hands = [Hand(file, out, some) for some in cores]
    try:
        for part in parts:
            part.find(out)
        new = [Task(part=n, name=f"{one.name}: planned") for n, one in enumerate(parts) if one.folder is None]
        together(new, hands, ranks=len(parts), end=end)
        for part in parts:
            part.find(out)
        tasks = runs_of([part if part.folder else Part(name=part.name, plan=[]) for part in parts])
        together(tasks, hands, ranks=ranks or sys.maxsize, end=end)
    finally:
        for one in hands:
            one.end()
    for part in parts:
        print(summed_up(part), flush=True)
    return sum(len(part.left()) for part in parts)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("file", type=Path)
    asked.add_argument("--out", type=Path, default=Path("results/runs"))
    asked.add_argument("--minutes", type=float, default=60)
    asked.add_argument("--at-once", type=int, default=4, help="runs")
    asked.add_argument("--ranks", type=int, default=0, help="of all runs together at most; one run is always made")
    asked.add_argument("--own-cores", action="store_true", help="each run has its share of the cores for itself")
    asked.add_argument("--hand", action="store_true")
    told = asked.parse_args()
    if told.hand:
        try:
            hand(told.file, told.out)
        except KeyboardInterrupt:
            pass
        finally:
            sys.exit(2 if interrupt.finish() else 0)
    cores = shares(told.at_once, told.own_cores)
    left = all_of(told.file, told.out, minutes=told.minutes, cores=cores, ranks=told.ranks)
    print(f"{left} runs are left: the same command again" if left else "all is done")


if __name__ == "__main__":
    main()
