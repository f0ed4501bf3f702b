"""Several clients, one decision: the first of them reads what all have measured and writes down how to go on."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.contract import Door
from lossbench.workloads.web import checks, samples
from lossbench.workloads.web.http.clock import now
from lossbench.workloads.web.options import Options

LOOK_S = 2.0
LEAST = 400  # samples before anything is decided


def folder_of(door: Door) -> Path:
    """The run's."""
    return Path(door.records_path).parent.parent


@dataclass
class Steer:
    door: Door
    options: Options

    def __post_init__(self) -> None:
        self._next = now() + LOOK_S
        self._found: dict[str, Any] = {}

    @property
    def path(self) -> Path:
        return folder_of(self.door) / "samples" / f"{self.door.role or 'web'}.steer.json"

    def told(self, what: str) -> Any:
        """What was decided, if anything was."""
        if what not in self._found and self.path.exists():
            self._found = json.loads(self.path.read_text(encoding="utf-8"))
        return self._found.get(what)

    def tell(self, **decided: Any) -> None:
        self._found = {**self._found, **decided}
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(self._found), encoding="utf-8")
        os.replace(beside, self.path)

    # --- enough is known (until) ---------------------------------------------------------------------------------

    def enough(self) -> bool:
        """Asked at every turn of a client's loop; looked at every two seconds."""
        if not self.options.until or now() < self._next:
            return bool(self._found.get("stop"))
        self._next = now() + LOOK_S
        if self.door.rank == 0 and not self._found.get("stop"):
            self._judge()
        return bool(self.told("stop"))

    def _judge(self) -> None:
        """What is told has its moment, up to which all clients were asking: they look at it one after the other."""
        precision = self.options.precision()
        measured = samples.read(folder_of(self.door), self.door.role).ended()
        if precision is None or len(measured) < LEAST:
            return
        q, wanted = precision
        times = samples.times(measured, self.options.page)
        values = times.from_known(checks.warm_up(times.known)).ms
        found = checks.quantile(values, q)
        elapsed, late = float(measured.at_s[-1]), float(measured.at_s[-1]) > self.options.seconds / 4
        asked = f"p{100 * q:g} can't be known to {wanted:.0%} in {self.options.seconds:g} s"
        if math.isinf(found.value):
            lost = f"after {elapsed:.0f} s {int(np.isinf(values).sum())} of {len(values)} were never answered"
            if late:
                self.tell(stop=f"{asked}: {lost}", refused=True, until_s=measured.known_to_s)
            return
        independent = checks.independent((values > found.value).astype(float))
        if found.relative <= wanted and independent >= 10 / (1 - q):
            self.tell(stop=f"p{100 * q:g} is known to {found.relative:.1%}", until_s=measured.known_to_s)
            return
        narrower = (found.relative / wanted) ** 2 if math.isfinite(found.relative) else 1.0
        need = elapsed * max(narrower, 10 / (1 - q) / max(independent, 1))
        if late and need > 2 * self.options.seconds and math.isfinite(need):
            known = f"it is known to {found.relative:.0%} by" if math.isfinite(found.relative) else "there are only"
            so_far = f"after {elapsed:.0f} s {known} {independent} independent samples"
            why = f"{asked}: {so_far}, some {need:.0f} s would do"
            self.tell(stop=why, refused=True, until_s=measured.known_to_s)

    # --- rates one after the other ------------------------------------------------------------------------------

    def after_phase(self, number: int, from_s: float, to_s: float) -> None:
        """The first client decides whether a rate was the last one; the others read it when the next would begin."""
        if self.door.rank:
            return
        found = samples.read(folder_of(self.door), self.door.role).between(from_s, to_s)
        if self.options.stop_mean_ms and _mean_at_least(found, to_s, self.options) > self.options.stop_mean_ms:
            self.tell(last_phase=number)
        if self.options.stop_ratio:
            values = np.concatenate([found.completion_ms, np.full(len(found.lost) + len(found.under_way_s), np.inf)])
            ratio = _ratio(values) if checks.enough_for(0.99, len(values)) else 0.0
            if ratio >= self.options.stop_ratio:
                self.tell(last_phase=number, ratio=round(ratio, 3))


def _mean_at_least(found: samples.Measured, to_s: float, options: Options) -> float:
    """Mean completion, had those that were never answered taken their timeout, and were those that are still under way
    answered now: a service that refuses what it can't carry is not fast."""
    lost, waiting = len(found.lost), to_s - found.under_way_s
    count = len(found) + lost + len(waiting)
    whole = found.completion_ms.sum() + 1000 * (lost * options.timeout_s + waiting.sum())
    return float(whole) / count if count else 0.0


def _ratio(values: samples.Floats) -> float:
    """p99 / p50; infinite where p99 falls among those that were not answered."""
    p50, p99 = np.quantile(values, (0.5, 0.99), method="higher")
    return float(p99 / p50) if math.isfinite(p99) else math.inf
