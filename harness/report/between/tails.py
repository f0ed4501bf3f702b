"""Percentiles of samples as numbers of a line (step_ms_p99), for whoever limits them: one of each seed, where its run
has enough samples for it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from math import isfinite

import numpy as np

from lossbench.report.groups import Group, Value
from lossbench.results import samples
from lossbench.results.index import Run
from lossbench.results.measures import FEW, needed, percentile_in
from lossbench.results.naming import key_of


def with_tails(groups: list[Group], wanted: Collection[str], *, with_simulated: bool = False) -> list[Group]:
    """Samples are of a point: of several lines of one the first has them. A number that a line has already stays."""
    asked = {name: tail[1] for name in wanted if (tail := re.fullmatch(r"(.+)_p\d\d(\.\d+)?", name))}
    firsts = {key_of(group.point): group for group in reversed(groups)}
    for group in firsts.values() if asked else ():
        new = {name: what for name, what in asked.items() if name not in group.values}
        for run in {run.folder: run for run in group.runs}.values() if new else ():
            found, _ = samples.read(run.folder)
            for name, what in new.items():
                if what in found:
                    value = _value(run, name, found[what], with_simulated=with_simulated)
                    group.values.setdefault(name, []).append(value)
    return groups


def _value(run: Run, name: str, kind: samples.SampleKind, *, with_simulated: bool) -> Value:
    q = percentile_in(name)
    assert q is not None
    numbers = kind.events()
    standing = replace(run.standing, units={**run.standing.units, name: kind.unit})
    if len(numbers) < needed(q):
        return Value(run, float("nan"), f"{FEW} {needed(q)} samples")
    number = float(np.quantile(numbers, q))
    return Value(run, number, standing.void(name, with_simulated=with_simulated) if isfinite(number) else "no number")
