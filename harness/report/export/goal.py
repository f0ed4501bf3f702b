"""A stored training run as GOAL text (Hoefler et al., 2009): what each rank computed, sent and received, for simulators
such as LogGOPSim that ask how the same steps would go on another network.

Both halves of a step are a direct exchange: every rank sends each owner its block, owners answer with theirs. Loss is
not in it: GOAL knows messages, not packets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.files import disk_errors
from lossbench.results.index import Run

BYTES = 4  # of a parameter on the wire


def write(run: Run, path: Path) -> int:
    """How many steps."""
    ranks = run.summary.hosts
    parts = [_read(run.folder / "records" / f"rank-{rank}.jsonl") for rank in range(ranks)]
    if not all(begin and steps for begin, steps in parts):
        step = "GOAL is made from `training` runs: lossbench run quickstart"
        raise UsageError(f"{run.folder}: no steps with their computing times", next_step=step)
    count = min(len(steps) for _, steps in parts)
    with disk_errors(path, full="give --goal another place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="ascii") as file:
            file.write(f"num_ranks {ranks}\n")
            for rank, (begin, steps) in enumerate(parts):
                file.write(f"\nrank {rank} {{\n")
                file.writelines(f"{line}\n" for line in _rank(rank, ranks, int(begin["parameters"]), steps[:count]))
                file.write("}\n")
    return count


def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    begin: dict[str, Any] = {}
    steps = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("kind") == "begin" and "parameters" in record:
            begin = record
        elif record.get("kind") == "step" and "compute_ms" in record:
            steps.append(record)
    return begin, steps


def block_bytes(parameters: int, ranks: int, owner: int) -> int:
    """Blocks are as even as they can be."""
    return BYTES * (parameters // ranks + (owner < parameters % ranks))


def _rank(rank: int, ranks: int, parameters: int, steps: list[dict[str, Any]]) -> Iterator[str]:
    """Labels are numbers; a half begins when what came before it on this rank is done."""
    others = [other for other in range(ranks) if other != rank]
    before: list[int] = []
    label = 0
    for number, step in enumerate(steps):
        for kind in range(2):
            label += 1
            computed = step["compute_ms"] if kind == 0 else step.get("optimizer_ms", 0.0)
            yield f"l{label}: calc {max(1, round(1e6 * float(computed)))}"
            yield from (f"l{label} requires l{one}" for one in before)
            work, before = label, []
            for other in others:
                sent, came = (other, rank) if kind == 0 else (rank, other)  # whose block
                for line, size in (("send {}b to", sent), ("recv {}b from", came)):
                    label += 1
                    words = line.format(block_bytes(parameters, ranks, size))
                    yield f"l{label}: {words} {other} tag {2 * number + kind}"
                    yield f"l{label} requires l{work}"
                    before.append(label)
