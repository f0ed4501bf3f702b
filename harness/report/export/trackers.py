"""Where people look at runs: TensorBoard's event files, and runs of Weights & Biases that are uploaded later, if ever.
Both by their own libraries, which are asked for only here."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars

from lossbench.errors import NotAbleError
from lossbench.files import disk_errors
from lossbench.report.content import Content
from lossbench.report.groups import rows_of, shown_in
from lossbench.report.plots.curves import records
from lossbench.results.index import Run
from lossbench.results.measures import number

CURVES = ("loss", "pair")
NAMES = {"pair": "drift"}


def _library(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotAbleError(f"this needs {package}", next_step=f"pip install {package}") from None


def tensorboard(contents: list[Content], folder: Path) -> int:
    """A folder for every run; how many."""
    library = _library("tensorboardX", "tensorboardX")
    with disk_errors(folder, full="give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        count = 0
        for content, run in _runs(contents):
            writer = library.SummaryWriter(logdir=str(folder / _name(content, run)))
            for name, step, value, seconds in _points(content, run):
                writer.add_scalar(name, value, step, walltime=seconds)
            for name, value in _numbers(run).items():
                writer.add_scalar(f"result/{name}", value, 0)
            writer.add_text("lossbench", _about(content, run))
            writer.close()
            count += 1
    return count


def wandb(contents: list[Content], folder: Path) -> int:
    """Offline: nothing leaves this machine before `wandb sync` is typed."""
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    library = _library("wandb", "wandb")
    with disk_errors(folder, full="give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        count = 0
        for content, run in _runs(contents):
            began = library.init(
                project="lossbench",
                name=_name(content, run),
                group=content.suite.id,
                dir=str(folder),
                mode="offline",
                config={**run.summary.point, "seed": run.summary.seed, "verdict": run.summary.verdict},
                tags=[run.summary.verdict, *content.suite.notes.tags],
                notes=content.suite.notes.note or None,
            )
            by_step: dict[int, dict[str, float]] = {}
            for name, step, value, _ in _points(content, run):
                by_step.setdefault(step, {})[name] = value
            for step in sorted(by_step):
                began.log(by_step[step], step=step)
            began.summary.update(_numbers(run))
            began.finish(exit_code=0 if run.summary.verdict == "valid" else 1)
            count += 1
    return count


def _runs(contents: list[Content]) -> Iterator[tuple[Content, Run]]:
    for content in contents:
        for run in content.suite.runs:
            yield content, run


def _name(content: Content, run: Run) -> str:
    """Its curves are drawn whatever the verdict: that no result may stand on them is said where all look."""
    point = "".join(c if c.isalnum() or c in "._+-" else "_" for c in run.name)
    doubt = ".not-valid" if run.standing.void("loss", with_simulated=True) else ""
    doubt += ".simulated" if run.simulated else ""
    return f"{content.suite.name}-{content.suite.id}/{point}-seed{run.summary.seed}{doubt}".replace("//", "/")


def _points(content: Content, run: Run) -> Iterator[tuple[str, int, float, float | None]]:
    """(name, step, mean over ranks, when) of everything that was recorded by steps."""
    table = records(run, content.problems)
    for name in CURVES:
        rows = table.filter(polars.col(name).is_finite() & polars.col("step").is_not_null())
        means = rows.group_by("step").agg(polars.col(name).mean(), polars.col("time_s").mean()).sort("step")
        for step, value, seconds in means.iter_rows():
            yield NAMES.get(name, name), int(step), float(value), seconds


def _numbers(run: Run) -> dict[str, float]:
    """That may be believed; of several rows each under the name of its row."""
    rows = rows_of(run)
    out: dict[str, float] = {}
    for prefix, row in zip(_prefixes(rows), rows, strict=True):
        some = {name: value for name, raw in row.items() if (value := number(raw)) is not None}
        out |= {f"{prefix}{name}": value for name, value in some.items() if not run.standing.void(name, row)}
    return out


def _prefixes(rows: list[dict[str, Any]]) -> list[str]:
    """Empty for a single row; rows that are called alike are numbered."""
    names = [str(row.get(next(iter(shown_in(row)), ""), "")) for row in rows]
    again = [names[: n + 1].count(name) for n, name in enumerate(names)]
    apart = [f"{name} {count}" if count > 1 else name for name, count in zip(names, again, strict=True)]
    return [f"{name.strip()}/" if name and len(rows) > 1 else "" for name in apart]


def _about(content: Content, run: Run) -> str:
    reasons = "\n".join(f"- {column}: {text}" for column, some in run.summary.reasons.items() for text in some)
    return f"{content.suite.name} {run.name}, seed {run.summary.seed}: **{run.summary.verdict}**\n\n{reasons}"
