"""A campaign's file: suites in order of importance, each as its command line would say it, with minutes of its own."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from lossbench.spec.userfile import Frozen, check, read_toml


class Entry(Frozen):
    """[[run]]: one suite."""

    suite: str
    """By name, or an experiment's file (beside the campaign's own)."""
    minutes: float | None = Field(default=None, gt=0)
    """Of a session; what is left when all have had theirs goes to those that are not done, from the first. Without:
    all that is left."""
    seeds: int | None = Field(default=None, ge=1)
    """Of every point, as --seeds."""
    full: bool = False
    """As --full."""
    set: list[str] = []
    """KEY=VALUE, as --set."""
    only: list[int] = []
    """Of its points these, counted from 0 in the order of --dry-run; without: all."""
    why: str = ""
    """For readers."""


class Campaign(Frozen):
    """Suites in order of importance."""

    why: str
    """What it is for."""
    run: list[Entry] = Field(min_length=1)
    """The most important first."""
    set: list[str] = []
    """For every suite, before its own."""


def load(path: Path) -> Campaign:
    found = check(Campaign, read_toml(path), origin=str(path))
    return found.model_copy(update={"run": [_beside(one, path.parent) for one in found.run]})


def _beside(entry: Entry, folder: Path) -> Entry:
    own = Path(entry.suite)
    if own.suffix != ".toml" or own.is_absolute():
        return entry
    return entry.model_copy(update={"suite": str(folder / own)})
