"""A rank's state on disk: written whole or not at all, the last two are kept, a run goes on from the latest all
ranks have."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lossbench.workloads.errors import CheckpointError
from lossbench.workloads.training.seat import Seat

KEPT = 2
FREE = (
    "target",
    "steps",
    "epochs",
    "resume",
    "checkpoint_dir",
    "checkpoint_every",
    "evaluate_every",
    "drift_every",
    "bias_every",
)


def fingerprint(options: Mapping[str, Any]) -> str:
    """Of what makes the training what it is; how long it goes on, and where it is kept, is not part of it."""
    same = {key: value for key, value in options.items() if key not in FREE}
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]


def _path(folder: Path, step: int, rank: int) -> Path:
    return folder / f"step-{step:08d}.rank-{rank}.pt"


def _steps(folder: Path, rank: int) -> list[int]:
    found = (re.fullmatch(rf"step-(\d+)\.rank-{rank}\.pt", path.name) for path in folder.glob(f"*.rank-{rank}.pt"))
    return sorted(int(match[1]) for match in found if match)


def save(folder: Path, seat: Seat, step: int) -> None:
    """After `step` steps."""
    rank = seat.door.rank
    state = {
        "step": step,
        "world": seat.door.world_size,
        "strategy": seat.strategy.name,
        "seed": seat.door.seed,
        "options": fingerprint(seat.door.options),
        "values": seat.strategy.flat.values.detach().cpu().clone(),
        "state": seat.strategy.state_dict(),
        "buffers": {name: buffer.cpu() for name, buffer in seat.model.named_buffers()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target = _path(folder, step, rank)
        part = target.with_suffix(f".{os.getpid()}")
        try:
            torch.save(state, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        for old in _steps(folder, rank)[:-KEPT]:
            _path(folder, old, rank).unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:  # torch wraps what the disk says
        raise CheckpointError(f"checkpoint in {folder} can't be written ({error}): free some space") from None


def load(folder: Path, seat: Seat) -> int:
    """The step to go on with: the latest that every rank has; 0 if there is none. All ranks call this together."""
    rank = seat.door.rank
    mine = torch.tensor(([-1] * KEPT + _steps(folder, rank))[-KEPT:])
    everybody = seat.control.gather(mine)
    common = set(everybody[0].tolist()).intersection(*(set(row.tolist()) for row in everybody)) - {-1}
    if not common:
        return 0
    path = _path(folder, max(common), rank)
    try:
        state = torch.load(path, weights_only=True)
        _check(state, seat, path)
        seat.strategy.flat.values.copy_(state["values"])
        seat.strategy.flat.give_values()
        seat.strategy.load_state_dict(state["state"])
        for name, buffer in seat.model.named_buffers():
            buffer.copy_(state["buffers"][name])
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path} can't be read ({reason}): delete it to go on from an earlier one") from None
    return int(state["step"])


def _check(state: dict[str, object], seat: Seat, path: Path) -> None:
    here = {
        "world": seat.door.world_size,
        "strategy": seat.strategy.name,
        "seed": seat.door.seed,
        "options": fingerprint(seat.door.options),
    }
    for name, mine in here.items():
        if state[name] != mine:
            raise CheckpointError(f"{path} was made with {name} {state[name]}, this run has {mine}: use another folder")
