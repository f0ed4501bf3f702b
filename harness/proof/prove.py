"""Was the asked condition really in force? Joins asked, read back, kernel counter and receiver. Pure."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lossbench.net import conservation
from lossbench.net.conservation import Between
from lossbench.net.counters import LinkCounts, RuleCounters
from lossbench.proof import significance, statistics
from lossbench.proof.evidence import Counts, FlowSeen, Proof, Row, Seen
from lossbench.proof.significance import Probed
from lossbench.proof.verdict import Finding, Judgement, Status
from lossbench.spec import lossmodel
from lossbench.spec.lossmodel import Bits
from lossbench.spec.pattern import blocks_predicted, predicted
from lossbench.spec.placement import UNTAKEN, Hook, Rule, Rules

LONGEST_BURST = 40  # longer ones are counted together
STRAYS = 0.001  # of the probes may be lost between machines where nobody counts


def prove(*, rules: Rules, seen: Seen, remarks: list[str]) -> Proof:
    """`remarks`: what was found not to be as it should before a probe was sent."""
    findings = [Finding(status=Status.UNKNOWN, text=text) for text in remarks]
    if seen.overflow:
        text = f"{seen.overflow} probe packets overflowed a receiver's socket"
        findings.append(Finding(status=Status.UNKNOWN, text=text))
    findings += _judge_super_packets(seen.counts)
    probed = _by_rule(rules, seen.flows)
    findings += _judge_coverage(rules, probed) + _judge_taken(rules, probed, seen.counts)
    unheard = _unheard(seen)
    if unheard:
        text = f"{unheard} packets came when nobody listened any more: was the machine too busy for the probes?"
        findings.append(Finding(status=Status.UNKNOWN, text=text))
    crowded, strays = seen.overflow + unheard, conservation.observed(seen.between)
    if not seen.bystanders:  # whose packets may be those that were lost, and nothing is said of them below
        crowded += sum(conservation.lost_elsewhere(seen.between).values())
        strays += conservation.lost_in_queues(seen.between)
    strays += crowded
    rows: list[Row] = []
    untold: list[Probed] = []  # what can't be predicted is tested
    for (hook, rule), mine in probed.items():
        label = rule.label if rule else UNTAKEN
        count = seen.counts.get((hook, label))
        exact = _exact(rule, hook, mine, count, strays=strays)
        rows.append(_row(hook, rule, mine, count, seen.read_back.get((hook, label)), exact))
        findings += _judge_seen(hook, rule, mine, count, seen.between)
        if exact is False:
            text = f"{hook.name}: losses differ from the seeded pattern of {label}"
            findings.append(Finding(status=Status.UNKNOWN if seen.bystanders else Status.FAILED, text=text))
        untold.append(Probed(hook=hook, rule=rule, flows=mine, count=count, exact=exact is not None))
    findings += significance.judge(untold, begins_good=seen.begins_good, strays=crowded)
    findings += significance.judge_delays(seen.flows)
    findings += _judge_conservation(seen)
    findings.append(_judge_sum(rules, seen))
    exact_rows = sum(row.exact is True for row in rows)
    if rows and all(f.status == Status.VALID for f in findings):
        packets = sum(flow.sent for flow in seen.flows)
        text = f"proven by {packets} probe packets; {exact_rows} of {len(rows)} rules exact to the packet"
        findings.append(Finding(status=Status.VALID, text=text))
    return Proof(rows=tuple(rows), judgement=Judgement(findings=tuple(findings)), not_judged=seen.not_judged)


def _unheard(seen: Seen) -> int:
    """Probes that came when nobody listened any more: of what came so, no more than is missing and not accounted for.
    Duplicates come late too, and what others send to ports of nobody."""
    if seen.bystanders:
        return 0
    came = sum(link.sockets.unwanted for link in seen.between.links.values() if link.sockets is not None)
    lost = sum(c.dropped + c.corrupted for c in seen.counts.values()) + conservation.lost_in_queues(seen.between)
    lost += sum(conservation.lost_elsewhere(seen.between).values()) - conservation.counted_twice(seen.between)
    return min(came, max(0, sum(flow.lost for flow in seen.flows) - lost))


def _judge_super_packets(counts: Counts) -> list[Finding]:
    """Under any label: some backends count them per hook, not per rule."""
    return [
        Finding(status=Status.UNKNOWN, text=f"{hook.name}: {c.super_packets} super-packets passed the loss point")
        for (hook, _), c in counts.items()
        if c.super_packets
    ]


def _judge_coverage(rules: Rules, probed: dict[tuple[Hook, Rule | None], list[FlowSeen]]) -> list[Finding]:
    """A rule that no probe met is not proven, whatever the others show."""
    return [
        Finding(status=Status.UNKNOWN, text=f"{hook.name}: no probe met rule {rule.label}")
        for hook, here in rules.items()
        for rule in here
        if (hook, rule) not in probed
    ]


def _judge_seen(
    hook: Hook, rule: Rule | None, flows: list[FlowSeen], count: RuleCounters | None, between: Between
) -> list[Finding]:
    """An uplink's rule saw all that was sent; a downlink's all that came that far: what arrived, and what it lost. What
    a busy machine had no room for on the way to an uplink's is counted, and no fault of the rule's."""
    if rule is None or count is None:
        return []
    wanted = _due(hook, flows, count)
    if count.seen >= wanted and (count.seen or not wanted):
        return []
    text = f"{hook.name}: {rule.label} saw {count.seen} of {wanted} probe packets that it should act on"
    link = between.links.get(hook.rank, LinkCounts())
    before = link.lost_entering + link.up.dropped if hook.direction == "uplink" else 0
    if count.seen and count.seen + before >= wanted:
        return [Finding(status=Status.UNKNOWN, text=f"{text}: {before} had no room in a queue before it")]
    return [Finding(status=Status.FAILED, text=text)]


def _due(hook: Hook, flows: list[FlowSeen], count: RuleCounters) -> int:
    """Of these packets a counter there must have met."""
    if hook.direction == "downlink":
        return sum(flow.sent - flow.lost for flow in flows) + count.dropped
    return sum(flow.sent for flow in flows)


def _judge_taken(rules: Rules, probed: dict[tuple[Hook, Rule | None], list[FlowSeen]], counts: Counts) -> list[Finding]:
    """What no rule is about must meet none: those that it counts less, others have counted more."""
    out = []
    for (hook, rule), foils in probed.items():
        rest = counts.get((hook, UNTAKEN))
        if rule is not None or rest is None or not rules[hook]:
            continue
        due = _due(hook, foils, rest)
        for one in rules[hook]:
            count = counts.get((hook, one.label), RuleCounters())
            more = count.seen - _due(hook, probed.get((hook, one), []), count)
            taken = min(due - rest.seen, more)
            if taken > 0:
                text = f"{hook.name}: {one.label} took {taken} of {due} probe packets that it is not about"
                out.append(Finding(status=Status.FAILED, text=text))
    return out


def _by_rule(rules: Rules, flows: list[FlowSeen]) -> dict[tuple[Hook, Rule | None], list[FlowSeen]]:
    """Flows through each rule; hooks without rules stand with None (they must lose nothing)."""
    out: dict[tuple[Hook, Rule | None], list[FlowSeen]] = {}
    for flow in flows:
        for hook, rule in (flow.uplink, flow.downlink):
            if hook in rules:
                out.setdefault((hook, rule), []).append(flow)
    return out


def _row(
    hook: Hook,
    rule: Rule | None,
    flows: list[FlowSeen],
    count: RuleCounters | None,
    read: float | None,
    exact: bool | None,
) -> Row:
    chain = rule.profile.chain() if rule else lossmodel.iid(0.0)
    runs = np.concatenate([statistics.bursts(flow.missing) for flow in flows])
    delays = [d for flow in flows for d in flow.delays_ms]
    quartiles = [float(q) for q in np.quantile(delays, (0.25, 0.5, 0.75))] if delays else [None] * 3
    alone = rule is not None and all(significance.is_alone(flow, hook, rule) for flow in flows)
    p_value = None
    if chain is not None and count is not None:
        p_value = statistics.loss_count_two_sided(count.dropped, count.seen, chain)
    return Row(
        hook=hook.name,
        rule=rule.label if rule else UNTAKEN,
        asked=rule.profile.mean_loss() if rule else 0.0,
        read_back=read,
        kernel_seen=count.seen if count else None,
        kernel_dropped=count.dropped if count else None,
        receiver_sent=sum(flow.sent for flow in flows),
        receiver_missing=sum(flow.lost for flow in flows),
        burst_asked=_finite(lossmodel.burst_mean(chain)) if chain is not None else None,
        burst_seen=float(runs.mean()) if len(runs) else None,
        p_value=p_value,
        exact=exact,
        duplicates=sum(flow.duplicates for flow in flows),
        reordered=sum(flow.reordered for flow in flows),
        delay_ms_p25=quartiles[0],
        delay_ms_p50=quartiles[1],
        delay_ms_p75=quartiles[2],
        burst_counts=_histogram(runs) if alone else (),
        burst_shares=_asked_histogram(chain) if alone else (),
        pattern=rule.seed if rule is not None and exact is not None else None,
    )


def _histogram(runs: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(int(n) for n in np.bincount(np.minimum(runs, LONGEST_BURST), minlength=LONGEST_BURST + 1)[1:])


def _asked_histogram(chain: lossmodel.Chain | None) -> tuple[float, ...]:
    """To the same length whatever was seen, so that rows can be added up."""
    if chain is None:
        return ()
    shares = lossmodel.burst_lengths(chain, up_to=LONGEST_BURST)
    shares[-1] = max(0.0, 1 - shares[:-1].sum())
    return tuple(round(float(s), 6) for s in shares)


def _exact(
    rule: Rule | None, hook: Hook, flows: list[FlowSeen], count: RuleCounters | None, *, strays: int
) -> bool | None:
    """Packet by packet against the prediction, where the rule is seeded and nothing else touches the flow. `strays`:
    packets that were lost where nobody counts; then more may be missing than predicted."""
    if len(flows) != 1 or count is None or significance.other_end(flows[0], hook) is not None or count.corrupted:
        return None
    flow = flows[0]
    lost = _prediction(rule, flow, count) if rule is not None else np.zeros(flow.sent, dtype=np.bool_)
    if lost is None:
        return None
    same = bool(np.array_equal(lost, flow.missing))
    more = int((flow.missing & ~lost).sum())
    return None if not same and more <= strays and not (lost & ~flow.missing).any() else same


def _prediction(rule: Rule, flow: FlowSeen, count: RuleCounters) -> Bits | None:
    blocks, position = blocks_predicted(rule, flow.blocks, flow.header), count.position
    if blocks is not None or position is None or count.seen != flow.sent:
        return blocks
    return predicted(rule, flow.sent, first=position.packets, seed=position.generator, state=position.state)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _judge_conservation(seen: Seen) -> list[Finding]:
    """Nothing of the probes went past a rule or into a device that nobody counts, or was lost where nothing is asked
    to."""
    if seen.bystanders:
        return []
    words = [leak.in_words() for leak in conservation.leaks(seen.between)]
    words += [
        f"{count} probe packets were lost {place}" for place, count in conservation.lost_elsewhere(seen.between).items()
    ]
    return [Finding(status=Status.UNKNOWN, text=text) for text in words]


def _judge_sum(rules: Rules, seen: Seen) -> Finding:
    """Every missing packet is one that a kernel counter says was dropped, damaged or had no room."""
    missing, strays = sum(flow.lost for flow in seen.flows), conservation.observed(seen.between)
    crowded = conservation.lost_in_queues(seen.between) + sum(conservation.lost_elsewhere(seen.between).values())
    accounted = sum(c.dropped + c.corrupted for c in seen.counts.values()) + crowded
    text = f"receivers miss {missing} packets, kernel counters say {accounted}"
    if strays:
        accounted += strays
        text += f", and {strays} were lost between the machines, where nobody counts"
    if strays > STRAYS * sum(flow.sent for flow in seen.flows):
        return Finding(status=Status.UNKNOWN, text=f"{text}: the network loses packets by itself")
    damaged, room = _uncounted_damage(rules, seen.counts)
    if accounted - conservation.counted_twice(seen.between) <= missing <= accounted:
        alone = len({hook.direction for hook, here in rules.items() if here}) == 1  # else they may be lost behind it
        if alone and damaged > room and not seen.bystanders:
            return Finding(status=Status.UNKNOWN, text=f"{text}; {damaged:.0f} more should have been damaged")
        return Finding(status=Status.VALID, text=text)
    if seen.bystanders:
        return Finding(status=Status.VALID, text=f"{text} (other traffic is on the wire: not compared)")
    if damaged and abs(missing - accounted - damaged) < room + 1:
        return Finding(status=Status.VALID, text=f"{text}; the rest is as many as should be damaged")
    return Finding(status=Status.UNKNOWN, text=text)


def _uncounted_damage(rules: Rules, counts: Counts) -> tuple[float, float]:
    """(packets, more or less by so many) that a backend which does not count damage should have damaged."""
    expected = variance = 0.0
    for hook, here in rules.items():
        for rule in here:
            count, share = counts.get((hook, rule.label)), rule.profile.corrupt_percent / 100
            if count is not None and not count.damage_counted:
                expected += (count.seen - count.dropped) * share
                variance += (count.seen - count.dropped) * share * (1 - share)
    return expected, 4.5 * math.sqrt(variance)
