"""What a run leaves, as models: the schema of the files, and the check when they are read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lossbench.errors import UsageError
from lossbench.results.measures import Standing
from lossbench.results.naming import key_of
from lossbench.spec.about import Measure

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
    """In the proof, by the kernel (seen, dropped) or by receivers (sent, missing)."""

    seen: int | None = None
    """Packets that met a rule."""
    dropped: int | None = None
    """Of them, by the rule."""
    sent: int | None = None
    """Packets of probes."""
    missing: int | None = None
    """Of them, at their receivers."""
    loss: float | None = None
    """The share of them."""


class MetCounts(Stored):
    """What the workload's own packets met; shares are of all packets, a rule's of those that it was about."""

    packets: int = 0
    """Given to the links."""
    bytes: int = 0
    """Of those that entered them, headers included; 0 where nobody counts them."""
    control_bytes: int = 0
    """Sent over the control links, which no fault is on."""
    matched: int = 0
    """That a rule was about."""
    lost_by_rule: int = 0
    """Dropped by a rule."""
    damaged: int = 0
    """Damaged by a rule, and thrown away for it."""
    lost_in_queues: int = 0
    """Under a rate that was asked for."""
    lost_elsewhere: int = 0
    """Where nothing was asked to lose any, or not accounted for."""
    loss: float | None = None
    """By all causes together."""
    rule_loss: float | None = None
    """By rules."""
    queue_loss: float | None = None
    """In queues under an asked rate."""
    elsewhere_loss: float | None = None
    """Elsewhere."""


class ProofRow(Stored):
    """One rule at one hook: what was asked, read back, counted by the kernel, missed by receivers."""

    hook: str = ""
    """Where: host and direction."""
    rule: str = ""
    """Number and profile of the entry."""
    asked: float | None = None
    """Mean loss."""
    read_back: float | None = None
    """Mean loss, from what the kernel says is in force."""
    kernel_seen: int | None = None
    """Packets that the kernel counted for it; null where its counters can't tell rules apart."""
    kernel_dropped: int | None = None
    """And dropped."""
    receiver_sent: int = 0
    """Probes sent through it."""
    receiver_missing: int = 0
    """And missed by their receivers."""
    burst_asked: float | None = None
    """Mean length of losses in a row, as asked; null: without end."""
    burst_seen: float | None = None
    """As seen."""
    p_value: float | None = None
    """Of the test, where the pattern is not predictable."""
    exact: bool | None = None
    """Lost packet by packet as the seed predicts; null where it can't be predicted."""
    pattern: int | None = None
    """Seed of a predictable pattern."""
    burst_counts: list[int] = []
    """Bursts of 1, 2, ... packets, the last of them or longer."""
    burst_shares: list[float] = []
    """The same, as asked."""


class RunSummary(Stored):
    """NNN/summary.json: one run (one point, one seed)."""

    point: dict[str, Any]
    """What the sweep chose: dotted key to value."""
    seed: int
    """Of every random number of this run."""
    dir: str = ""
    """Where it was written."""
    backend: str
    """That put the loss in force."""
    hosts: int = Field(ge=1)
    """How many."""
    profiles: list[str] = []
    """In force, in the order of the entries."""
    asked_loss: list[float] = []
    """Mean loss of every rule in force, as asked."""
    kernel: Counted = Counted()
    """Counted by the kernel in the proof."""
    receiver: Counted = Counted()
    """Missed by the receivers in the proof."""
    met: MetCounts = MetCounts()
    """Met by the workload's own packets, by cause."""
    verdict: Word
    """The worst of the columns that the experiment calls essential."""
    columns: dict[str, Word]
    """fault, timing, outcome."""
    roles: dict[str, dict[str, Word]] = {}
    """Of several programs: timing and outcome of each, the workload's under "". Their numbers stand on these."""
    reasons: dict[str, list[str]] = {}
    """By column, in words."""
    marks: list[str] = []
    """Of the verdict."""
    warnings: list[str] = []
    """What a reader should know."""
    not_judged: list[str] = []
    """What was asked and no verdict speaks of, on this backend."""
    seeds_version: int = 1
    """1: seeds and hosts share patterns; 2: every pattern is its own."""
    measures: dict[str, Measure] | None = None
    """As the workload declares its numbers."""
    units: dict[str, str] = {}
    """Units that the workload declares for its numbers."""
    own_program: bool = False
    """The workload was a command of the user's."""
    workload: dict[str, float | None] = {}
    """Summary records, mean over ranks."""
    rows: list[dict[str, Any]] = []
    """Lines of the result table; `shown` names the columns shown."""
    duration_s: float = 0.0
    """Of the workload."""

    def standing(self) -> Standing:
        return Standing(
            columns=self.columns,
            roles=self.roles,
            marks=self.marks,
            simulated=self.backend == "simulated",
            units=self.units,
            declared=self.measures,
        )

    def outcome_by_role(self) -> str:
        """In words; empty where all programs have the same, or there is only one."""
        words = {role or "the workload": here.get("outcome", "unknown") for role, here in self.roles.items()}
        told = ", ".join(f"{role} {word}" for role, word in words.items())
        return f"by program: {told}" if len(set(words.values())) > 1 else ""

    def is_of(self, point: dict[str, Any], seed: int) -> bool:
        """Is this the run that was planned there?"""
        return key_of(self.point) == key_of(point) and self.seed == seed


class PlannedRun(Stored):
    number: int = Field(ge=0)
    """Its folder's."""
    point: dict[str, Any]
    """What the sweep chose."""
    seed: int
    """Of the run."""
    experiment: dict[str, Any]
    """All of it, as it will be run."""


class Session(Stored):
    """One start or resumption of a suite."""

    started: str
    """When."""
    command: list[str] = []
    """As it was typed."""
    git: dict[str, Any] = {}
    """Of lossbench: commit, and whether anything was changed."""
    machine: dict[str, Any] = {}
    """Kernel, processors, versions; of a lab those of the machine that controls."""
    gpus: list[str] = []
    """Names; of a lab those of the machine that controls."""
    machines: dict[str, dict[str, Any]] = {}
    """Of a lab: the same of each host, with its GPUs."""
    lab: dict[str, Any] = {}
    """Of a lab: its name, its switch, and what its file says of the machines."""
    seeds_version: int = 1
    """How seeds become patterns."""
    programs: list[dict[str, Any]] = []
    """The user's own: files, folders, interpreter, packages."""

    def gpus_of(self, host: str) -> str:
        """Of a lab."""
        found = self.machines[host].get("gpus")
        return ", ".join(map(str, found)) if isinstance(found, list) else ""

    def switch(self) -> str:
        """Of a lab, in the words of its file."""
        found = self.lab.get("switch")
        words = [found.get(name) for name in ("name", "notes")] if isinstance(found, dict) else []
        return ": ".join(str(one) for one in words if one)


class SuitePlan(Stored):
    """suite.json: everything that was going to be run, written first."""

    format: int = Field(ge=1, le=FORMAT)
    """Of this file; a later one needs a later lossbench."""
    run_id: str
    """Of the suite."""
    suite: str
    """Its name."""
    why: str = ""
    """What it is for."""
    sessions: list[Session] = Field(min_length=1)
    """Every start and resumption."""
    plan: list[PlannedRun] = Field(min_length=1)
    """Every run, in order."""


class SuiteSummary(Stored):
    """summary.json of a suite, and what `lossbench run --json` prints."""

    run_id: str
    """Of the suite."""
    verdict: Word
    """The worst of its runs."""
    dir: str
    """Where."""
    summary: list[RunSummary]
    """Its runs that ended."""
