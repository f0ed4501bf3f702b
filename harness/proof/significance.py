"""What of a proof is a matter of statistics: rates and bursts that can't be predicted, damage, delays, overtaking.
Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lossbench.net.counters import RuleCounters
from lossbench.proof import statistics
from lossbench.proof.covers.limits import OVERTAKING_FROM_MS
from lossbench.proof.evidence import FlowSeen
from lossbench.proof.verdict import Finding, Status
from lossbench.spec import lossmodel
from lossbench.spec.delay import Delay
from lossbench.spec.placement import Hook, Rule
from lossbench.spec.profile import Profile

TOLERANCE, TOLERANCE_MS = 0.05, 2.0  # of a delay; what a path adds by itself is some tenths of a millisecond
EARLY_MS = 0.25  # no machine is early: what comes sooner than that did not wait as it was asked to
EARLIER = (0.05, 0.25, 0.75, 0.95)  # of the delays, that may be so short
TESTS_OF_DELAYS = 3 + 2 * len(EARLIER)  # of a flow: its median, its quartiles; and these with those that are alike
QUICKEST = 0.05  # of the probes, which a busy machine did not hold up
FORGOTTEN = 10  # a channel has forgotten its beginning after so many times its memory


@dataclass(frozen=True, kw_only=True)
class Probed:
    """One rule at one hook and the flows that met it."""

    hook: Hook
    rule: Rule | None
    flows: list[FlowSeen]
    count: RuleCounters | None
    exact: bool  # held against its prediction already

    @property
    def chain(self) -> lossmodel.Chain | None:
        return self.rule.profile.chain() if self.rule else lossmodel.iid(0.0)

    @property
    def label(self) -> str:
        return self.rule.label if self.rule else "no rule"


def other_end(flow: FlowSeen, hook: Hook) -> Rule | None:
    return flow.downlink[1] if hook.direction == "uplink" else flow.uplink[1]


def is_alone(flow: FlowSeen, hook: Hook, rule: Rule | None) -> bool:
    """A second loss point or damaged packets would mix their gaps into what the receiver misses."""
    return other_end(flow, hook) is None and not (rule is not None and rule.profile.corrupt_percent)


def judge(probed: list[Probed], *, begins_good: bool, strays: int = 0) -> list[Finding]:
    """One error budget for all tests of this network. `strays`: packets that were lost where nothing was asked to lose
    any; then what receivers miss says nothing of a rule."""
    tests: list[tuple[str, float]] = []
    for one in probed:
        tests += [] if one.exact else _loss_tests(one, begins_good=begins_good, strays=strays)
    tests += _pooled_tests([one for one in probed if not one.exact], begins_good=begins_good, strays=strays)
    tests += damage_tests(
        (f"{one.hook.name}, {one.label}", one.rule.profile, one.count) for one in probed if one.rule and one.count
    )
    losses = failed(tests, of="losses of the probes")
    return losses + [finding for one in probed if not one.exact for finding in _judge_memory(one)]


def _loss_tests(one: Probed, *, begins_good: bool, strays: int) -> list[tuple[str, float]]:
    """(what, p-value)."""
    chain, count, name = one.chain, one.count, one.hook.name
    if chain is None:
        return []
    tests = []
    if count is not None and (one.rule is not None or count.seen):
        p_value = statistics.loss_count_two_sided(count.dropped, count.seen, chain, from_good=begins_good)
        tests.append((f"{name}: {count.dropped} of {count.seen} lost under {one.label}", p_value))
    for flow in _alone(one, strays=strays):
        if count is None:
            what = f"{name}: {flow.lost} of {flow.sent} missing under {one.label}"
            tests.append((what, statistics.loss_count_two_sided(flow.lost, flow.sent, chain, from_good=begins_good)))
        burst = statistics.burst_two_sided(flow.missing, chain)
        if burst is not None:
            tests.append((f"{name}: burst lengths under {one.label}", burst))
    return tests


def _alone(one: Probed, *, strays: int) -> list[FlowSeen]:
    """Of which what the receiver missed is this rule's work."""
    return [] if strays else [flow for flow in one.flows if is_alone(flow, one.hook, one.rule)]


