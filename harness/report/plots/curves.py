"""Step records of a run as curves: loss, drift, by steps and by seconds. A line that is damaged is passed over, a file
that is, named."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars
from numpy.typing import NDArray
from scipy import stats

from lossbench.report.groups import Group
from lossbench.results import measures
from lossbench.results.index import Run

FIELDS = {
    "kind": polars.String,
    "step": polars.Int64,
    "loss": polars.Float64,
    "pair": polars.Float64,
    "steps_per_epoch": polars.Float64,
    "time_s": polars.Float64,
}
POINTS = 60  # of a curve that is drawn
BAND_FROM = 3  # seeds


@dataclass(frozen=True)
class Curve:
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Of:
    """What the records of one run draw."""

    loss: Curve | None
    loss_in_time: Curve | None
    drift: Curve | None
    epoch: float | None


class Curves:
    """Loss and drift of groups of runs; each run's records are read once and let go."""

    def __init__(self, groups: list[Group], *, most: int) -> None:
        self.groups = groups[:most]
        self.left_out = f" Only the first {most} of {len(groups)} lines are drawn." if len(groups) > most else ""
        self.problems: list[str] = []
        self._of: dict[Path, Of] = {}
        for run in (run for group in self.groups for run in group.runs):
            table = records(run, self.problems)
            self._of[run.folder] = Of(
                curve(table, "step", "loss"),
                curve(table, "step", "loss", in_time=True),
                curve(table, "drift", "pair"),
                epochs(table),
            )

    def loss(self, group: Group) -> Curve | None:
        return together(one for run in self._drawn(group) if (one := self._of[run.folder].loss) is not None)

    def loss_in_time(self, group: Group) -> Curve | None:
        """Only of runs whose times may be believed."""
        quiet = [run for run in group.runs if not run.standing.void("wall_s")]
        return together(one for run in quiet if (one := self._of[run.folder].loss_in_time) is not None)

    def drift(self, group: Group) -> Curve | None:
        return together(one for run in self._drawn(group) if (one := self._of[run.folder].drift) is not None)

    def _drawn(self, group: Group) -> list[Run]:
        """Those that may be averaged; where there are none, one of the others, and its name says so."""
        return [run for run in group.runs if not run.standing.void("loss")] or group.runs[:1]

    def label(self, group: Group) -> str:
        return group.name if not self._drawn(group)[0].standing.void("loss") else f"{group.name} ?"

    def epoch(self, group: Group) -> float | None:
        """Steps that make an epoch, if the workload said so."""
        return next((e for run in group.runs if (e := self._of[run.folder].epoch)), None)


def records(run: Run, problems: list[str]) -> polars.DataFrame:
    parts = [_read(path, problems) for path in sorted((run.folder / "records").glob("*.jsonl"))]
    return polars.concat(parts) if parts else polars.DataFrame(schema=FIELDS)


def _read(path: Path, problems: list[str]) -> polars.DataFrame:
    try:
        raw = path.read_bytes()
        raw = raw[: raw.rfind(b"\n") + 1]  # a rank that was killed may have left half a line
        return polars.read_ndjson(raw, schema=FIELDS) if raw else polars.DataFrame(schema=FIELDS)
    except OSError as error:
        problems.append(f"{path}: can't be read ({error.strerror}): left out")
        return polars.DataFrame(schema=FIELDS)
    except (polars.exceptions.PolarsError, RuntimeError):  # the latter says an older polars
        return _line_by_line(raw, path, problems)


def _line_by_line(raw: bytes, path: Path, problems: list[str]) -> polars.DataFrame:
    found: list[dict[str, Any]] = []
    lines = raw.decode("utf-8", errors="replace").splitlines()
    for line in lines:
        try:
            record = json.loads(line)
            kept = {name: record.get(name) for name in FIELDS}
            found.append({k: v if k == "kind" else measures.number(v) for k, v in kept.items()})
        except (ValueError, AttributeError):
            continue
    if len(found) < len(lines):
        problems.append(f"{path}: {len(lines) - len(found)} damaged lines left out")
    try:
        return polars.DataFrame(found, schema=FIELDS, strict=False)
    except polars.exceptions.PolarsError:
        problems.append(f"{path}: damaged, or not ours: left out")
        return polars.DataFrame(schema=FIELDS)


def curve(table: polars.DataFrame, kind: str, measure: str, *, in_time: bool = False) -> Curve | None:
    """Mean over ranks at each step; None where there are fewer than two steps. `in_time`: seconds from the end of the
    first step on, instead of steps."""
    rows = table.filter(
        (polars.col("kind") == kind) & polars.col(measure).is_finite() & polars.col("step").is_not_null()
    )
    if not len(rows):
        return None
    means = rows.group_by("step").agg(polars.col(measure).mean(), polars.col("time_s").mean()).sort("step")
    x = means["time_s" if in_time else "step"].cast(polars.Float64).to_numpy()
    if len(x) < 2 or not np.isfinite(x).all() or not (np.diff(x) > 0).all():
        return None
    return Curve(x - x[0] if in_time else x + 1, means[measure].to_numpy())


def windows(one: Curve) -> Curve:
    """Means over windows of steps, few enough to be read."""
    size = max(1, -(-len(one.x) // POINTS))
    cuts = np.arange(0, len(one.x), size)
    counts = np.diff([*cuts, len(one.x)])
    return Curve(np.add.reduceat(one.x, cuts) / counts, np.add.reduceat(one.y, cuts) / counts)


def epochs(table: polars.DataFrame) -> float | None:
    found = table["steps_per_epoch"].drop_nulls()
    return float(found[0]) if len(found) else None


def together(curves: Iterable[Curve]) -> Curve | None:
    """Over seeds, at the steps all have: the geometric mean (losses and distances live on a logarithmic scale), and a
    95 % t-band from three seeds on."""
    some = list(curves)
    if not some:
        return None
    first, last = max(one.x[0] for one in some), min(one.x[-1] for one in some)
    coarsest = min(some, key=lambda one: len(one.x) / (one.x[-1] - one.x[0]))
    steps = coarsest.x[(coarsest.x >= first) & (coarsest.x <= last)]
    if len(steps) < 2:
        return None
    smooth = [windows(Curve(steps, np.interp(steps, one.x, one.y))) for one in some]
    x, table = smooth[0].x, np.array([one.y for one in smooth])
    if not (table > 0).all():
        return Curve(x, table.mean(0))
    table = np.log(table)
    mean = table.mean(0)
    if len(some) < BAND_FROM:
        return Curve(x, np.exp(mean))
    half = stats.t.ppf(0.975, len(some) - 1) * table.std(0, ddof=1) / np.sqrt(len(some))
    return Curve(x, np.exp(mean), np.exp(mean - half), np.exp(mean + half))


def stairs(x: Any, y: Any, *, held: bool) -> Curve:
    """As steps, corner by corner. `held`: a value stays until the next; else the next one is there at once."""
    xs, ys = np.repeat(np.asarray(x, dtype=float), 2), np.repeat(np.asarray(y, dtype=float), 2)
    return Curve(xs[1:], ys[:-1]) if held else Curve(xs[:-1], ys[1:])


def without_zeros(one: Curve) -> Curve:
    """For a logarithmic axis: zero has no place there, and the line has a gap."""
    y = np.where(one.y > 0, one.y, np.nan)
    return Curve(one.x, y, one.low, one.high)
