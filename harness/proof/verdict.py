"""Verdicts: three columns, three values, reasons in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Literal

from lossbench.errors import ExitCode
from lossbench.proof.covers import rows
from lossbench.proof.covers.rows import Covered


class Status(IntEnum):
    """Ordered from best to worst."""

    VALID = 0
    UNKNOWN = 1
    FAILED = 2

    @property
    def word(self) -> Literal["valid", "unknown", "failed"]:
        return ("valid", "unknown", "failed")[self]


EXIT_CODES = {Status.VALID: ExitCode.VALID, Status.UNKNOWN: ExitCode.UNKNOWN, Status.FAILED: ExitCode.FAILED}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    status: Status
    text: str


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One column: as good as its worst finding; unknown if nothing was looked at."""

    findings: tuple[Finding, ...] = ()

    @property
    def status(self) -> Status:
        return max((f.status for f in self.findings), default=Status.UNKNOWN)

    def reasons(self) -> list[str]:
        """What explains the status: the worst findings, or all of them if all is well."""
        return [f.text for f in self.findings if f.status == self.status]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A run's verdict is the worst of its essential columns."""

    columns: dict[str, Judgement]
    essential: tuple[str, ...]
    marks: tuple[str, ...] = field(default=())
    covers: tuple[Covered, ...] = field(default=())  # what was asked, and by what it is judged
    roles: dict[str, dict[str, Judgement]] = field(default_factory=dict)  # of several programs: the columns of each

    @property
    def not_judged(self) -> tuple[str, ...]:
        """Asked, and no column speaks of it."""
        return rows.not_judged(self.covers)

    @property
    def status(self) -> Status:
        return max((self.columns[name].status for name in self.essential), default=Status.VALID)

    def words_by_role(self) -> dict[str, dict[str, Literal["valid", "unknown", "failed"]]]:
        return {role: {name: one.status.word for name, one in here.items()} for role, here in self.roles.items()}

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.status.word,
            "essential": list(self.essential),
            "marks": list(self.marks),
            "covers": [asdict(row) for row in self.covers],
            "not_judged": list(self.not_judged),
            "roles": self.words_by_role(),
            "columns": {
                name: {
                    "status": judgement.status.word,
                    "reasons": judgement.reasons(),
                    "findings": [{**asdict(f), "status": f.status.word} for f in judgement.findings],
                }
                for name, judgement in self.columns.items()
            },
        }
