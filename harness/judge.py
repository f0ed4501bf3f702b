"""From what was seen to the three columns of a verdict. Pure."""

from __future__ import annotations

import math
from typing import Any

from harness import lossmodel, statistics
from harness.evidence import Proof
from harness.experiment import Expect, Experiment
from harness.net.impair.base import RuleCounters
from harness.placement import Rule
from harness.profile import BlockLoss, TraceLoss
from harness.verdict import Finding, Judgement, Status, Verdict, judge_timing
from harness.watch import Segment, Watched

PREDICT_PACKETS = 3_000_000  # beyond this a bursty pattern is tested statistically instead


def judge(*, experiment: Experiment, proof: Proof | None, watched: Watched, missing_counted: int | None) -> Verdict:
    """`missing_counted`: drops of all kernel counters during the workload; None if they could not be read."""
    timing, marks = judge_timing(
        cpu_busy=watched.cpu_busy, late_ms=watched.late_ms, interleaved=experiment.workload.interleaved
    )
    return Verdict(
        columns={
            "fault": judge_fault(experiment, proof, watched, missing_counted),
            "timing": timing,
            "outcome": judge_outcome(experiment, watched),
        },
        essential=("fault", *experiment.essential) if experiment.backend == "simulated" else experiment.essential,
        marks=marks,
    )


def judge_fault(
    experiment: Experiment, proof: Proof | None, watched: Watched, missing_counted: int | None
) -> Judgement:
    """Proven before the run, and still true of the run's own packets."""
    if proof is None:
        return Judgement(findings=(Finding(status=Status.UNKNOWN, text="no probe was sent: nothing is proven"),))
    if experiment.backend == "simulated":
        return proof.judgement
    findings = list(proof.judgement.findings)
    findings += [Finding(status=Status.UNKNOWN, text=text) for text in dict.fromkeys((*watched.lapses, *watched.never))]
    findings += _judge_segments(watched.segments)
    findings += _judge_presence(experiment, watched.segments)
    if missing_counted is None:
        findings.append(Finding(status=Status.UNKNOWN, text="the kernel's counters could not be read after the run"))
    elif watched.traffic:
        findings.append(_judge_traffic(experiment, watched.traffic, missing_counted))
    return Judgement(findings=tuple(findings))


def _judge_segments(segments: list[Segment]) -> list[Finding]:
    findings, tests, checked = [], [], 0
    for segment in segments:
        where, counters = f"{segment.hook.name}, {segment.rule.label if segment.rule else 'all'}", segment.counters
        if counters.super_packets:
            text = f"{where}: {counters.super_packets} super-packets passed the loss point during the run"
            findings.append(Finding(status=Status.UNKNOWN, text=text))
        if segment.rule is None or counters.shared or not counters.seen:
            continue
        expected = expected_drops(segment.rule, counters)
        chain = segment.rule.profile.chain()
        if expected is not None and expected != counters.dropped:
            text = f"{where}: {counters.dropped} of {counters.seen} packets lost, the seeded pattern says {expected}"
            findings.append(Finding(status=Status.FAILED, text=text))
        elif expected is None and chain is not None:
            tests.append((where, counters, statistics.loss_count_two_sided(counters.dropped, counters.seen, chain)))
        checked += counters.seen if expected is not None or chain is not None else 0
    for where, counters, p in tests:
        if p < statistics.FAMILY_ERROR / len(tests):
            text = f"{where}: {counters.dropped} of {counters.seen} packets lost during the run (p = {p:.1e})"
            findings.append(Finding(status=Status.FAILED, text=text))
    if not findings:
        findings += _in_words(segments, checked)
    return findings


def _in_words(segments: list[Segment], checked: int) -> list[Finding]:
    seen = sum(s.counters.seen for s in segments if s.rule)
    if not seen:
        return []
    dropped = sum(s.counters.dropped for s in segments if s.rule)
    text = f"during the run {dropped} of {seen} matching packets were lost"
    text += ", as asked" if checked == seen else f"; {checked} of them could be checked against what was asked"
    return [Finding(status=Status.VALID, text=text)]


def _judge_presence(experiment: Experiment, segments: list[Segment]) -> list[Finding]:
    """A workload whose packets never met the fault says nothing about it."""
    if not experiment.impair or experiment.workload.name == "noop" and not experiment.workload.command:
        return []
    if any(s.counters.seen for s in segments):
        return []
    text = "no packet of the workload passed the data links: did it use the control link (MASTER_ADDR)?"
    return [Finding(status=Status.UNKNOWN, text=text)]


def expected_drops(rule: Rule, counters: RuleCounters) -> int | None:
    """How many of the packets seen a seeded rule must have dropped, exactly; None if that can't be said."""
    if counters.position is None or counters.position.packets != counters.seen:
        return None
    if isinstance(rule.profile.loss, TraceLoss):
        pattern = rule.profile.loss.pattern()
        if not rule.profile.loss.loop:
            return int(pattern[: counters.seen].sum())
        rounds, rest = divmod(counters.seen, len(pattern))
        return int(rounds * pattern.sum() + pattern[:rest].sum())
    chain = rule.profile.chain()
    if chain is None or isinstance(rule.profile.loss, BlockLoss) or counters.seen > PREDICT_PACKETS:
        return None
    return int(lossmodel.predict(chain, seed=rule.seed, count=counters.seen).sum())


def _judge_traffic(experiment: Experiment, traffic: dict[int, dict[str, Any]], counted: int) -> Finding:
    """The workload's own sequence numbers against the kernel's counters."""
    sent = sum(sum(record["sent"]) for record in traffic.values())
    received = sum(sum(record["received"]) for record in traffic.values())
    missing = sent - received
    text = f"the workload misses {missing} of {sent} datagrams, kernel counters say {counted}"
    if len(traffic) < experiment.topology.hosts:
        return Finding(status=Status.UNKNOWN, text=f"{text}; only {len(traffic)} ranks reported their traffic")
    if all(record.get("complete") for record in traffic.values()):
        agrees = missing == counted
    else:
        agrees = 0 <= missing <= counted
    return Finding(status=Status.VALID if agrees else Status.UNKNOWN, text=text)


def judge_outcome(experiment: Experiment, watched: Watched) -> Judgement:
    findings = [Finding(status=Status.FAILED, text=text) for text in (watched.problem, *watched.errors) if text]
    if watched.damaged_lines:
        text = f"{watched.damaged_lines} lines of the records could not be read"
        findings.append(Finding(status=Status.UNKNOWN, text=text))
    for expected in experiment.expect:
        findings.append(_judge_expectation(expected, watched.summaries))
    if not findings:
        findings.append(Finding(status=Status.VALID, text=f"all ranks ended well after {watched.duration_s:.1f} s"))
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
