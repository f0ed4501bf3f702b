"""From what was seen to the three columns of a verdict. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from lossbench.proof.covers.rows import also_not_judged, covered
from lossbench.proof.covers.untold import untold
from lossbench.proof.evidence import Proof
from lossbench.proof.judge_fault import judge_fault, met_by_workload
from lossbench.proof.verdict import Finding, Judgement, Status, Verdict
from lossbench.proof.watched import ROLE, Quiet, Watched
from lossbench.spec.experiment import RATIOS_MARK, Expect, Experiment

SATURATED, WAITED, STOLEN = 0.95, 0.25, 0.1  # of all cores, of a thread's time, in a sample; of a core
SAMPLES = 0.2  # that may be so
EACH_MS = 2.0  # that a thread which mostly waits may wait for a core each time
UNSEEN_WAITS = 1.0  # as long as processes had a core, who lived too shortly to be looked at
SLOW_MS, LATE_MS = 10.0, 50.0  # of the harness's own clock tick: a busy machine; nobody knows what was missed
LOOK_GAP_S = 1.0  # meant four times a second
THROTTLED = 0.01
UNWATCHED = "GPUs were used: how busy they were nobody watched"
OBSERVED_MARK = "loss observed, not counted"


def judge(*, experiment: Experiment, backend: str, proof: Proof | None, watched: Watched) -> Verdict:
    timing, marks = judge_timing(watched.quiet, late=watched.late, interleaved=experiment.workload.interleaved)
    met = met_by_workload(watched)
    covers = covered(experiment, backend, watched.after)
    for condition, text in proof.not_judged if proof is not None else ():
        covers = also_not_judged(covers, condition, text)
    for text in untold(watched):
        covers = also_not_judged(covers, "presence", text)
    if met.observed:
        marks = (*marks, OBSERVED_MARK)
        where = f"where {met.observed} of {met.packets} packets were lost between the machines"
        covers = also_not_judged(covers, "loss", f"{where}: observed, not counted")
    return Verdict(
        columns={
            "fault": judge_fault(experiment, proof, watched, backend),
            "timing": doubted(timing, [*watched.of_load, *(one for here in watched.doubts.values() for one in here)]),
            "outcome": judge_outcome(experiment, watched),
        },
        roles={
            role: {
                "timing": doubted(timing, [*watched.of_load, *watched.doubts.get(role, [])]),
                "outcome": judge_outcome(experiment, watched, role),
            }
            for role in ("", *(one.role for one in experiment.beside))
            if experiment.beside
        },
        essential=("fault", *experiment.essential) if experiment.backend == "simulated" else experiment.essential,
        marks=marks,
        covers=covers,
    )


def doubted(timing: Judgement, doubts: list[str]) -> Judgement:
    """A program may know better than the machine's load that its times are not to be believed."""
    findings = [Finding(status=Status.UNKNOWN, text=text) for text in dict.fromkeys(doubts)]
    return Judgement(findings=(*timing.findings, *findings))


def judge_timing(
    quiet: Quiet, *, late: list[str], interleaved: bool, slow_ms: float = SLOW_MS
) -> tuple[Judgement, tuple[str, ...]]:
    """The judgement, and marks for the results. In a lab each machine is judged by itself."""
    if quiet.machines:
        return _judge_machines(quiet, late=late, interleaved=interleaved)
    if len(quiet.cpu_busy) < 3:
        return Judgement(findings=(Finding(status=Status.UNKNOWN, text="the run was too short to judge timing"),)), ()
    tick = sorted(quiet.late_ms)[int(0.95 * (len(quiet.late_ms) - 1))] if quiet.late_ms else 0.0
    busy, busiest = _share(quiet.cpu_busy, SATURATED), _share(quiet.busiest, SATURATED)
    waited, stolen = _share(quiet.waited, WAITED), max(quiet.stolen, default=0.0)
    text = f"CPU saturated in {busy:.0%} of the samples, the clock tick up to {tick:.0f} ms late (p95)"
    slow, void = [], list(late)
    if waited > SAMPLES:
        slow.append(f"programs waited for a core in {waited:.0%} of them, up to {max(quiet.waited):.0%} of the time")
    if quiet.each_ms > EACH_MS:
        slow.append(f"one that was seldom given a core waited {quiet.each_ms:.1f} ms for it each time")
    if quiet.unseen_waits > UNSEEN_WAITS:
        times = f"{quiet.unseen_waits:.1f} times as long as they had one"
        slow.append(f"processes that lived too shortly to be watched waited for a core {times}")
    if busiest > SAMPLES and not quiet.waited:
        slow.append(f"a core saturated in {busiest:.0%}, and this kernel does not tell how long programs wait for one")
    if slow or busy > SAMPLES:
        slow += quiet.whose()
    if stolen > STOLEN:
        slow.append(f"the hypervisor took a core away for {stolen:.0%} of the time")
    if quiet.longest_gap_s > LOOK_GAP_S:
        void.append(f"the watch looked away for {quiet.longest_gap_s:.1f} s")
    if quiet.throttled > THROTTLED:
        void.append(f"a control group held the run back for {quiet.throttled:.0%} of the time")
    void += quiet.stood_still()
    text = "; ".join((text, *slow, *void, *quiet.beside(), *([UNWATCHED] if quiet.gpus else [])))
    if tick > LATE_MS or void:
        return _void(text), ()
    if busy <= SAMPLES and tick <= slow_ms and not slow:
        return Judgement(findings=(Finding(status=Status.VALID, text=text),)), ()
    if interleaved:  # both sides had the same machine
        note = f"{text}: only ratios of sides measured in turn stand"
        return Judgement(findings=(Finding(status=Status.VALID, text=note),)), (RATIOS_MARK,)
    return _void(text), ()


