"""From a suite's file to its points: what the command line sets, the full form, every combination of a [sweep]."""

from __future__ import annotations

import itertools
import os
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from lossbench.errors import UsageError
from lossbench.spec import about
from lossbench.spec import profile as profiles
from lossbench.spec.asking import arms
from lossbench.spec.asking.arms import ARM
from lossbench.spec.experiment import Experiment
from lossbench.spec.userfile import check, did_you_mean, read_toml, shown

SUITES = Path(__file__).resolve().parents[2] / "workloads" / "suites"


def suite_names() -> list[str]:
    return sorted(path.stem for path in SUITES.rglob("*.toml"))


def find(name_or_path: str) -> Path:
    path = Path(name_or_path)
    if path.suffix == ".toml":
        if not os.path.exists(path):  # noqa: PTH110 - takes every name
            step = f"paths are taken from {Path.cwd()}; lossbench init {path} -- COMMAND writes one"
            raise UsageError(f"{shown(path)}: no such file", next_step=shown(step))
        return path
    known = {path.stem: path for path in SUITES.rglob("*.toml")}
    if name_or_path not in known:
        step = f"{did_you_mean(name_or_path, suite_names())} (lossbench list; or give a .toml file)"
        raise UsageError(f"no suite '{shown(name_or_path)}'", next_step=step)
    return known[name_or_path]


def points(
    path: Path, *, settings: list[str], full: bool = False, until: str = ""
) -> list[tuple[dict[str, Any], Experiment]]:
    """Every point of a suite: what the sweep chose there, and the experiment it makes; all checked before any runs.
    `full`: as [full] says (dotted keys, and a sweep of its own), not the small form. `until`: for programs that can end
    when a number is known well enough."""
    data = read_toml(path)
    data.setdefault("name", path.stem.lower())
    return points_of(data, path=path, settings=settings, full=full, until=until)


def points_of(
    data: dict[str, Any], *, path: Path, settings: list[str], full: bool = False, until: str = ""
) -> list[tuple[dict[str, Any], Experiment]]:
    """Of what stands in a file; `path` is what it is called, and beside which its profiles lie."""
    out = []
    for chosen, point in _written(data, path=path, settings=settings, full=full):
        _profiles_beside(point, path.parent)
        if until:
            _tell_until(point, until, path)
        out.append((chosen, check(Experiment, point, origin=f"{path}, with --set" if settings else str(path))))
    return out


class Named(NamedTuple):
    """A file, as it was written, and beside whose folder it is looked for."""

    written: str
    folder: Path

    @property
    def path(self) -> Path:
        return _beside(self.folder, self.written)

    @property
    def beside(self) -> bool:
        """It would be found wherever the two were brought together."""
        return not Path(self.written).is_absolute() and self.path == self.folder / self.written


def files_named(path: Path, *, settings: list[str], full: bool = False) -> list[Named]:
    """Files of the user's own that the points of a suite are made of: profiles and their traces."""
    found: dict[Named, None] = {}
    for _, point in _written(read_toml(path), path=path, settings=settings, full=full):
        for entry in _impaired(point):
            profile, folder = entry.get("profile"), path.parent
            if str(profile).endswith(".toml"):
                own = Named(str(profile), folder)
                found[own] = None
                profile, folder = read_toml(own.path), own.path.parent
            if isinstance(profile, dict) and (trace := profiles.trace_of(profile)):
                found[Named(trace, folder)] = None
    return list(found)


