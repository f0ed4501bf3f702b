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
    only: list[int | str] = []
    """Of its points these: by name, as --dry-run has them, or counted from 0 in that order; without: all."""
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
    runs = [_beside(one, path.parent) for one in found.run]
    return found.model_copy(update={"run": runs, "set": _set_beside(found.set, path.parent)})


def _beside(entry: Entry, folder: Path) -> Entry:
    own = Path(entry.suite)
    lies = own.suffix == ".toml" and not own.is_absolute()
    suite = str(folder / own) if lies else entry.suite
    return entry.model_copy(update={"suite": suite, "set": _set_beside(entry.set, folder)})


def _set_beside(settings: list[str], folder: Path) -> list[str]:
    """A profile that is set to a file lies beside the campaign's own, as suites do; else where --set would look."""
    out = []
    for one in settings:
        key, _, value = one.partition("=")
        name = value.strip().strip("\"'")
        own = key.strip().endswith(".profile") and name.endswith(".toml") and (folder / name).exists()
        out.append(f"{key}={folder / name}" if own else one)
    return out
