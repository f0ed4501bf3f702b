"""What learning lost beside the service, rate by rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossbench.workloads.replay.conclude import doubts, said
from lossbench.workloads.web.samples import Floats

LOOK_S, QUIET_S, NEAR_S = 0.25, 0.75, 4.0  # of what the workload says; of its pauses; how far one may be


def learning_loss(folder: Path, began: float, phase: dict[str, Any]) -> float | None:
    """What the workload's datagrams lost during one rate, by what its ranks said four times a second."""
    counts = []
    for path in sorted((folder / "records").glob("rank-*.jsonl")):
        said = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        here = [(r["time_s"] - began, sum(r["sent"]), sum(r["received"])) for r in said if r["kind"] == "traffic"]
        counts += [np.array(here).T] if len(here) > 1 else []
    if not counts:
        return None
    at = np.arange(min(one[0][0] for one in counts), max(one[0][-1] for one in counts), LOOK_S)
    sent, received = (sum(np.interp(at, one[0], one[column]) for one in counts) for column in (1, 2))
    quiet = _quiet(sent + received)
    first, last = (_nearest(at, quiet, phase[name]) for name in ("from_s", "to_s"))
    if first is None or last is None or sent[last] - sent[first] < 1:
        return None
    return round(float(1 - (received[last] - received[first]) / (sent[last] - sent[first])), 6)


def _quiet(moved: Floats) -> NDArray[np.int64]:
    """Between two bursts nothing is under way, and what was sent and what came belong together."""
    back = round(QUIET_S / LOOK_S)
    return np.flatnonzero(moved[back:] - moved[:-back] < 1) + back


def _nearest(at: Floats, quiet: NDArray[np.int64], when: float) -> int | None:
    """None: no pause is near enough, and what was lost can't be told from what was under way."""
    near = quiet[np.abs(at[quiet] - when) <= NEAR_S]
    return int(near[np.argmin(np.abs(at[near] - when))]) if len(near) else None


def load_doubt(folder: Path) -> str:
    """Why what the workload sent is not what was asked of it; empty if it is."""
    return "; ".join(doubts(said(folder, "")))
