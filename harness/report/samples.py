"""Long samples of a suite, point by point; what may not be believed is kept apart."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossbench.report.groups import Group
from lossbench.results import samples
from lossbench.results.measures import in_ms
from lossbench.results.naming import key_of


@dataclass
class SampleSet:
    """One kind of samples of one point, all seeds together; a step or call counts once, whatever its ranks. `sound`:
    its times may be believed."""

    point: str
    what: str
    sound: bool
    swept: dict[str, Any] = field(default_factory=dict)
    unit: str = "ms"
    together: bool = True  # of a step or call of all ranks, else each is one of its own
    parts: list[NDArray[np.float64]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    void: list[str] = field(default_factory=list)  # why they may not be believed

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
            if kind.aside:
                continue
            standing = replace(run.standing, units={**run.standing.units, what: kind.unit})
            why = standing.void(what, with_simulated=with_simulated)
            sound = not why
            both = out.setdefault((key_of(run.summary.point), what), {})
            factor = in_ms(kind.unit)
            unit = kind.unit if factor is None else "ms"
            one = both.setdefault(sound, SampleSet(name, what, sound, run.summary.point, unit, kind.together))
            one.parts.append(kind.events() * (1.0 if factor is None else factor))
            if kind.cut():
                problems.append(
                    f"{run.folder}: {kind.cut()} samples of {what} without a fellow on every rank: left out"
                )
            one.folders.append(str(run.folder))
            one.void += [why] if why else []
    return [both.get(True) or both[False] for both in out.values()], problems