def _written(
    data: dict[str, Any], *, path: Path, settings: list[str], full: bool
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every point as it was written: what the sweep chose there, and all of it; files that it names are not read."""
    _apply_full(data, wanted=full, path=path)
    pairs = [_pair(setting) for setting in settings]
    wanted = [str(value) for key, value in pairs if key == ARM]
    pairs = [pair for pair in pairs if pair[0] != ARM]
    for key, value in pairs:
        _assign(data, key, _copy(value), origin=f"--set {key}")
    sweep = data.pop("sweep", {})
    if isinstance(sweep, dict):  # what the command line says is not swept over, nor anything inside it
        sweep = {one: values for one, values in sweep.items() if not any(arms.within(one, key) for key, _ in pairs)}
    if not isinstance(sweep, dict) or not all(isinstance(v, list) and v for v in sweep.values()):
        raise UsageError(f"{path}: sweep must map dotted keys to lists of values")
    if wanted:
        sweep = sweep | {ARM: arms.wanted(sweep.get(ARM, []), wanted, path)}
    out, met = [], arms.Met()
    for combination in itertools.product(*sweep.values()):
        chosen = dict(zip(sweep, combination, strict=True))
        point = _copy(data)
        swept: arms.Pairs = []
        for key, value in chosen.items():
            swept += [(key, value)] if key != ARM else arms.keys_of(value, path)
        for key, value in swept:
            _assign(point, key, _copy(value), origin=f"{path}: sweep")
        for key, value in met.won(swept, pairs, keeps=arms.kept_by(chosen)):
            _assign(point, key, _copy(value), origin=f"--set {key}")
        if ARM in chosen:
            chosen[ARM] = met.name(chosen[ARM], point)
        out.append((chosen, point))
    met.check(out, pairs)
    return out


def _pair(setting: str) -> tuple[str, Any]:
    key, separator, value = setting.partition("=")
    if not separator or not key.strip():
        raise UsageError(f"--set {setting}: not KEY=VALUE", next_step="for example --set topology.hosts=8")
    return key.strip(), _value(value.strip())


def keys_set(data: dict[str, Any], *, settings: list[str], full: bool = False) -> set[str]:
    """Dotted keys that the command line, the sweep or one of its arms sets: what a point is called by."""
    changes = data.get("full")
    large = changes.get("sweep") if full and isinstance(changes, dict) else None
    sweep = data.get("sweep", {}) if large is None else large
    pairs = [pair for pair in map(_pair, settings) if pair[0] != ARM]
    if isinstance(sweep, dict):
        ways = [arm for arm in sweep.get(ARM, []) if isinstance(arm, dict)]
        pairs += [(key, value) for key, values in sweep.items() if key != ARM for value in values]
        pairs += [(key, value) for arm in ways for key, value in arms.keys_of(arm, Path())]
    return {key for pair in pairs for key in _keys_below(*pair)}


def _keys_below(key: str, value: Any) -> list[str]:
    """A table sets every key of its own."""
    if not isinstance(value, dict):
        return [key]
    return [one for name, below in value.items() for one in _keys_below(f"{key}.{name}", below)]


def _tell_until(point: dict[str, Any], until: str, path: Path) -> None:
    programs = [point.get("workload", {}), *point.get("beside", [])]
    able = [one for one in programs if not one.get("command") and about.about(one.get("name", "noop")).until]
    if not able:
        raise UsageError(
            f"{path}: no program there can end by --until", next_step="web can: as in the suite colocation"
        )
    for one in able:
        one.setdefault("options", {})["until"] = until


def _apply_full(data: dict[str, Any], *, wanted: bool, path: Path) -> None:
    changes = data.pop("full", None)
    if not wanted:
        return
    if not isinstance(changes, dict):
        raise UsageError(f"{path} has no full form", next_step="run it without --full")
    sweep = changes.pop("sweep", None)
    for key, value in changes.items():
        _assign(data, key, value, origin=f"{path}: full")
    if sweep is not None:
        data["sweep"] = sweep


def _profiles_beside(point: dict[str, Any], folder: Path) -> None:
    """A profile given as a file, or the trace of one that is written here, lies beside the experiment's own file."""
    for entry in _impaired(point):
        if isinstance(entry.get("profile"), dict):
            profiles.read_trace_beside(entry["profile"], folder)
        if str(entry.get("profile", "")).endswith(".toml"):
            entry["profile"] = str(_beside(folder, entry["profile"]))


def _impaired(point: dict[str, Any]) -> list[dict[str, Any]]:
    entries = point.get("impair")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _beside(folder: Path, name: str) -> Path:
    """Pathlib's own `exists` would not take every name that a file may hold."""
    return folder / name if os.path.exists(folder / name) else Path(name)  # noqa: PTH110


def _value(text: str) -> Any:
    """A TOML value, or a bare word."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _copy(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _copy(v) for k, v in data.items()}
    return [_copy(v) for v in data] if isinstance(data, list) else data


def _assign(data: Any, dotted: str, value: Any, *, origin: str) -> None:
    """Set a key like `topology.hosts` or `impair.0.profile`; lists take numbers."""
    *path, last = dotted.split(".")
    for part in path:
        data = _step_into(data, part, origin=origin)
    if isinstance(data, list):
        data[_index(data, last, origin=origin)] = value
    elif isinstance(data, dict):
        data[last] = value
    else:
        raise UsageError(f"{origin}: '{last}' has nothing above it to belong to")


def _step_into(data: Any, part: str, *, origin: str) -> Any:
    if isinstance(data, list):
        return data[_index(data, part, origin=origin)]
    if not isinstance(data, dict):
        raise UsageError(f"{origin}: '{part}' has nothing below it")
    return data.setdefault(part, {})


def _index(data: list[Any], part: str, *, origin: str) -> int:
    numbers = {str(number): number for number in range(len(data))}
    if part not in numbers:
        raise UsageError(f"{origin}: '{shown(part)}' is not one of 0 to {len(data) - 1}")
    return numbers[part]
