"""What a run leaves, as models: the schema of the files, and the check when they are read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import UsageError
from harness.naming import key_of

FORMAT = 1  # of suite.json
Word: TypeAlias = Literal["valid", "unknown", "failed"]


class Stored(BaseModel):
    """Later versions may add keys: what is not known is kept, what is needed is checked."""

    model_config = ConfigDict(extra="allow", frozen=True)


Model = TypeVar("Model", bound=Stored)


def read(path: Path, model: type[Model]) -> Model:
    """The checked content, or one line that says what is wrong with the file."""
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}: damaged, or not ours ({where + ': ' if where else ''}{first['msg']})") from None


class Counted(Stored):
    loss: float | None = None


class MetCounts(Stored):
    """What the workload's own packets met; shares are of all packets, a rule's of those that it was about."""

    packets: int = 0
    loss: float | None = None
    rule_loss: float | None = None
    queue_loss: float | None = None
    elsewhere_loss: float | None = None


class RunSummary(Stored):
    """NNN/summary.json: one run (one point, one seed)."""

    point: dict[str, Any] = Field(description="What the sweep chose: dotted key to value.")
    seed: int
    backend: str
    hosts: int = Field(ge=1)
    profiles: list[str] = []
    asked_loss: list[float] = Field([], description="Mean loss of every rule in force, as asked.")
    kernel: Counted = Field(Counted(), description="Counted by the kernel in the proof.")
    receiver: Counted = Field(Counted(), description="Missed by the receivers in the proof.")
    met: MetCounts = Field(MetCounts(), description="Met by the workload's own packets, by cause.")
    verdict: Word = Field(description="The worst of the columns that the experiment calls essential.")
    columns: dict[str, Word] = Field(description="fault, timing, outcome.")
    reasons: dict[str, list[str]] = {}
    marks: list[str] = []
    warnings: list[str] = []
    not_judged: list[str] = Field([], description="What was asked and no verdict speaks of, on this backend.")
    seeds_version: int = Field(1, description="1: seeds and hosts share patterns; 2: every pattern is its own.")
    units: dict[str, str] = Field({}, description="Units that the workload declares for its numbers.")
    workload: dict[str, float | None] = Field({}, description="Summary records, mean over ranks.")
    rows: list[dict[str, Any]] = Field([], description="Lines of the result table; `shown` names the columns shown.")
    duration_s: float = 0.0

    def is_of(self, point: dict[str, Any], seed: int) -> bool:
        """Is this the run that was planned there?"""
        return key_of(self.point) == key_of(point) and self.seed == seed


class PlannedRun(Stored):
    number: int = Field(ge=0)
    point: dict[str, Any]
    seed: int
    experiment: dict[str, Any]


class Session(Stored):
    """One start or resumption of a suite."""

    started: str
    command: list[str] = []
    git: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    gpus: list[str] = []
    seeds_version: int = 1
    programs: list[dict[str, Any]] = Field([], description="The user's own: files, folders, interpreter, packages.")


class SuitePlan(Stored):
    """suite.json: everything that was going to be run, written first."""

    format: int = Field(ge=1, le=FORMAT, description="Of this file; a later one needs a later lossbench.")
    run_id: str
    suite: str
    why: str = ""
    sessions: list[Session] = Field(min_length=1)
    plan: list[PlannedRun] = Field(min_length=1)


class SuiteSummary(Stored):
    """summary.json of a suite, and what `lossbench run --json` prints."""

    run_id: str
    verdict: Word
    dir: str
    summary: list[RunSummary]
