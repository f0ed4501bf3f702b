"""Long sets of numbers: eight bytes each while a run goes on, Parquet once it has ended and they are many."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LONG = 10_000  # samples of a run; fewer stay as they are
FILE = "samples.parquet"
Numbers = NDArray[np.float64]


@dataclass(kw_only=True)
class SampleKind:
    """All samples of one name in one run."""

    unit: str = "ms"
    together: bool = True  # the n-th of every rank is the same event
    aside: bool = False  # about other samples: in no table
    ranks: dict[int, Numbers] = field(default_factory=dict)

    def events(self) -> Numbers:
        """One number for each: four ranks that waited for one stall are one stall. About in the order of time."""
        parts = [numbers for numbers in self.ranks.values() if len(numbers)]
        if not parts:
            return np.zeros(0)
        if not self.together or len(parts) == 1:  # ranks began and ended together
            when = np.concatenate([np.arange(len(numbers)) / len(numbers) for numbers in parts])
            return np.asarray(np.concatenate(parts)[np.argsort(when, kind="stable")])
        shortest = min(map(len, parts))
        return np.asarray(np.max([numbers[:shortest] for numbers in parts], axis=0))

    def cut(self) -> int:
        """Samples of ranks that went on longer than others."""
        sizes = [len(numbers) for numbers in self.ranks.values() if len(numbers)]
        return sum(size - min(sizes) for size in sizes) if self.together and sizes else 0


Samples = dict[str, SampleKind]


def _raw(folder: Path) -> dict[tuple[str, int], Path]:
    out = {}
    for path in sorted((folder / "samples").glob("*.rank-*.f64")):
        name, _, rank = path.name.removesuffix(".f64").rpartition(".rank-")
        if rank.isdecimal():
            out[name, int(rank)] = path
    return out


def _numbers(path: Path) -> NDArray[np.float64]:
    whole = path.stat().st_size // 8  # a rank that was killed may have left half a number
    return np.fromfile(path, dtype="<f8", count=whole)


def pack(folder: Path) -> bool:
    """If they are many and polars is here: one Parquet file (name, rank, value) instead of the raw ones."""
    raw = _raw(folder)
    if sum(path.stat().st_size for path in raw.values()) < 8 * LONG or importlib.util.find_spec("polars") is None:
        return False
    import polars

    parts = [(name, rank, _numbers(path)) for (name, rank), path in raw.items()]
    sizes = [len(numbers) for _, _, numbers in parts]
    table = polars.DataFrame(
        {
            "name": polars.Series(np.repeat([name for name, _, _ in parts], sizes), dtype=polars.Categorical),
            "rank": np.repeat([rank for _, rank, _ in parts], sizes).astype(np.int32),
            "value": np.concatenate([numbers for _, _, numbers in parts]),
        }
    )
    unfinished = folder / f"{FILE}.part"
    try:
        table.write_parquet(unfinished)
        os.replace(unfinished, folder / FILE)
    except OSError:  # a full disk: the raw ones are there still
        unfinished.unlink(missing_ok=True)
        return False
    for path in raw.values():
        path.unlink()
    return True


def read(folder: Path) -> tuple[Samples, list[str]]:
    """By name; and what could not be read."""
    out: Samples = {}
    problems: list[str] = []
    for (name, rank), numbers in _stored(folder, problems):
        kind = out.setdefault(name, _about(folder, name))
        before = kind.ranks.get(rank)
        kind.ranks[rank] = numbers if before is None else np.concatenate((before, numbers))
    return out, problems


def _stored(folder: Path, problems: list[str]) -> Iterator[tuple[tuple[str, int], Numbers]]:
    if (folder / FILE).exists():
        import polars

        try:
            table = polars.read_parquet(folder / FILE, columns=["name", "rank", "value"])
            table = table.with_columns(polars.col("value").cast(polars.Float64))
            for (name, rank), rows in table.group_by(["name", "rank"], maintain_order=True):
                yield (str(name), int(rank)), rows["value"].to_numpy()
        except (OSError, polars.exceptions.PolarsError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            problems.append(f"{folder / FILE}: damaged, or not ours ({first}): left out")
    for key, path in _raw(folder).items():
        try:
            yield key, _numbers(path)
        except OSError as error:
            problems.append(f"{path}: can't be read ({error.strerror}): left out")


def _about(folder: Path, name: str) -> SampleKind:
    """As the workload declared it; older runs declared nothing."""
    for path in sorted((folder / "samples").glob(f"{glob.escape(name)}.rank-*.json")):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            aside = bool(found.get("aside"))
            return SampleKind(unit=str(found["unit"]), together=bool(found["together"]), aside=aside)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return SampleKind()
