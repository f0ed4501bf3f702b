"""What is known of a workload before it runs, told by a file beside it: workload.toml in its folder, or for a NAME.py
NAME.workload.toml. The harness reads it and knows nothing else of any workload; a workload needs none. And what
papers say of such numbers, as suites write it down."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from lossbench.errors import UsageError
from lossbench.spec.userfile import Frozen, check, read_toml

SHIPPED = Path(__file__).resolve().parent.parent / "workloads"
FORMER = {"collectives": "allreduce"}  # names that stored runs and older files use


class Measure(Frozen):
    """One number of a workload's results."""

    better: Literal["low", "high", ""] = ""
    """Which way is an improvement."""
    column: Literal["timing", "outcome", ""] = ""
    """The column of the verdict that it stands on: times and rates need a quiet machine. Empty: by its unit or name."""
    meaning: str = ""
    """In words, for whoever reads a table."""


class Stated(Frozen):
    """What a paper says of a point, to be held against what is measured here."""

    measure: str
    """Of the results, such as perplexity."""
    change_percent: float
    """Against the loss-free point."""
    at_most: bool = False
    """It is a bound (of what should be high: at least); else a figure, and what differs by over a quarter of it either
    way does not reproduce it."""
    source: str
    """Whose word it is."""


class Law(Frozen):
    """How a number is bounded by others: by a power of their product."""

    measure: str
    """Of the results."""
    over: Annotated[tuple[str, ...], Field(min_length=1)]
    """Dotted keys of numbers, such as topology.hosts."""
    exponent: float
    """As it is said of each of them: the slopes of the points' logarithms, one for each, are to be at most this."""
    source: str
    """Whose word it is."""
    beside: str = ""
    """What must be known to read the slopes."""


class About(Frozen):
    """The file beside a workload."""

    why: str = ""
    """What it does, in a line."""
    preload: tuple[str, ...] = ()
    """Modules that take long to import: loaded once, ranks are forked from there."""
    prepare: str = ""
    """A module that is run once before anything is built, with all options on standard input: checks, downloads."""
    conclude: str = ""
    """A module that is run once when all ranks have ended, with the run's folder on standard input: it prints records
    (rows, summaries, doubts) that speak of all ranks together."""
    control_mb: float = 0.0
    """Megabytes that all ranks together may send over the control links (metrics, a store): more of them, and more than
    one percent of what went over the data links, make the fault unknown. The first megabyte is always free."""
    silent: bool = False
    """It sends nothing by design: a run without a packet is no doubt."""
    silent_with: dict[str, JsonValue] = {}
    """So it is with these options, too: what it was told not to send is no doubt."""
    until: bool = False
    """It can end when a number is known well enough (`lossbench run --until p99=5%`)."""
    simulates: bool = False
    """It can draw loss itself (backend = "simulated")."""
    measures: dict[str, Measure] = {}
    """Of the numbers in its rows and summaries, by name."""

    def is_silent(self, options: Mapping[str, JsonValue]) -> bool:
        told = bool(self.silent_with) and all(options.get(name) == one for name, one in self.silent_with.items())
        return self.silent or told


def called_now(name: str) -> str:
    """What a name of before is called today."""
    first, dot, rest = name.partition(".")
    return FORMER.get(first, first) + dot + rest


def module_of(name: str) -> str:
    """What `python -m` runs: one of ours by its short name, or a user's own module."""
    name = called_now(name)
    return f"lossbench.workloads.{name}" if is_ours(name) else name


def is_ours(name: str) -> bool:
    """A single file is a workload if it says so in one beside it; others there are parts of workloads."""
    found = _file(SHIPPED, called_now(name))
    return found is not None and (found.parent != SHIPPED or found.with_suffix(".workload.toml").exists())


def find(name: str) -> Path:
    """The file that a workload's name leads to: ours, or a module on the user's path or in the current folder."""
    name = called_now(name)
    ours = [SHIPPED] if is_ours(name) else []
    for folder in (*ours, *(Path(part) for part in sys.path if part.startswith(os.sep)), Path.cwd()):
        found = _file(folder, name)
        if found is not None:
            return found
    raise UsageError(
        f"no workload '{name}'", next_step=f"known: {', '.join(known())}; or a module of yours, or a command"
    )


def known() -> list[str]:
    single = [path.name.partition(".")[0] for path in SHIPPED.glob("*.workload.toml")]
    return sorted([*single, *(path.parent.name for path in SHIPPED.glob("*/__main__.py"))])


def _file(folder: Path, name: str) -> Path | None:
    path = folder / name.replace(".", "/")
    return next((one for one in (path.with_suffix(".py"), path / "__main__.py") if one.is_file()), None)


def about(name: str) -> About:
    program = find(name)
    beside = (
        program.parent / "workload.toml" if program.name == "__main__.py" else program.with_suffix(".workload.toml")
    )
    return check(About, read_toml(beside), origin=str(beside)) if beside.exists() else About()


@lru_cache(maxsize=1)
def shipped_measures() -> dict[str, Measure]:
    """Of all workloads that come along: results that were stored before measures were kept beside them need these."""
    return {name: measure for workload in known() for name, measure in about(workload).measures.items()}
