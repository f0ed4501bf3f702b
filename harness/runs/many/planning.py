"""From what was asked for to the runs that it takes."""

from __future__ import annotations

import math
import secrets
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.results.folders import SuiteFolder
from lossbench.results.naming import key_of, point_name
from lossbench.runs.ground import Places
from lossbench.runs.many import suite as suites
from lossbench.runs.many.campaign import Part
from lossbench.runs.many.suite import Planned
from lossbench.spec.asking import adhoc, points
from lossbench.spec.asking import campaign as campaigns
from lossbench.spec.userfile import read_toml

GIVE = "give a suite (lossbench list), a .toml file, or -- and a command"


def planned(
    suite: str | adhoc.Asked,
    settings: list[str],
    seeds: int | None,
    *,
    full: bool,
    out: Path,
    resume: bool,
    until: str = "",
    ground: Places | None = None,
) -> tuple[SuiteFolder | None, str, list[Planned]]:
    """(the folder to go on with, the run's id, all runs)."""
    if seeds is not None and seeds < 1:
        raise UsageError(f"seeds {seeds}: at least 1", next_step="every point is run once for each of them")
    if isinstance(suite, str) and suite not in points.suite_names() and Path(suite).is_dir():
        if not resume:
            step = "to continue an interrupted run add --resume"
            raise UsageError(f"{suite} is a folder", next_step=step if suites.is_one(Path(suite)) else GIVE)
        if settings or full or seeds or until:
            step = "drop --set, --arm, --seeds, --full, --backend, --until"
            raise UsageError("a folder is resumed as it was planned", next_step=step)
        return suites.resume(Path(suite))
    if resume and isinstance(suite, str) and "/" in suite and not Path(suite).exists():
        raise UsageError(f"{suite}: no such folder", next_step="lossbench report lists those that can be resumed")
    asked: dict[str, Any] = {"settings": settings, "full": full, "until": until}
    if isinstance(suite, adhoc.Asked):
        found = points.points_of(tomllib.loads(adhoc.text(suite)), path=Path("command line"), **asked)
    else:
        found = points.points(points.find(suite), **asked)
    if ground is not None:
        keys = _keys_set(suite, settings, full=full)
        found = [(chosen, ground.placed(experiment, keys)) for chosen, experiment in found]
    plan = suites.plan_of(found, seeds=seeds)
    if resume:
        return suites.resume(suites.newest_unfinished(out, plan))
    return None, secrets.token_hex(3), plan


def _keys_set(suite: str | adhoc.Asked, settings: list[str], *, full: bool) -> set[str]:
    """See points.keys_set. A number of hosts on the command line is asked for too, be it the usual one."""
    if isinstance(suite, str):
        return points.keys_set(read_toml(points.find(suite)), settings=settings, full=full)
    typed = {"topology.hosts"} if suite.hosts else set()
    return typed | points.keys_set(tomllib.loads(adhoc.text(suite)), settings=settings, full=full)


def _only(entry: campaigns.Entry, plan: list[Planned]) -> list[Planned]:
    """The points that a campaign names: by name, so that they stay the same when a suite gets others, or by place."""
    points = {key_of(one.chosen): point_name(one.chosen) for one in plan}
    names = list(points.values())
    step = f"lossbench run {entry.suite}{' --full' if entry.full else ''} --dry-run shows them"
    wanted = set()
    for one in entry.only:
        if isinstance(one, int) and not 0 <= one < len(names):
            raise UsageError(f"{entry.suite} has no point {one}: 0 to {len(names) - 1}", next_step=step)
        if isinstance(one, str) and names.count(one) != 1:
            several = f"{names.count(one)} points" if one in names else "no point"
            raise UsageError(f"{entry.suite} has {several} called '{one}'", next_step=step)
        wanted.add(one if isinstance(one, int) else names.index(one))
    places = dict(zip(points, range(len(points)), strict=True))
    chosen = [one for one in plan if not entry.only or places[key_of(one.chosen)] in wanted]
    return [replace(one, number=number) for number, one in enumerate(chosen)]


def parts_of(file: Path) -> list[Part]:
    """Of a campaign; a mistake in the last suite is said before the first one runs."""
    asked = campaigns.load(file)
    parts = [
        Part(
            name=name,
            plan=_only(
                one, planned(one.suite, [*asked.set, *one.set], one.seeds, full=one.full, out=Path(), resume=False)[2]
            ),
            budget_s=60 * one.minutes if one.minutes is not None else math.inf,
        )
        for name, one in zip(_names(asked.run, file.parent), asked.run, strict=True)
    ]
    for number, part in enumerate(parts):
        if any(part.plan == before.plan for before in parts[:number]):
            raise UsageError(
                f"{file}: {part.name} is asked for twice, with the same runs", next_step="drop one of them"
            )
    return parts


def _names(entries: list[campaigns.Entry], folder: Path) -> list[str]:
    """Of suites as they are called; of those that are called alike, all that the campaign says of them."""
    own = [next((word[5:] for word in one.set if word.startswith("name=")), "") for one in entries]
    short = [name or Path(one.suite).stem for name, one in zip(own, entries, strict=True)]
    return [name if short.count(name) == 1 else _in_full(one, folder) for name, one in zip(short, entries, strict=True)]


def _in_full(entry: campaigns.Entry, folder: Path) -> str:
    own = Path(entry.suite)
    words = [str(own.relative_to(folder)) if own.suffix and own.is_relative_to(folder) else entry.suite]
    words += ["full"] if entry.full else []
    words += [f"{entry.seeds} seeds"] if entry.seeds is not None else []
    words += [f"only {','.join(map(str, entry.only))}"] if entry.only else []
    return ", ".join([*words, *entry.set])
