"""Verdicts: three columns, three values, reasons in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

from harness.errors import ExitCode


class Status(IntEnum):
    """Ordered from best to worst."""

    VALID = 0
    UNKNOWN = 1
    FAILED = 2

    @property
    def word(self) -> str:
        return self.name.lower()


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

    @property
    def status(self) -> Status:
        return max((self.columns[name].status for name in self.essential), default=Status.VALID)

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.status.word,
            "essential": list(self.essential),
            "marks": list(self.marks),
            "columns": {
                name: {
                    "status": judgement.status.word,
                    "reasons": judgement.reasons(),
                    "findings": [{**asdict(f), "status": f.status.word} for f in judgement.findings],
                }
                for name, judgement in self.columns.items()
            },
        }


def judge_timing(
    *, cpu_busy: list[float], late_ms: list[float], interleaved: bool
) -> tuple[Judgement, tuple[str, ...]]:
    """Was the machine quiet enough to believe latencies? `cpu_busy`: share of all cores, per sample of the workload;
    `late_ms`: how late the harness's own clock tick came. Returns the judgement and marks for the results."""
    if len(cpu_busy) < 3:
        return Judgement(findings=(Finding(status=Status.UNKNOWN, text="the run was too short to judge timing"),)), ()
    saturated = sum(busy > 0.95 for busy in cpu_busy) / len(cpu_busy)
    late = sorted(late_ms)[int(0.95 * (len(late_ms) - 1))] if late_ms else 0.0
    text = f"CPU saturated in {saturated:.0%} of the samples, the clock tick up to {late:.0f} ms late (p95)"
    if saturated <= 0.2 and late <= 50:
        return Judgement(findings=(Finding(status=Status.VALID, text=text),)), ()
    if interleaved:
        note = f"{text}: only ratios of sides measured in turn stand"
        return Judgement(findings=(Finding(status=Status.VALID, text=note),)), ("timing: ratios only",)
    return Judgement(
        findings=(Finding(status=Status.UNKNOWN, text=f"{text}: latencies are void, accuracies are not"),)
    ), ()
