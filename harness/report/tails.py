"""Percentiles of long sample sets, each only with enough samples behind it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import samples
from harness.measures import in_ms, short
from harness.naming import key_of
from harness.report import inference
from harness.report.groups import Group
from harness.report.index import Suite
from harness.report.tables import Cell, Table

PERCENTILES = (0.5, 0.99, 0.999)


@dataclass
class SampleSet:
    """One kind of samples of one point, all seeds together; a step or call counts once, whatever its ranks. `sound`:
    its times may be believed."""

    point: str
    what: str
    sound: bool
    swept: dict[str, Any] = field(default_factory=dict)
    unit: str = "ms"
    parts: list[NDArray[np.float64]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        unit = "" if self.unit == "ms" else f" ({self.unit})"
        return (self.point if self.what == "step_ms" else f"{self.point}: {self.what.removesuffix('_ms')}") + unit

    @property
    def numbers(self) -> NDArray[np.float64]:
        return np.concatenate(self.parts)


def sample_sets(groups: list[Group], *, with_simulated: bool = False) -> tuple[list[SampleSet], list[str]]:
    """Each run's samples are read once; what may not be believed is kept apart, and used only where nothing else is."""
    out: dict[tuple[str, str], dict[bool, SampleSet]] = {}
    problems: list[str] = []
    for run in {run.folder: run for group in groups for run in group.runs}.values():
        found, faults = samples.read(run.folder)
        problems += faults
        name = run.name + (" (simulated)" if run.simulated else "")
        for what, kind in found.items():
            standing = replace(run.standing, units={**run.standing.units, what: kind.unit})
            sound = not standing.void(what, with_simulated=with_simulated)
            both = out.setdefault((key_of(run.summary.point), what), {})
            factor = in_ms(kind.unit)
            unit = kind.unit if factor is None else "ms"
            one = both.setdefault(sound, SampleSet(name, what, sound, run.summary.point, unit))
            one.parts.append(kind.events() * (1.0 if factor is None else factor))
            if kind.cut():
                problems.append(
                    f"{run.folder}: {kind.cut()} samples of {what} without a fellow on every rank: left out"
                )
            one.folders.append(str(run.folder))
    return [both.get(True) or both[False] for both in out.values()], problems


def tails(suite: Suite, sets: list[SampleSet]) -> Table | None:
    rows, tidy = [], []
    for one in sets:
        numbers = one.numbers
        if not len(numbers):
            continue
        mark, style = ("", "") if one.sound else ("?", "void")
        values = [inference.percentile(numbers, q) for q in PERCENTILES]
        texts = ["-" if value is None else short(value) + mark for value in values]
        rows.append([
            Cell(one.label), Cell(str(len(numbers))), *(Cell(text, style) for text in texts),
            Cell(short(float(numbers.max())) + mark, style),
        ])  # fmt: skip
        tidy += [
            {
                "suite": suite.name, "point": one.point, "measure": f"{one.what} p{100 * q:g}", "n": len(numbers),
                "mean": value if one.sound else None, "void": 0 if one.sound else len(one.folders),
                "folders": one.folders,
            }
            for q, value in zip(PERCENTILES, values, strict=True)
        ]  # fmt: skip
    if not rows:
        return None
    notes = ["A percentile q is printed only with at least 10/(1-q) samples: p99 needs 1000, p99.9 needs 10000.",
             "A step or call is one sample: as long as its slowest rank took."]  # fmt: skip
    if not all(one.sound for one in sets):
        notes.append("?: not to be believed: too busy, failed, simulated, or the fault was not proven.")
    head = ["samples (ms)", "n", *(f"p{100 * q:g}" for q in PERCENTILES), "max"]
    return Table(f"{suite.name}: tail", head, rows, notes, tidy)