def _pooled_tests(probed: list[Probed], *, begins_good: bool, strays: int) -> list[tuple[str, float]]:
    """All hosts of one profile together: what no host shows alone."""
    groups: dict[tuple[str, lossmodel.Chain], list[Probed]] = {}
    for one in probed:
        if one.chain is not None and one.rule is not None:
            groups.setdefault((one.rule.profile.name, one.chain), []).append(one)
    tests: list[tuple[str, float]] = []
    for (name, chain), some in groups.items():
        counts = [(one.count.dropped, one.count.seen) for one in some if one.count is not None]
        flows = [(one, flow) for one in some for flow in _alone(one, strays=strays)]
        missed = [(flow.lost, flow.sent) for one, flow in flows if one.count is None and len(chain.states) == 1]
        for pool, who, what in ((counts, "hooks", "lost"), (missed, "flows", "missing")):
            if len(pool) > 1:
                text = f"all {len(pool)} {who} of {name}: {sum(n for n, _ in pool)} of {sum(n for _, n in pool)} {what}"
                tests.append((text, statistics.pooled_two_sided(pool, chain, from_good=begins_good)))
        bursts = [statistics.followed(flow.missing) for _, flow in flows]
        p = statistics.followed_two_sided(bursts, chain) if len(bursts) > 1 else None
        if p is not None:
            tests.append((f"all {len(bursts)} flows of {name}: burst lengths", p))
    return tests


def _judge_memory(one: Probed) -> list[Finding]:
    """A channel whose bursts are longer than the probe shows nothing of its rate."""
    if one.chain is None or len(one.chain.states) == 1 or one.count is None:
        return []
    memory = lossmodel.memory_packets(one.chain)
    if one.count.seen >= FORGOTTEN * memory:
        return []
    text = f"{one.hook.name}: {one.label} remembers {memory:.0f} packets, {one.count.seen} probes can't show its rate"
    return [Finding(status=Status.UNKNOWN, text=text)]


def damage_tests(met: Iterable[tuple[str, Profile, RuleCounters]]) -> list[tuple[str, float]]:
    """Damage and duplicates at the asked rate, of the packets that were not lost: at each place, and at all places of a
    profile together."""
    tests: list[tuple[str, float]] = []
    pools: dict[tuple[str, str, float], list[tuple[int, int]]] = {}
    for where, profile, count in met:
        for what, number, trials, asked in _damage(profile, count):
            p = statistics.binomial_two_sided(number, trials, asked / 100)
            tests.append((f"{where}: {number} of {trials} {what}", p))
            if 0 <= number <= trials:
                pools.setdefault((profile.name, what, asked), []).append((number, trials))
    for (name, what, asked), pool in pools.items():
        number, trials = (sum(numbers) for numbers in zip(*pool, strict=True))
        if len(pool) > 1:
            p = statistics.binomial_two_sided(number, trials, asked / 100)
            tests.append((f"all {len(pool)} hooks of {name}: {number} of {trials} {what}", p))
    return tests


def _damage(profile: Profile, count: RuleCounters) -> list[tuple[str, int, int, float]]:
    """(what, how many, of how many, percent asked). netem counts no damage, and of a packet that it duplicates and
    loses it counts neither: with loss beside them its duplicates are not tested."""
    survivors = count.seen - count.dropped
    tests = []
    if count.damage_counted:  # packets of 64 bytes and less are never damaged
        trials = count.damageable if profile.corrupt_percent else survivors
        tests.append(("damaged", count.corrupted, trials, profile.corrupt_percent))
    if count.damage_counted or profile.loss is None:
        tests.append(("duplicated", count.duplicated, survivors, profile.duplicate_percent))
    return tests


# --- delays ----------------------------------------------------------------------------------------------------------


