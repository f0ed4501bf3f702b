"""Results as data frames: what tables say, one number a line; runs, a line each; the records of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars

from lossbench.errors import UsageError
from lossbench.files import disk_errors
from lossbench.report.content import TABLES, Content
from lossbench.report.groups import Group
from lossbench.report.plots.curves import records
from lossbench.report.tables.differences import differences
from lossbench.results.index import Run

OWN = ("runs", "steps")


def frame(content: Content, name: str) -> polars.DataFrame:
    """A table by its name (results, proven, differences, ...), or `runs`, or `steps`."""
    if name == "runs":
        return polars.DataFrame(
            [_run(group, run) for group in content.groups for run in group.runs], infer_schema_length=None
        )
    if name == "steps":
        return _steps(content)
    if name not in content.named:
        here = ", ".join([*content.named, *OWN])
        if name in {make.__name__ for make in TABLES}:
            needs = "differences need two seeds or more (seeds=5); " if name == differences.__name__ else ""
            raise UsageError(f"this result has nothing for table '{name}'", next_step=f"{needs}there are: {here}")
        raise UsageError(f"no table '{name}'", next_step=f"known: {here}")
    return polars.DataFrame([_plain(line) for line in content.named[name].tidy], infer_schema_length=None)


def write(contents: list[Content], folder: Path, *, parquet: bool) -> list[Path]:
    """results, runs, steps: of all suites together, a file each."""
    out = []
    with disk_errors(folder, full="give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("results", *OWN):
            some = [frame(one, name) for one in contents if name in OWN or name in one.named]
            table = (
                polars.concat([one for one in some if len(one)], how="diagonal_relaxed")
                if any(map(len, some))
                else None
            )
            if table is None:
                continue
            path = folder / f"{name}.{'parquet' if parquet else 'csv'}"
            table.write_parquet(path) if parquet else table.write_csv(path)
            out.append(path)
    return out


def _plain(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "folders": " ".join(line.get("folders", []))}


def _run(group: Group, run: Run) -> dict[str, Any]:
    """What was asked, what is believed of it, every number; one that may not be averaged is there, and so is why."""
    summary = run.summary
    values = {name: value for name, some in group.values.items() for value in some if value.run is run}
    return {
        "point": group.name,
        **{f"point.{key}": str(value) for key, value in group.point.items()},
        "seed": summary.seed,
        "verdict": summary.verdict,
        **{f"verdict.{column}": word for column, word in summary.columns.items()},
        "asked_loss": max(summary.asked_loss, default=0.0),
        "lost": summary.met.loss,
        **{name: float(value.number) for name, value in values.items()},
        "void": "; ".join(sorted({f"{name}: {value.void}" for name, value in values.items() if value.void})),
        "folder": str(run.folder),
    }


def _steps(content: Content) -> polars.DataFrame:
    """What ranks recorded at their steps."""
    parts = []
    for run in content.suite.runs:
        found = records(run, content.problems).filter(polars.col("step").is_not_null())
        about = {"point": run.name, "seed": run.summary.seed, "run": run.number, "verdict": run.summary.verdict}
        about |= {f"verdict.{column}": word for column, word in run.summary.columns.items()}
        about["simulated"] = run.simulated
        parts.append(found.with_columns(**{name: polars.lit(value) for name, value in about.items()}))
    return polars.concat(parts) if parts else polars.DataFrame()
