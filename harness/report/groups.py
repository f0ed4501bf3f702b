"""Runs that differ in nothing but the seed, brought together; what stands on an unproven column is kept apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harness import measures
from harness.report.index import Run, Suite


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
    runs: list[Run] = field(default_factory=list)
    values: dict[str, list[Value]] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def simulated(self) -> bool:
        return any(run.simulated for run in self.runs)

    def sound(self, measure: str) -> dict[int, float]:
        """By seed: what may be averaged and compared."""
        return {v.run.summary.seed: v.number for v in self.values.get(measure, []) if not v.void}

    def void(self, measure: str) -> list[Value]:
        return [v for v in self.values.get(measure, []) if v.void]


def void_of(run: Run, measure: str, *, row: dict[str, Any] | None = None, with_simulated: bool = False) -> str:
    """Why a measure of this run may not be averaged; empty if it may."""
    return measures.void_because(
        measure, row or {}, columns=run.summary.columns, simulated=run.simulated, with_simulated=with_simulated
    )


def groups_of(suite: Suite, *, with_simulated: bool = False) -> list[Group]:
    """In the order of the plan."""
    out: dict[tuple[str, str], Group] = {}
    for run in suite.runs:
        several = len(run.summary.rows) > 1
        for row in run.summary.rows or [_from_summaries(run)]:
            shown = [name for name in row.get("shown", list(row)) if isinstance(name, str)]
            what = str(row.get(shown[0], "")) if shown else ""
            name = f"{run.name}: {what}" if several else run.name
            name += " (simulated)" if run.simulated else ""
            key = json.dumps(run.summary.point, sort_keys=True), what if several else ""
            group = out.setdefault(key, Group(name=name, point=run.summary.point))
            _add(group, run, row, shown, with_simulated=with_simulated)
    _tell_apart(list(out.values()))
    return list(out.values())


def _tell_apart(groups: list[Group]) -> None:
    """Points that happen to be called alike get a number."""
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
        number = measures.number(raw)
        if number is None or measure in measures.NOT_MEASURED:
            continue
        why = void_of(run, measure, row=row, with_simulated=with_simulated)
        group.values.setdefault(measure, []).append(Value(run, number, why))


def shown_of(groups: Iterable[Group]) -> list[str]:
    """Measures that a table shows, in the order of the first group that has them."""
    out: dict[str, None] = {}
    for group in groups:
        out |= dict.fromkeys(name for name in group.shown if name in group.values)
    return list(out)