def judge_delays(flows: list[FlowSeen]) -> list[Finding]:
    """Median one-way delay at most 5 % and 2 ms above what the path asks for, and 5 % and a quarter below; quartiles as
    the jitter asks; as many packets ahead of their turn as asked."""
    out: list[Finding] = []
    overtaking: list[tuple[FlowSeen, tuple[str, float, bool]]] = []
    spread: dict[Delay, list[tuple[FlowSeen, np.ndarray]]] = {}
    limit = statistics.limit_for(TESTS_OF_DELAYS * len(flows), of="delays of the probes")
    none_waited = statistics.limit_for(len(flows), of="probes that did not wait")
    deviations = statistics.deviations_at(limit)
    for flow in flows:
        delays = [r.profile.delay for _, r in (flow.uplink, flow.downlink) if r and r.profile.delay]
        profiles = [r.profile for _, r in (flow.uplink, flow.downlink) if r and r.profile.delay]
        asked = sum(delay.mean_ms for delay in delays)
        if not asked:
            continue
        if not flow.delays_ms:
            out.append(Finding(status=Status.UNKNOWN, text=f"{flow.name}: no delay could be measured"))
            continue
        seen = np.array(flow.delays_ms)
        if profiles[0].reorder is not None and len(profiles) == 1 and asked >= OVERTAKING_FROM_MS:
            overtaking += [(flow, _test_overtaking(flow, profiles[0]))] if flow.clock_ms <= asked / 4 else []
            seen = seen[seen >= asked / 2]
            if not len(seen):
                out.append(_none_waited(flow, profiles[0].reorder.share(), limit=none_waited))
                continue
        median = float(np.median(seen))
        chance = deviations * math.hypot(*(_off_by_one(delay, 0.5, len(seen)) for delay in delays))
        room = TOLERANCE * asked + TOLERANCE_MS + chance
        wanted = sum(delay.quantile_ms(0.5) for delay in delays)
        early = TOLERANCE * asked + chance + (EARLY_MS if len(delays) == 1 or not chance else TOLERANCE_MS)
        text = f"{flow.name}: delay {median:.1f} ms, asked {asked:.1f} ms"
        if flow.clock_ms > room:
            text = f"{flow.name}: delay {median:.1f} ms one way, asked {asked:.1f} ms"
            text += f"; but the clocks of its ends are only known to {flow.clock_ms:.1f} ms"
            out.append(Finding(status=Status.UNKNOWN, text=text))
        elif TOLERANCE * asked + chance >= wanted:
            out.append(Finding(status=Status.UNKNOWN, text=f"{text}; too few came to tell it from none"))
        elif median < wanted - early - flow.clock_ms:
            out.append(Finding(status=Status.FAILED, text=text))
        elif median > wanted + room + flow.clock_ms:
            quick = delays[0].quantile_ms(QUICKEST) if len(delays) == 1 else wanted
            on_time = float(np.quantile(seen, QUICKEST)) <= quick + room + flow.clock_ms
            out.append(_late(flow, text, median - wanted - room - flow.clock_ms, some_on_time=on_time))
        elif len(delays) == 1 and delays[0].jitter_ms:
            out += _judge_jitter(flow, delays[0], seen, deviations)
            spread.setdefault(delays[0], []).append((flow, seen))
    out += _judge_early(spread, limit)
    limit = statistics.limit_for(len(overtaking), of="overtaking of the probes")
    for flow, (text, p, fewer) in overtaking:
        if p < limit:
            # One that goes at once and comes late can't be told from one that waited.
            late_ms = float(np.median(flow.delays_ms)) / 4 if fewer else math.inf
            out.append(_late(flow, f"{text} (p = {p:.1e}, limit {limit:.1e})", late_ms, some_on_time=False))
    return out


def _none_waited(flow: FlowSeen, at_once: float, *, limit: float) -> Finding:
    """`at_once`: the share that is asked not to wait; of few packets it may be all."""
    sure = at_once ** len(flow.delays_ms) < limit
    text = f"{flow.name}: none of {len(flow.delays_ms)} packets waited"
    return Finding(status=Status.FAILED if sure else Status.UNKNOWN, text=text)


