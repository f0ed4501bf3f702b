"""nccl-tests' columns, by its own rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lossbench.report.export import nccl
from tests.forked import lossbench

from . import made


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [("all_reduce", 4, 1.5), ("all_gather", 4, 0.75), ("reduce_scatter", 2, 0.5), ("broadcast", 8, 1.0)],
)
def test_bus_bandwidth_follows_nccl_tests(operation: str, ranks: int, factor: float) -> None:
    assert nccl.bus_factor(operation, ranks) == factor


def test_collectives_are_printed_in_its_columns(tmp_path: Path) -> None:
    row = {"contender": "lossy", "op": "all_reduce", "dtype": "float32", "mb": 16.0, "n": 4, "p50_ms": 10.0, "wrong": 7}
    idle: dict[str, Any] = {**row, "contender": "gloo", "wrong": None, "note": "it has no such thing"}
    place = made.suite(tmp_path, [{"a": 1}], 1, lambda point, seed: {})
    path = place / "000" / "summary.json"
    made.write(path, {**made.read(path), "rows": [row, idle]})
    made.samples(place / "000", "lossy_ms", [8.0, 8.0, 8.0, 16.0])
    done = lossbench("report", str(place), "--format", "nccl-tests")
    assert done.returncode == 0, done.stderr
    (numbers,) = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    assert numbers == ["16000000", "4000000", "float", "sum", "10000.0", "1.600", "2.400", "7"]
    head = next(line for line in done.stdout.splitlines() if "busbw" in line)
    assert head.split() == ["#", *nccl.HEAD] and "it has no such thing" in done.stdout


def test_other_results_have_no_such_columns(tmp_path: Path) -> None:
    place = made.suite(tmp_path, [{"a": 1}], 1, lambda point, seed: {"loss": 1.0})
    done = lossbench("report", str(place), "--format", "nccl-tests")
    assert done.returncode == 2 and "no collectives in these results" in done.stderr
