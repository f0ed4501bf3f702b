"""What one limit of a verdict is, and of which run it is one. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lossbench.net.counters import Reading
from lossbench.proof.covers.conditions import BACKENDS, profiles_of
from lossbench.spec.experiment import Experiment, Impair
from lossbench.spec.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A run: what was asked, of whom, and what `after` it is known to have been."""

    experiment: Experiment
    backend: str
    after: Reading | None = None

    @property
    def entries(self) -> tuple[Impair, ...]:
        return self.experiment.impair

    @property
    def profiles(self) -> list[Profile]:
        return profiles_of(self.experiment)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What of a condition no verdict speaks of, although it is judged. `more` is said behind the text."""

    text: str
    of: str
    when: Callable[[Asked], object]
    backends: tuple[str, ...] = BACKENDS  # none of them: others
    machines: bool = False  # of a lab only
    more: Callable[[Asked], str] = field(default=lambda _: "")

    def holds(self, asked: Asked) -> bool:
        here = asked.backend in self.backends if asked.backend in BACKENDS else self.backends in (BACKENDS, ())
        return here and (not self.machines or bool(asked.experiment.topology.machines)) and bool(self.when(asked))

    def where(self) -> str:
        if self.machines or not self.backends:
            return "machines of a lab" if self.machines else "others"
        return "all" if self.backends == BACKENDS else ", ".join(self.backends)