def _late(flow: FlowSeen, text: str, late_ms: float, *, some_on_time: bool) -> Finding:
    """Packets came `late_ms` later than they may. That a machine was too busy for them is no fault of the network's:
    where it knows of so much lateness itself, or the quickest packets came on time."""
    if flow.sender_ms + flow.wire_ms >= late_ms:
        why = f"who sent them was {flow.sender_ms:.1f} ms late, wires {flow.wire_ms:.1f} ms: the machine was too busy"
        return Finding(status=Status.UNKNOWN, text=f"{text}; {why}")
    if some_on_time:
        why = "but the quickest came on time: the machine was too busy for the others"
        return Finding(status=Status.UNKNOWN, text=f"{text}; {why}")
    return Finding(status=Status.FAILED, text=text)


def failed(tests: list[tuple[str, float]], *, of: str) -> list[Finding]:
    """Of tests (what, p-value): all of this family."""
    limit = statistics.limit_for(len(tests), of=of)
    return [
        Finding(status=Status.FAILED, text=f"{what} (p = {p:.1e}, limit {limit:.1e})") for what, p in tests if p < limit
    ]


def _judge_jitter(flow: FlowSeen, delay: Delay, seen: np.ndarray, deviations: float) -> list[Finding]:
    """Too little spread is a fault of the delay; too much on the late side may be the machine's. `deviations`: that a
    quartile of so few samples may be off."""
    out = []
    for share in (0.25, 0.75):
        asked, real = delay.quantile_ms(share), float(np.quantile(seen, share))
        room = TOLERANCE * delay.mean_ms + TOLERANCE_MS + deviations * _off_by_one(delay, share, len(seen))
        if abs(real - asked) > room + flow.clock_ms:
            side = "below" if share < 0.5 else "above"
            text = f"{flow.name}: a quarter of the delays is {side} {real:.1f} ms, asked {asked:.1f}"
            if real > asked:
                out.append(_late(flow, text, real - asked - room - flow.clock_ms, some_on_time=share > 0.5))
            else:
                out.append(Finding(status=Status.FAILED, text=text))
    return out


def _judge_early(spread: dict[Delay, list[tuple[FlowSeen, np.ndarray]]], limit: float) -> list[Finding]:
    """No machine makes packets earlier: more short delays than the distribution has are a fault of it, where short ones
    are too short (spread too far) and where long ones are (not far enough). Of each flow, and of all that are alike."""
    out = []
    for delay, alike in spread.items():
        if delay.distribution == "paretonormal":
            continue
        for flows in ([alike] if len(alike) > 1 else []) + [[one] for one in alike]:
            name = flows[0][0].name if len(flows) == 1 else f"all {len(flows)} flows with this delay"
            total = sum(len(seen) for _, seen in flows)
            for share in EARLIER:
                asked = delay.quantile_ms(share)
                sooner = sum(int((seen < asked - EARLY_MS - flow.clock_ms).sum()) for flow, seen in flows)
                p = statistics.binomial_two_sided(sooner, total, share)
                if sooner > share * total and p < limit:
                    text = f"{name}: {sooner} of {total} delays are below {asked:.1f} ms, asked {share:.0%}"
                    text += f" (jitter {delay.jitter_ms:g} ms; p = {p:.1e}, limit {limit:.1e})"
                    out.append(Finding(status=Status.FAILED, text=text))
                    break
    return out


def _off_by_one(delay: Delay, share: float, samples: int) -> float:
    """One deviation of this quantile of so many samples, ms."""
    slope = (delay.quantile_ms(share + 0.02) - delay.quantile_ms(share - 0.02)) / 0.04
    return slope * math.sqrt(share * (1 - share) / max(samples, 1))


def _test_overtaking(flow: FlowSeen, profile: Profile) -> tuple[str, float, bool]:
    """(what, p-value, fewer than asked)."""
    assert profile.reorder is not None and profile.delay is not None
    at_once = int((np.array(flow.delays_ms) < profile.delay.mean_ms / 2).sum())
    p = statistics.binomial_two_sided(at_once, len(flow.delays_ms), profile.reorder.share())
    text = f"{flow.name}: {at_once} of {len(flow.delays_ms)} packets overtook, asked {profile.reorder.share():.1%}"
    return text, p, at_once < profile.reorder.share() * len(flow.delays_ms)
