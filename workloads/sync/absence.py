"""What a strategy does when ranks are gone, or come back (policy absent=continue).

Those who are left agree on the step they are in, cut the vector anew, and make the exchange of that step again; whoever
is behind skips to it. Where one of them has stepped its optimizer already, nobody steps again in that step. A rank that
comes back gets step, values and optimizer from the lowest rank that has them."""

from __future__ import annotations

from typing import ClassVar

import torch

from lossbench.workloads.errors import AbsentError
from lossbench.workloads.sync.channels.base import Channel
from lossbench.workloads.sync.channels.members import Members
from lossbench.workloads.sync.vectors.flat import Flat

TIMES = 5  # that ranks may be lost in one step
NEW = -1  # the step of a rank that has just come


class GoesOn:
    """The part of a strategy that makes its exchange with whoever is there."""

    goes_on: ClassVar[bool] = False  # without ranks that are gone
    if_gone: ClassVar[str] = ""  # what is lost with them, in words
    channel: Channel
    flat: Flat
    optimizer: torch.optim.Optimizer
    steps = 0
    agreed = 0  # the step that the others are in
    optimized = -1  # the latest step in which the optimizer stepped

    def _step(self) -> None:
        raise NotImplementedError

    def resettle(self) -> None:
        """The vector cut for those who are here."""
        raise NotImplementedError

    def begin_exchange(self) -> None:
        """What stands in the packets from now on."""

    def exchange(self) -> None:
        """`_step`, with whoever is left."""
        members = self.channel.members
        if members is None:
            self._step()
            return
        if members.let_in(self.steps):
            self._settle(members, None)
        while self.steps >= self.agreed:
            try:
                self._step()
                return
            except AbsentError as error:
                self._settle(members, error)

    def join(self) -> None:
        """Where this rank has just come to those who went on without it: what they have learned."""
        members = self.channel.members
        if members is None or not members.new:
            return
        try:
            self._agree(members, self.channel.present)
        except AbsentError as error:
            self._settle(members, error)

    def _settle(self, members: Members, error: AbsentError | None) -> None:
        """Until those who are left have agreed; some may be lost meanwhile."""
        before = self.channel.present
        for _ in range(TIMES):
            try:
                members.regroup(error)
                self._agree(members, before)
            except AbsentError as again:
                error = again
            else:
                self.begin_exchange()
                return
        assert error is not None
        raise error

    def _agree(self, members: Members, before: tuple[int, ...]) -> None:
        if members.new:
            self.steps = NEW
        said = members.numbers_of_all(self.steps, self.optimized)
        self.agreed = max(step for step, _ in said.values())
        if any(optimized == self.agreed for _, optimized in said.values()):
            self.optimized = self.agreed
        new = [rank for rank, (step, _) in said.items() if step == NEW]
        if new:
            self._teach(members, min(rank for rank in said if rank not in new))
        self.resettle()
        self.flat.give_values()
        members.new = False
        self._note(gone=[rank for rank in before if rank not in self.channel.present], new=new)

    def _teach(self, members: Members, teacher: int) -> None:
        mine = {"values": self.flat.values, "optimizer": self.optimizer.state_dict()}
        learned = members.told_by(teacher, mine)
        if self.steps == NEW:
            self.steps = self.agreed
            self.flat.values.copy_(learned["values"])
            self.optimizer.load_state_dict(learned["optimizer"])

    def _note(self, *, gone: list[int], new: list[int]) -> None:
        words = []
        if gone:
            words.append(f"without rank {', '.join(map(str, gone))}" + self.if_gone)
        if new:
            words.append(f"rank {', '.join(map(str, new))} came back")
        self.channel.notes.append(f"step {self.agreed}: {'; '.join(words) or 'met anew'}")
