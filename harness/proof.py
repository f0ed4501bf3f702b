"""Was the asked condition really in force? Joins asked, read back, kernel counter and receiver. Pure."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from harness import lossmodel, statistics
from harness.evidence import Count, Counts, FlowSeen, Proof, Row
from harness.lossmodel import Bits
from harness.placement import Hook, Rule, Rules
from harness.profile import BlockLoss, TraceLoss
from harness.verdict import Finding, Judgement, Status

LONGEST_BURST = 40  # longer ones are counted together


def prove(*, rules: Rules, flows: list[FlowSeen], counts: Counts, read_back: dict[tuple[Hook, str], float | None],
          overflow: int, queue_drops: int, bystanders: bool, remarks: list[str]) -> Proof:  # fmt: skip
    """`counts` and `read_back` are keyed by hook and rule label; `bystanders`: other traffic may be on the wire."""
    findings = [Finding(status=Status.UNKNOWN, text=text) for text in remarks]
    if overflow:
        findings.append(Finding(status=Status.UNKNOWN, text=f"{overflow} probe packets overflowed a receiver's socket"))
    findings += _judge_super_packets(counts)
    rows: list[Row] = []
    tests: list[tuple[str, float]] = []
    probed = _by_rule(rules, flows)
    findings += _judge_coverage(rules, probed)
    for (hook, rule), mine in probed.items():
        label = rule.label if rule else "none"
        count = counts.get((hook, label))
        exact = _exact(rule, hook, mine, count)
        rows.append(_row(hook, rule, mine, count, read_back.get((hook, label)), exact))
        findings += _judge_seen(hook, rule, mine, count)
        if exact is False:
            text = f"{hook.name}: losses differ from the seeded pattern of {label}"
            findings.append(Finding(status=Status.UNKNOWN if bystanders else Status.FAILED, text=text))
        if exact is None:
            tests += _tests(hook, rule, mine, count)
        tests += _damage_tests(hook, rule, count)
    findings += _judge_tests(tests)
    findings += _judge_delays(flows)
    findings.append(_judge_sum(flows, rules, counts, queue_drops=queue_drops, bystanders=bystanders))
    exact_rows = sum(row.exact is True for row in rows)
    if rows and all(f.status == Status.VALID for f in findings):
        packets = sum(flow.sent for flow in flows)
        text = f"proven by {packets} probe packets; {exact_rows} of {len(rows)} rules exact to the packet"
        findings.append(Finding(status=Status.VALID, text=text))
    return Proof(rows=tuple(rows), judgement=Judgement(findings=tuple(findings)))


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


def _judge_seen(hook: Hook, rule: Rule | None, flows: list[FlowSeen], count: Count | None) -> list[Finding]:
    sent = sum(flow.sent for flow in flows)
    if rule is None or count is None or hook.direction != "uplink" or count.seen >= sent:
        return []
    text = f"{hook.name}: {rule.label} saw {count.seen} of {sent} probe packets that it should act on"
    return [Finding(status=Status.FAILED, text=text)]


def _by_rule(rules: Rules, flows: list[FlowSeen]) -> dict[tuple[Hook, Rule | None], list[FlowSeen]]:
    """Flows through each rule; hooks without rules stand with None (they must lose nothing)."""
    out: dict[tuple[Hook, Rule | None], list[FlowSeen]] = {}
    for flow in flows:
        for hook, rule in (flow.uplink, flow.downlink):
            if hook in rules:
                out.setdefault((hook, rule), []).append(flow)
    return out


def _other_end(flow: FlowSeen, hook: Hook) -> Rule | None:
    return flow.downlink[1] if hook.direction == "uplink" else flow.uplink[1]


def _row(hook: Hook, rule: Rule | None, flows: list[FlowSeen], count: Count | None, read: float | None,
         exact: bool | None) -> Row:  # fmt: skip
    chain = rule.profile.chain() if rule else lossmodel.iid(0.0)
    runs = np.concatenate([statistics.bursts(flow.missing) for flow in flows])
    delays = [d for flow in flows for d in flow.delays_ms]
    p_value = None
    if chain is not None and count is not None:
        p_value = statistics.loss_count_two_sided(count.dropped, count.seen, chain)
    return Row(
        hook=hook.name,
        rule=rule.label if rule else "none",
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
        delay_ms_p50=float(np.median(delays)) if delays else None,
        burst_counts=_histogram(runs),
        burst_shares=_asked_histogram(chain, len(_histogram(runs))),
    )


def _histogram(runs: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(int(n) for n in np.bincount(np.minimum(runs, LONGEST_BURST))[1:])


def _asked_histogram(chain: lossmodel.Chain | None, upto: int) -> tuple[float, ...]:
    if chain is None or not upto:
        return ()
    shares = lossmodel.burst_lengths(chain, up_to=upto)
    shares[-1] = max(0.0, 1 - shares[:-1].sum())
    return tuple(round(float(s), 6) for s in shares)


def _exact(rule: Rule | None, hook: Hook, flows: list[FlowSeen], count: Count | None) -> bool | None:
    """Packet by packet against the prediction, where the rule is seeded and nothing else touches the flow."""
    if len(flows) != 1 or count is None or _other_end(flows[0], hook) is not None or count.corrupted:
        return None
    flow = flows[0]
    if rule is None:
        return flow.lost == 0
    predicted = _prediction(rule, flow, count)
    if predicted is None:
        return None
    return bool(np.array_equal(predicted, flow.missing))


def _prediction(rule: Rule, flow: FlowSeen, count: Count) -> Bits | None:
    loss = rule.profile.loss
    if isinstance(loss, BlockLoss):
        return np.array(
            [
                lossmodel.block_lost(seed=rule.block_seed, block=b, loss=loss.percent / 100, **flow.header)
                for b in flow.blocks
            ]
        )
    if count.generator is None or count.seen != flow.sent:
        return None
    if isinstance(loss, TraceLoss):
        pattern = loss.pattern()
        index = np.arange(count.packets_before, count.packets_before + flow.sent)
        inside = index < len(pattern)
        return pattern[index % len(pattern)] & (inside | loss.loop)
    chain = rule.profile.chain()
    assert chain is not None
    return lossmodel.predict(chain, seed=count.generator, count=flow.sent, state=count.state)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _tests(hook: Hook, rule: Rule | None, flows: list[FlowSeen], count: Count | None) -> list[tuple[str, float]]:
    """(what, p-value) of the statistical tests of a rule that can't be predicted."""
    chain = rule.profile.chain() if rule else lossmodel.iid(0.0)
    if chain is None:
        return []
    label = rule.label if rule else "no rule"
    tests = []
    if count is not None and (rule is not None or count.seen):
        p_value = statistics.loss_count_two_sided(count.dropped, count.seen, chain)
        tests.append((f"{hook.name}: {count.dropped} of {count.seen} lost under {label}", p_value))
    for flow in flows:
        # A second loss point or damaged packets would mix their gaps into what the receiver misses.
        if _other_end(flow, hook) is not None or (rule is not None and rule.profile.corrupt_percent):
            continue
        if count is None:
            what = f"{hook.name}: {flow.lost} of {flow.sent} missing under {label}"
            tests.append((what, statistics.loss_count_two_sided(flow.lost, flow.sent, chain)))
        burst = statistics.burst_two_sided(flow.missing, chain)
        if burst is not None:
            tests.append((f"{hook.name}: burst lengths under {label}", burst))
    return tests


