"""Who is here of a lossy group that goes on without those who are gone (absent=continue), and what they tell each other
reliably when that changes."""

from __future__ import annotations

import io
from typing import Any

import torch

from lossbench.workloads.collective.group import LossyGroup
from lossbench.workloads.collective.primitives import bytes_of, numbers_of_all
from lossbench.workloads.errors import AbsentError


class Members:
    def __init__(self, group: LossyGroup) -> None:
        self._group = group
        self.new = group.returned  # this rank has just come to those who went on without it

    def let_in(self, step: int) -> bool:
        """Whether somebody is to be let in before this step is exchanged."""
        return self._group.roll.let_in(step)

    def regroup(self, error: AbsentError | None) -> None:
        """With those who are left, and those who were let in."""
        self._group.returned = False
        self._group.regroup(error)
        self.new = self.new or self._group.returned

    def numbers_of_all(self, *mine: int) -> dict[int, tuple[int, ...]]:
        """What each rank says, by rank."""
        return numbers_of_all(self._group, mine)

    def told_by(self, rank: int, mine: Any) -> Any:
        """What this rank has to say (`mine`, if that is this one): tensors, numbers, lists and dicts of them."""
        if rank != self._group.rank():
            return torch.load(io.BytesIO(bytes_of(self._group, rank, None)), map_location="cpu", weights_only=True)
        room = io.BytesIO()
        torch.save(mine, room)
        bytes_of(self._group, rank, room.getvalue())
        return mine
