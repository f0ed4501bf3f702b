"""From what was seen to the three columns of a verdict. Pure."""

from __future__ import annotations

import math
from typing import Any

from lossbench.proof.evidence import Proof
from lossbench.proof.judge_fault import judge_fault, not_judged
from lossbench.proof.verdict import Finding, Judgement, Status, Verdict
from lossbench.proof.watched import Quiet, Watched
from lossbench.spec.experiment import RATIOS_MARK, Expect, Experiment

SATURATED, SATURATED_SHARE = 0.95, 0.2
LATE_MS = 50.0
LOOK_GAP_S = 1.0  # meant four times a second
THROTTLED = 0.01


def judge(*, experiment: Experiment, backend: str, proof: Proof | None, watched: Watched) -> Verdict:
    timing, marks = judge_timing(watched.quiet, late=watched.late, interleaved=experiment.workload.interleaved)
    return Verdict(
        columns={
            "fault": judge_fault(experiment, proof, watched, backend),
            "timing": timing,
            "outcome": judge_outcome(experiment, watched),
        },
        essential=("fault", *experiment.essential) if experiment.backend == "simulated" else experiment.essential,
        marks=marks,
        not_judged=not_judged(experiment, backend),
    )


def judge_timing(quiet: Quiet, *, late: list[str], interleaved: bool) -> tuple[Judgement, tuple[str, ...]]:
    """The judgement, and marks for the results."""
    if len(quiet.cpu_busy) < 3:
        return Judgement(findings=(Finding(status=Status.UNKNOWN, text="the run was too short to judge timing"),)), ()
    saturated = sum(busy > SATURATED for busy in quiet.cpu_busy) / len(quiet.cpu_busy)
    tick = sorted(quiet.late_ms)[int(0.95 * (len(quiet.late_ms) - 1))] if quiet.late_ms else 0.0
    text = f"CPU saturated in {saturated:.0%} of the samples, the clock tick up to {tick:.0f} ms late (p95)"
    own = list(late)
    if quiet.longest_gap_s > LOOK_GAP_S:
        own.append(f"the watch looked away for {quiet.longest_gap_s:.1f} s")
    if quiet.throttled > THROTTLED:
        own.append(f"a control group held the run back for {quiet.throttled:.0%} of the time")
    if saturated <= SATURATED_SHARE and tick <= LATE_MS and not own:
        return Judgement(findings=(Finding(status=Status.VALID, text=text),)), ()
    text = "; ".join((text, *own))
    if interleaved:
        note = f"{text}: only ratios of sides measured in turn stand"
        return Judgement(findings=(Finding(status=Status.VALID, text=note),)), (RATIOS_MARK,)
    void = Finding(status=Status.UNKNOWN, text=f"{text}: latencies are void, accuracies are not")
    return Judgement(findings=(void,)), ()


def judge_outcome(experiment: Experiment, watched: Watched) -> Judgement:
    findings = [Finding(status=Status.FAILED, text=text) for text in (watched.problem, *watched.errors) if text]
    if watched.damaged_lines:
        text = f"{watched.damaged_lines} lines of the records could not be read"
        findings.append(Finding(status=Status.UNKNOWN, text=text))
    for expected in experiment.expect:
        findings.append(_judge_expectation(expected, watched.summaries))
    if not findings:
        who = next((one.role for one in experiment.beside if one.foreground), "all ranks")
        findings.append(Finding(status=Status.VALID, text=f"{who} ended well after {watched.duration_s:.1f} s"))
    return Judgement(findings=tuple(findings))


def _judge_expectation(expected: Expect, summaries: list[dict[str, Any]]) -> Finding:
    values = [s[expected.field] for s in summaries if isinstance(s.get(expected.field), int | float)]
    if not values:
        return Finding(status=Status.FAILED, text=f"no rank reported '{expected.field}'")
    mean = sum(values) / len(values)
    low = -math.inf if expected.min is None else expected.min
    high = math.inf if expected.max is None else expected.max
    text = f"{expected.field} = {mean:g} (expected {low:g} to {high:g})"
    return Finding(status=Status.VALID if low <= mean <= high else Status.FAILED, text=text)
