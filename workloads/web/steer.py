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
        precision = self.options.precision()
        measured = samples.read(folder_of(self.door), self.door.role)
        if precision is None or len(measured) < LEAST:
            return
        q, wanted = precision
        times = samples.times(measured, self.options.page)  # pages under way: the last ones; conclude has them all
        values = times.from_known(checks.warm_up(times.known)).known
        if not len(values):
            return
        independent = checks.independent((values > np.quantile(values, q)).astype(float))
        found = checks.quantile(values, q)
        elapsed = float(measured.at_s[-1])
        if found.relative <= wanted and independent >= 10 / (1 - q):
            self.tell(stop=f"p{100 * q:g} is known to {found.relative:.1%}")
            return
        narrower = (found.relative / wanted) ** 2 if math.isfinite(found.relative) else 1.0
        need = elapsed * max(narrower, 10 / (1 - q) / max(independent, 1))
        if elapsed > self.options.seconds / 4 and need > 2 * self.options.seconds and math.isfinite(need):
            known = f"it is known to {found.relative:.0%} by" if math.isfinite(found.relative) else "there are only"
            so_far = f"after {elapsed:.0f} s {known} {independent} independent samples"
            text = f"p{100 * q:g} can't be known to {wanted:.0%} in {self.options.seconds:g} s: {so_far}"
            self.tell(stop=f"{text}, some {need:.0f} s would do", refused=True)

    # --- rates one after the other ------------------------------------------------------------------------------

    def after_phase(self, number: int, from_s: float, to_s: float) -> None:
        """The first client decides whether a rate was the last one; the others read it when the next would begin."""
        if self.door.rank:
            return
        found = samples.read(folder_of(self.door), self.door.role).between(from_s, to_s)
        values = found.completion_ms
        if len(values) and self.options.stop_mean_ms and float(values.mean()) > self.options.stop_mean_ms:
            self.tell(last_phase=number)
        if self.options.stop_ratio and checks.enough_for(0.99, len(values)):
            p50, p99 = np.quantile(values, (0.5, 0.99))
            if p99 / p50 >= self.options.stop_ratio:
                self.tell(last_phase=number, ratio=round(float(p99 / p50), 3))