def _share(samples: list[float], limit: float) -> float:
    return sum(one > limit for one in samples) / len(samples) if samples else 0.0


def _void(text: str) -> Judgement:
    text = f"{text}: latencies are void, accuracies are not"
    return Judgement(findings=(Finding(status=Status.UNKNOWN, text=text),))


def _judge_machines(quiet: Quiet, *, late: list[str], interleaved: bool) -> tuple[Judgement, tuple[str, ...]]:
    findings: list[Finding] = []
    marks: dict[str, None] = {}
    own = replace(quiet, machines={}, cpu_busy=[0.0] * 3)  # the controller's load is nobody's; what it missed is
    for name, one in {"the controller": own, **quiet.machines}.items():
        mine, limit = (late, LATE_MS) if one is own else ([], SLOW_MS)
        found, marked = judge_timing(one, late=mine, interleaved=interleaved, slow_ms=limit)
        findings += [Finding(status=f.status, text=f"{name}: {f.text}") for f in found.findings]
        marks |= dict.fromkeys(marked)
    return Judgement(findings=tuple(findings)), tuple(marks)


def judge_outcome(experiment: Experiment, watched: Watched, role: str | None = None) -> Judgement:
    """Of all programs, or of one. Who failed was not there for the others as it should: that is everybody's. A number
    that was expected otherwise is its own program's."""
    wrong = Status.UNKNOWN if watched.vanished else Status.FAILED  # a machine that went away is nobody's failure
    findings = [Finding(status=wrong, text=text) for text in (watched.problem, *watched.errors) if text]
    if watched.damaged_lines:
        text = f"{watched.damaged_lines} lines of the records could not be read"
        findings.append(Finding(status=Status.UNKNOWN, text=text))
    for expected in experiment.expect:
        if role not in (None, _whose(expected, experiment)):
            continue
        findings.append(_judge_expectation(expected, experiment, watched))
    if not findings:
        who = role or next((one.role for one in experiment.beside if one.foreground), "all ranks")
        findings.append(Finding(status=Status.VALID, text=f"{who} ended well after {watched.duration_s:.1f} s"))
    return Judgement(findings=tuple(findings))


def _whose(expected: Expect, experiment: Experiment) -> str:
    """The role that is expected to say it; empty for the workload."""
    return next((one.role for one in experiment.beside if expected.field.startswith(f"{one.role}.")), "")


def _ranks(experiment: Experiment, *, by_host: bool) -> dict[str, int]:
    """By role ("": the workload). What is known of the workload's program is known once a host."""
    hosts = experiment.topology.hosts
    return {
        "": hosts * (1 if by_host else max(1, experiment.workload.torchrun)),
        **{
            one.role: (hosts if one.hosts == "all" else len(one.hosts)) * max(1, one.torchrun)
            for one in experiment.beside
        },
    }


def _judge_expectation(expected: Expect, experiment: Experiment, watched: Watched) -> Finding:
    """One rank may speak for all, as training scripts do, or all of them; of some of them nobody knows what the others
    would have said. What is no finite number is none that was expected."""
    said = [one[expected.field] for one in watched.summaries + watched.programs if expected.field in one]
    values = [value for value in said if isinstance(value, int | float) and math.isfinite(value)]
    wrong = ""
    if not said:
        wrong = f"no rank reported '{expected.field}'"
    elif len(values) < len(said):
        wrong = f"{len(said) - len(values)} of {len(said)} values of '{expected.field}' are no finite numbers"
    else:
        silent = said_by_some(expected.field, experiment, watched)
        wrong = f"{silent} reported '{expected.field}'" if silent else ""
    if wrong:
        return Finding(status=Status.FAILED, text=wrong)
    mean = sum(values) / len(values)
    low = -math.inf if expected.min is None else expected.min
    high = math.inf if expected.max is None else expected.max
    text = f"{expected.field} = {mean:g} (expected {low:g} to {high:g})"
    return Finding(status=Status.VALID if low <= mean <= high else Status.FAILED, text=text)


def said_by_some(name: str, experiment: Experiment, watched: Watched) -> str:
    """In words, where some ranks of a program said a number and others did not: "only 3 of 4 ranks". Of the workload
    its first rank may speak for all, or its last, which has the loss in a pipeline: any other that speaks alone may be
    the one whose number was good. Of programs beside it, where each is a server or a client of its own, the first."""
    speak = [one for one in watched.summaries + watched.programs if name in one]
    for role, count in _ranks(experiment, by_host=any(name in one for one in watched.programs)).items():
        who = {one["rank"] for one in speak if one.get(ROLE, "") == role and "rank" in one}
        for_all = who in ({0}, set() if role else {count - 1})
        if who and not for_all and len(who) < count:
            lone = f" (rank {min(who)})" if len(who) == 1 else ""
            return f"only {len(who)} of {count} ranks{f' of {role}' if role else ''}{lone}"
    return ""
