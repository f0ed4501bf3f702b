"""Results made by hand: the files of a suite, without running anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MACHINE = {"kernel": "6.1", "machine": "x86_64", "cpus": 2, "cpu": "test", "versions": {"torch": "2.13"}}
Row = Callable[[dict[str, Any], int], dict[str, Any]]


def session(**changes: Any) -> dict[str, Any]:
    git = {"commit": "d" * 40, "dirty": False}
    return {
        "started": "2026-11-15T10:00:00+0000",
        "command": ["lossbench", "run", "made"],
        "git": git,
        "machine": MACHINE,
        "gpus": [],
        **changes,
    }


def summary(point: dict[str, Any], seed: int, rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    columns = {"fault": "valid", "timing": "valid", "outcome": "valid"}
    return {
        "point": point,
        "seed": seed,
        "dir": "-",
        "backend": "ebpf",
        "hosts": 4,
        "profiles": ["loss_10"],
        "asked_loss": [0.1],
        "kernel": {"seen": 100, "dropped": 10, "loss": 0.1},
        "receiver": {"sent": 100, "missing": 10, "loss": 0.1},
        "verdict": "valid",
        "columns": columns,
        "reasons": {name: [f"{name} is well"] for name in columns},
        "marks": [],
        "warnings": [],
        "workload": {},
        "rows": rows,
        "duration_s": 1.5,
        "seeds_version": 2,
        "not_judged": [],
        "met": {"packets": 1000, "rule_loss": 0.1, "queue_loss": 0, "elsewhere_loss": 0},
        **changes,
    }


def suite(
    folder: Path,
    points: list[dict[str, Any]],
    seeds: int,
    row: Row,
    *,
    name: str = "made",
    run_id: str = "abc123",
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """One row for each run; `changes` go into every summary."""
    place = folder / f"20261115-100000_{name}_{run_id}"
    plan = [(point, seed) for point in points for seed in range(seeds)]
    experiment = {"name": name, "topology": {"hosts": 4}, "workload": {"options": options or {"lr": 0.1}}}
    place.mkdir(parents=True)
    planned = [
        {"number": n, "point": point, "seed": seed, "experiment": experiment} for n, (point, seed) in enumerate(plan)
    ]
    write(
        place / "suite.json",
        {"format": 1, "run_id": run_id, "suite": name, "why": "a test", "sessions": [session()], "plan": planned},
    )
    rows = []
    for number, (point, seed) in enumerate(plan):
        found = row(point, seed)
        line = {"strategy": "s", **found, "shown": ["strategy", *found]}
        rows.append(summary(point, seed, [line], **changes))
        run = place / f"{number:03d}"
        (run / "records").mkdir(parents=True)
        write(run / "summary.json", rows[-1])
        write(run / "manifest.json", {"seed": seed, "experiment": experiment, "profiles": {}})
    write(place / "summary.json", {"run_id": run_id, "verdict": "valid", "dir": str(place), "summary": rows})
    return place


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def steps(run: Path, losses: list[float], ranks: int = 2) -> None:
    for rank in range(ranks):
        lines = [{"kind": "begin", "rank": rank, "steps": len(losses), "steps_per_epoch": 10.0}]
        lines += [
            {"kind": "step", "rank": rank, "step": n, "loss": loss, "time_s": 1e9 + 0.1 * n}
            for n, loss in enumerate(losses)
        ]
        lines += [{"kind": "drift", "rank": rank, "step": n, "pair": 0.1 + n} for n in range(0, len(losses), 5)]
        (run / "records" / f"rank-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def samples(run: Path, name: str, numbers: Any, rank: int = 0, **about: Any) -> None:
    (run / "samples").mkdir(exist_ok=True)
    if about:
        write(run / "samples" / f"{name}.rank-{rank}.json", {"unit": "ms", "together": True, **about})
    np.asarray(numbers, dtype="<f8").tofile(run / "samples" / f"{name}.rank-{rank}.f64")


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))
