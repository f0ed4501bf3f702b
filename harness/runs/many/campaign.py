"""A campaign: suites in order of importance, within a limit of time. A run that is not expected to fit is not begun,
one that time runs out on is not kept, but how long it had is: it can't keep the others from their turn again. The same
command goes on another day.

Seed by seed, so that whatever is done when time is up can be compared: every point with the same seeds."""

from __future__ import annotations

import json
import math
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from lossbench.errors import LossbenchError, NotAbleError
from lossbench.files import as_json
from lossbench.proof.verdict import Status
from lossbench.results.folders import SuiteFolder
from lossbench.results.models import RunSummary
from lossbench.results.naming import key_of
from lossbench.runs import interrupt
from lossbench.runs.many.suite import Planned, planned_alike, resume, run_suite, seed_by_seed, unfinished

AROUND_S = 10.0  # building and proving, of a run whose workload alone was timed
SPARE = 1.1  # no two runs take the same time
CUT = "cut.json"  # in a suite's folder: points that time ran out on, and after how long


@dataclass(kw_only=True)
class Part:
    """One suite of it."""

    name: str
    plan: list[Planned]
    budget_s: float = math.inf
    folder: Path | None = None
    spent_s: float = 0.0
    problem: LossbenchError | None = None
    took: dict[str, list[float]] = field(default_factory=dict)
    cut: dict[str, float] = field(default_factory=dict)
    at_work: tuple[Planned, float] | None = None  # the run that goes on, and since when

    def left(self) -> list[Planned]:
        return unfinished(SuiteFolder(self.folder), self.plan) if self.folder else list(self.plan)

    def find(self, out: Path) -> None:
        """What was done before, and how long it took."""
        self.folder = next(planned_alike(out, self.plan), None)
        for done in self.done():
            self.took.setdefault(key_of(done.point), []).append(done.duration_s + AROUND_S)
        with suppress(OSError, ValueError):
            found = json.loads((self.folder or Path()).joinpath(CUT).read_text(encoding="utf-8"))
            self.cut |= {str(key): float(seconds) for key, seconds in found.items()}

    def done(self) -> list[RunSummary]:
        if self.folder is None:
            return []
        here = SuiteFolder(self.folder)
        found = (here.finished(one.number, point=one.chosen, seed=one.seed) for one in self.plan)
        return [one for one in found if one is not None]

    def expected_s(self, one: Planned) -> float:
        """By the same point before; a new one takes what the others took; of the first nothing is known. What time ran
        out on takes longer than it had."""
        each = {key: median(found) for key, found in self.took.items()}
        guess = each.get(key_of(one.chosen), mean(each.values()) if each else 0.0)
        return SPARE * max(guess, self.cut.get(key_of(one.chosen), 0.0))

    def status(self) -> Status:
        """The worst of what is done, and no better than unknown while something is left."""
        least = [Status.UNKNOWN] if self.left() else []
        return max([*least, *(Status[one.verdict.upper()] for one in self.done())])

    def as_json(self) -> dict[str, Any]:
        return {
            "suite": self.name,
            "runs": len(self.plan),
            "done": len(self.done()),
            "minutes": round(self.spent_s / 60, 2),
            "verdict": self.status().word,
            "dir": str(self.folder) if self.folder else None,
            "problem": str(self.problem) if self.problem else None,
        }


def run_campaign(parts: list[Part], *, seconds: float, out: Path, progress: Callable[..., None]) -> None:
    """Every part gets its own time, then what is left goes to those that are not done, from the first."""
    if threading.current_thread() is not threading.main_thread():
        raise NotAbleError("a campaign needs the main thread", next_step="its clock interrupts as Ctrl-C does")
    end = time.monotonic() + seconds
    for part in parts:
        part.find(out)
    for budget in (lambda part: part.budget_s, lambda _: math.inf):
        for part in parts:
            limit, up = min(end, time.monotonic() + budget(part)), threading.Event()
            try:
                with _ended_at(limit, up):
                    _work_on(part, limit, out=out, progress=progress)
            except BaseException as error:
                if not (up.is_set() and interrupt.caused(error)):
                    raise
                interrupt.forgive()


def _work_on(part: Part, limit: float, *, out: Path, progress: Callable[..., None]) -> None:
    if part.problem is not None or not any(True for _ in _fitting(part, part.left(), limit)):
        return
    began = time.monotonic()
    here, run_id, plan = resume(part.folder) if part.folder else (None, secrets.token_hex(3), part.plan)
    try:
        run_suite(
            plan, out=out, run_id=run_id, progress=progress, resumed=here, turns=lambda todo: _taken(part, todo, limit)
        )
    except LossbenchError as error:  # the others have their turn all the same
        if interrupt.caused(error):
            raise
        part.problem = error
    finally:
        part.folder = part.folder or next(planned_alike(out, part.plan), None)
        part.spent_s += time.monotonic() - began
        _remember_cut(part)


def _remember_cut(part: Part) -> None:
    """Whatever ended it: it took so long at least."""
    if part.at_work is None or part.folder is None:
        return
    (one, began), part.at_work = part.at_work, None
    key, had = key_of(one.chosen), time.monotonic() - began
    part.cut[key] = max(had, part.cut.get(key, 0.0))
    SuiteFolder(part.folder).write(CUT, as_json(part.cut, indent=1) + "\n")


def _fitting(part: Part, todo: list[Planned], limit: float) -> Iterator[Planned]:
    for one in seed_by_seed(todo):
        now = time.monotonic()
        if now < limit and now + part.expected_s(one) <= limit:
            yield one


def _taken(part: Part, todo: list[Planned], limit: float) -> Iterator[Planned]:
    """One after the other, each timed from its turn to the next one's."""
    for one in _fitting(part, todo, limit):
        began = time.monotonic()
        part.at_work = (one, began)
        yield one
        part.at_work = None
        part.took.setdefault(key_of(one.chosen), []).append(time.monotonic() - began)


@contextmanager
def _ended_at(end: float, up: threading.Event) -> Iterator[None]:
    """When time is up whatever runs is interrupted, as a user would, and undone."""

    def interrupts() -> None:
        up.set()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(max(0.0, end - time.monotonic()), interrupts)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # what it is about to send comes here, not to whoever is next
