"""Long sets of numbers: eight bytes each while a run goes on, Parquet once it has ended and they are many."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LONG = 10_000  # samples of a run; fewer stay as they are
FILE = "samples.parquet"
Samples = dict[str, NDArray[np.float64]]


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
    """All ranks together, by name; and what could not be read."""
    parts: dict[str, list[NDArray[np.float64]]] = {}
    problems = []
    if (folder / FILE).exists():
        import polars

        try:
            table = polars.read_parquet(folder / FILE, columns=["name", "value"])
            table = table.with_columns(polars.col("value").cast(polars.Float64))
            for (name,), rows in table.group_by(["name"], maintain_order=True):
                parts.setdefault(str(name), []).append(rows["value"].to_numpy())
        except (OSError, polars.exceptions.PolarsError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            problems.append(f"{folder / FILE}: damaged, or not ours ({first}): left out")
    for (name, _), path in _raw(folder).items():
        try:
            numbers = _numbers(path)
            parts.setdefault(name, []).append(numbers)
        except OSError as error:
            problems.append(f"{path}: can't be read ({error.strerror}): left out")
    return {name: np.concatenate(some) for name, some in parts.items()}, problems
