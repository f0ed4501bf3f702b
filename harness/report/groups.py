"""Runs that differ in nothing but the seed, brought together; what stands on an unproven column is kept apart."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lossbench.errors import UsageError
from lossbench.results import measures
from lossbench.results.index import Run, Suite
from lossbench.results.measures import FEW
from lossbench.results.naming import key_of
from lossbench.spec.about import Measure

RESENT, MEMORY = "tcp_resent_percent", "memory_mb"
TIMES = ("wall_s", "ms_step_mean", "ms_step", "p50_ms")
OUTCOMES = ("accuracy", "perplexity", "eval_loss", "train_loss")
CALLED = {"baseline", "uncontended"}  # by the name of its arm a suite says what others are compared with
NOT_SHOWN = ("shown", "note", "path", "doubt", "doubted", measures.BESIDE)  # words about a row


@dataclass(frozen=True)
class Value:
    """One number of one run. `void` says why it may not be averaged; empty if it may."""

    run: Run
    number: float
    void: str = ""


@dataclass
class Group:
    """One line of a table: a point of the sweep (and, where a run has several rows, one of them) over all seeds."""

    name: str
    point: dict[str, Any]
    row: str = ""  # which of several rows
    planned: int = 0  # seeds
    lasts: str = ""  # how long it trains: epochs or steps, as asked (steps that nobody asked for: as they were)
    runs: list[Run] = field(default_factory=list)
    values: dict[str, list[Value]] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)  # what is shown and is no measured number
    shown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def comparable(self, other: Group, measure: str) -> bool:
        """Of lines that trained longer than others times can be compared, and what came of it can't. Tables, findings
        and `compare` all ask here."""
        return self.lasts == other.lasts or self.measure(measure).column != "outcome"

    def unit(self, measure: str) -> str | None:
        return next((run.summary.units[measure] for run in self.runs if measure in run.summary.units), None)

    def measure(self, name: str) -> Measure:
        """What this number means, as its workload says."""
        declared = self.runs[0].summary.measures if self.runs else None
        return measures.of(name, self.unit(name), declared)

    def sound(self, measure: str) -> dict[int, float]:
        """By seed: what may be averaged and compared."""
        return {v.run.summary.seed: v.number for v in self.values.get(measure, []) if not v.void}

    def doubtful(self, measure: str) -> dict[int, float]:
        """By seed: what there is, believed or not, but for what stands on too few samples."""
        known = [v for v in self.values.get(measure, []) if not v.void.startswith(FEW) and math.isfinite(v.number)]
        return {v.run.summary.seed: v.number for v in known}

    def void(self, measure: str) -> list[Value]:
        return [v for v in self.values.get(measure, []) if v.void]

    def complete(self, measure: str) -> bool:
        """Every seed that was planned has a number that may be averaged."""
        return len(self.sound(measure)) == self.planned


def groups_of(suite: Suite, *, with_simulated: bool = False, apart: bool = False) -> list[Group]:
    """In the order of the plan. `apart`: seeds are not brought together."""
    out: dict[tuple[str, str, int, int], Group] = {}
    planned = Counter(key_of(one.point) for one in suite.plan.plan)
    apart = apart and max(planned.values(), default=1) > 1
    asked = {key_of(one.point): one.experiment for one in suite.plan.plan}
    any_rows = any(_own_rows(run) for run in suite.runs)
    several = {key_of(run.summary.point) for run in suite.runs if len(run.summary.rows) > 1}
    for run in suite.runs:
        point = key_of(run.summary.point)
        rows = run.summary.rows if any_rows else rows_of(run)
        again: Counter[str] = Counter()
        for row in rows:
            shown = shown_in(row)
            what = str(row.get(shown[0], "")) if shown and point in several else ""
            again[what] += 1
            name = (f"{run.name}: {what}" if what else run.name) + (" (simulated)" if run.simulated else "")
            seed, seeds = (run.summary.seed, 1) if apart else (0, planned[point])
            name += f" #{seed}" if apart else ""
            group = out.setdefault(
                (point, what, again[what], seed),
                Group(
                    name=name, point=run.summary.point, row=what, planned=seeds, lasts=_lasts(asked.get(point, {}), row)
                ),
            )
            _add(group, run, row, shown, with_simulated=with_simulated)
    _tell_apart(list(out.values()))
    return list(out.values())


def _lasts(experiment: dict[str, Any], row: dict[str, Any]) -> str:
    """Epochs stand instead of steps. A default and the same number that was written down are alike."""
    options = (experiment.get("workload") or {}).get("options") or {}
    for name, number in (("epochs", options.get("epochs")), ("steps", options.get("steps", row.get("steps")))):
        if number is not None:
            whole = isinstance(number, float) and number.is_integer()
            return f"{int(number) if whole else number} {name}"
    return ""


def rows_of(run: Run) -> list[dict[str, Any]]:
    """What a run has numbers of, each as a row."""
    return run.summary.rows if _own_rows(run) else [_from_summaries(run), *run.summary.rows]


def _own_rows(run: Run) -> list[dict[str, Any]]:
    """Of the workload itself, not of programs beside it."""
    return [row for row in run.summary.rows if measures.BESIDE not in row]


def shown_in(row: dict[str, Any]) -> list[str]:
    """Its columns, what it is called first."""
    wanted = row.get("shown")
    return [name for name in (wanted if isinstance(wanted, list) else list(row)) if isinstance(name, str)]


def _tell_apart(groups: list[Group]) -> None:
    """Lines that happen to be called alike get a number."""
    count = Counter(group.name for group in groups)
    seen: Counter[str] = Counter()
    for group in groups:
        if count[group.name] > 1:
            seen[group.name] += 1
            group.name += f" ({seen[group.name]})"


def _from_summaries(run: Run) -> dict[str, Any]:
    """A workload without rows of its own still has the numbers of its summary records."""
    return {"workload": "", **run.summary.workload}


def _add(group: Group, run: Run, row: dict[str, Any], shown: list[str], *, with_simulated: bool) -> None:
    group.runs.append(run)
    group.shown = group.shown or shown[1:]
    if row.get("note"):
        group.notes.append(str(row["note"]))
    for measure, raw in row.items():
        if measure in measures.NOT_MEASURED or isinstance(raw, bool) or not isinstance(raw, int | float):
            if measure in shown[1:] and measure not in NOT_SHOWN and raw is not None:
                group.words.setdefault(measure, []).append(str(raw))
            continue
        number = measures.number(raw)
        how = {"with_simulated": with_simulated, "one_seed": group.planned == 1}
        why = run.standing.void(measure, row, **how) if number is not None else "not a number"
        group.values.setdefault(measure, []).append(Value(run, math.nan if number is None else number, why))


def asked_loss(group: Group) -> float:
    """As asked; the worst rule of its runs."""
    return max((loss for run in group.runs for loss in run.summary.asked_loss), default=0.0)


def shown_of(groups: Iterable[Group], *, words: bool = False) -> list[str]:
    """Measures that a table shows, in the order that the workload gives them; and what else, with `words`."""
    some = list(groups)
    names = dict.fromkeys(name for group in some for name in group.shown)
    return [name for name in names if any(name in g.values or (words and name in g.words) for g in some)]


def columns_of(groups: Sequence[Group], *, words: bool = False) -> list[str]:
    """Measures that stand in tables: a program that ended with 0 says no more than its outcome does."""
    ended = any(value.number for group in groups for value in group.values.get(measures.EXIT, []))
    return [name for name in shown_of(groups, words=words) if name != measures.EXIT or ended]


def lines_of_point(suite: Suite, wanted: str, *, number: int | None = None) -> list[Group]:
    """All lines of the table that the runs of one point made: by a line's name or a part of it, or a run's number."""
    groups = groups_of(suite, with_simulated=True)
    if number is not None:
        groups = [group for group in groups if any(one.number == number for one in group.runs)]
    found = [group for group in groups if group.name == wanted] or [group for group in groups if wanted in group.name]
    chosen = {key_of(group.point) for group in found}
    if len(chosen) != 1:
        known = ", ".join(f"'{group.name}'" for group in found or groups) or "none that ended"
        said = f"{'no line' if not found else 'several lines'} '{wanted}'" if wanted else "which line of the table?"
        raise UsageError(said, next_step=f"known: {known}")
    return [group for group in groups if key_of(group.point) in chosen]


def main_measure(groups: Sequence[Group], column: str, wanted: tuple[str, ...]) -> str:
    """The number that people look at first: one of the well-known, else the first that can be better or worse."""
    shown = shown_of(groups)
    fitting = [name for name in shown if groups[0].measure(name).column == column and groups[0].measure(name).better]
    fitting = [name for name in fitting if name not in (RESENT, MEMORY)]  # has words of its own; is no result
    if column == "timing":
        fitting = [name for name in fitting if groups[0].measure(name).better == "low"]
    here = [name for name in wanted if name in fitting]
    if column == "timing" and here:  # results of before had no mean step: what most lines have
        return max(here, key=lambda name: sum(name in group.values for group in groups))
    return here[0] if here else fitting[0] if fitting else ""


def baseline_of(groups: list[Group], wanted: str) -> Group:
    """The line that was asked for; else what a reader would take: a line called baseline or uncontended, or
    without loss and reliable, or without loss, or reliable; the first where none, or all, are that."""
    found = [group for group in groups if group.name == wanted] or [g for g in groups if wanted in g.name]
    if wanted and len(found) != 1:
        known = ", ".join(f"'{group.name}'" for group in groups)
        problem = "no line" if not found else f"{len(found)} lines"
        raise UsageError(f"--baseline {wanted}: {problem} of that name", next_step=f"known: {known}")
    return found[0] if wanted else _usual(groups)


def _usual(groups: list[Group]) -> Group:
    free, named = ([asked_loss(one) == 0 for one in groups], [set(re.split(r"\W+", one.name)) for one in groups])
    reliable = ["reliable" in words for words in named]
    both = [one and other for one, other in zip(free, reliable, strict=True)]
    called = [not words.isdisjoint(CALLED) for words in named]
    for fits in (called, both, free, reliable):
        if any(fits) and not all(fits):
            return groups[fits.index(True)]
    return groups[0]