def _damage_tests(hook: Hook, rule: Rule | None, count: Count | None) -> list[tuple[str, float]]:
    """Damage and duplicates at the asked rate, of the packets that were not lost."""
    if rule is None or count is None or not count.damage_counted:
        return []
    survivors, profile = count.seen - count.dropped, rule.profile
    return [
        (f"{hook.name}: {seen} of {survivors} {what} under {rule.label}",
         statistics.binomial_two_sided(seen, survivors, asked / 100))
        for what, seen, asked in (
            ("damaged", count.corrupted, profile.corrupt_percent),
            ("duplicated", count.duplicated, profile.duplicate_percent),
        )
    ]  # fmt: skip


def _judge_tests(tests: list[tuple[str, float]]) -> list[Finding]:
    """One error budget for all tests of this network."""
    if not tests:
        return []
    limit = statistics.FAMILY_ERROR / len(tests)
    return [
        Finding(status=Status.FAILED, text=f"{what} (p = {p:.1e}, limit {limit:.1e})") for what, p in tests if p < limit
    ]


def _judge_delays(flows: list[FlowSeen]) -> list[Finding]:
    """Median one-way delay within 5 % plus 2 ms of what the path asks for."""
    out = []
    for flow in flows:
        asked = sum(r.profile.delay.mean_ms for _, r in (flow.uplink, flow.downlink) if r and r.profile.delay)
        if not asked:
            continue
        if not flow.delays_ms:
            out.append(Finding(status=Status.UNKNOWN, text=f"{flow.name}: no delay could be measured"))
            continue
        median = float(np.median(flow.delays_ms))
        if abs(median - asked) > 0.05 * asked + 2.0:
            out.append(Finding(status=Status.FAILED, text=f"{flow.name}: delay {median:.1f} ms, asked {asked:.1f} ms"))
    return out


def _judge_sum(flows: list[FlowSeen], rules: Rules, counts: Counts, *, queue_drops: int, bystanders: bool) -> Finding:
    """Every missing packet is one that a kernel counter says was dropped, damaged or overflowed a queue."""
    missing = sum(flow.lost for flow in flows)
    accounted = sum(c.dropped + c.corrupted for c in counts.values()) + queue_drops
    text = f"receivers miss {missing} packets, kernel counters say {accounted}"
    if missing == accounted:
        return Finding(status=Status.VALID, text=text)
    if bystanders:
        return Finding(status=Status.VALID, text=f"{text} (other traffic is on the wire: not compared)")
    if _uncounted_damage(rules, counts, missing - accounted):
        return Finding(status=Status.VALID, text=f"{text}; the rest is as many as should be damaged")
    return Finding(status=Status.UNKNOWN, text=text)


def _uncounted_damage(rules: Rules, counts: Counts, rest: int) -> bool:
    """Is the difference what a backend that does not count damage should have damaged?"""
    expected = variance = 0.0
    for hook, here in rules.items():
        for rule in here:
            count, share = counts.get((hook, rule.label)), rule.profile.corrupt_percent / 100
            if count is not None and not count.damage_counted:
                expected += (count.seen - count.dropped) * share
                variance += (count.seen - count.dropped) * share * (1 - share)
    return variance > 0 and abs(rest - expected) < 4.5 * math.sqrt(variance) + 1
