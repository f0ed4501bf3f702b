"""For a program of one's own: numbers for the table of its run. Outside of a run they go nowhere, and nothing happens.

import lossbench
lossbench.record("step", step=7, loss=2.3)
lossbench.summary(accuracy=0.91, tokens_s=1200.0, units={"tokens_s": "1/s"})
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from lossbench.contract import Door


@cache
def _door() -> Door:
    return Door.from_environment()


def record(kind: str, **fields: Any) -> None:
    """A line in this rank's records. `step` drives schedules by step and the view of how it goes."""
    _door().record(kind, **fields)


def summary(*, units: Mapping[str, str] | None = None, **numbers: float) -> None:
    """Final numbers of this rank: columns of the results table, averaged over ranks. What is said again, after every
    epoch for example, replaces what was said before. What has a time or a rate for its unit is believed only where the
    machine was quiet enough."""
    _door().record("summary", **numbers, **({"units": dict(units)} if units else {}))
