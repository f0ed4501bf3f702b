"""Did every rule lose as many of the workload's packets as asked? Exactly where it is seeded, else by tests. And which
did it not recognise, because they were pieces of larger ones? Pure."""

from __future__ import annotations

import math

from lossbench.net.conservation import Between
from lossbench.net.counters import TOTAL, RuleCounters, Sockets
from lossbench.proof import significance, statistics
from lossbench.proof.verdict import Finding, Status
from lossbench.proof.watched import Watched
from lossbench.spec import lossmodel
from lossbench.spec.losses import BlockLoss, TraceLoss
from lossbench.spec.pattern import lost_by_trace, predicted
from lossbench.spec.placement import Hook, Rule
from lossbench.spec.profile import Profile

PREDICT_PACKETS = 20_000_000  # of one rule; beyond this the pattern is tested statistically
FEW = 30  # packets of a run; fewer show nothing of a share of them
NONE_OF_SO_MANY = 0.05  # the chance of none being lost; where it is more, that none was shows nothing of the share
PREDICT_BURSTY = 1_000_000  # which is walked packet by packet, half a second


def judge_rules(watched: Watched, between: Between) -> list[Finding]:
    findings: list[Finding] = []
    tests: list[tuple[str, float]] = []
    pools: dict[tuple[str, lossmodel.Chain], list[tuple[int, int]]] = {}
    met: list[tuple[str, Profile, RuleCounters]] = []
    checked = 0
    for hook, here in between.hooks.items():
        for label, count in here.items():
            rule, where = watched.rules.get(hook, {}).get(label), f"{hook.name}, {label}"
            tests += _test_of_sum(watched, hook, label, count)
            if count.super_packets:
                text = f"{where}: {count.super_packets} super-packets passed the loss point during the run"
                findings.append(Finding(status=Status.UNKNOWN, text=text))
            if not 0 <= count.dropped <= count.seen:
                text = f"{where}: its counters ran backwards: they were replaced during the run"
                findings.append(Finding(status=Status.UNKNOWN, text=text))
                continue
            if rule is None or not count.seen:
                continue
            met.append((where, rule.profile, count))
            if not watched.moving and not generator_is_its_own(rule, count):
                text = f"{where}: its generator does not stand where its seed leads: somebody set it during the run"
                findings.append(Finding(status=Status.UNKNOWN, text=text))
            expected, chain = expected_drops(rule, count), rule.profile.chain()
            if expected is not None and expected != count.dropped:
                text = f"{where}: {count.dropped} of {count.seen} packets lost, the seeded pattern says {expected}"
                findings.append(Finding(status=Status.FAILED, text=text))
            elif expected is None and chain is not None and not count.shared:
                p = statistics.loss_count_two_sided(count.dropped, count.seen, chain)
                tests.append((f"{where}: {count.dropped} of {count.seen} packets lost during the run", p))
                pools.setdefault((label, chain), []).append((count.dropped, count.seen))
            checked += count.seen if expected is not None or (chain is not None and not count.shared) else 0
    tests += [
        (
            f"all hooks of {label}: {sum(d for d, _ in counts)} of {sum(s for _, s in counts)} lost during the run",
            statistics.pooled_two_sided(counts, chain),
        )
        for (label, chain), counts in pools.items()
        if len(counts) > 1
    ]
    tests += [(f"{what} during the run", p) for what, p in significance.damage_tests(met)]
    few, spared = _too_few(watched, between)
    findings += significance.failed(tests, of="losses of the run") + few
    return findings or [*_in_words(watched, between, checked), *spared]


def _too_few(watched: Watched, between: Between) -> tuple[list[Finding], list[Finding]]:
    """What all met together says nothing of one of them: not of an entry, of one of its directions, or of a host or
    pair that it names. Of rules that are counted together at most what their port met is known. And what met none of
    its loss and was right to: that is no doubt, but has to be said."""
    sides: dict[int, set[str]] = {}
    for hook, rules in watched.rules.items():
        for rule in rules.values():
            sides.setdefault(rule.entry, set()).add(hook.direction)
    met: dict[tuple[int, bool, str], list[tuple[Rule, RuleCounters]]] = {}
    for hook, rules in watched.rules.items():
        here = between.hooks.get(hook, {})
        for label, rule in rules.items():
            count = here.get(label) or here.get(TOTAL) or RuleCounters()
            key = rule.entry, rule.named, _where(hook, rule, both=len(sides[rule.entry]) > 1)
            met.setdefault(key, []).append((rule, count))
    entries = {number for (number, _, _), each in met.items() if any(count.seen for _, count in each)}
    few, spared = [], []
    for (number, named, where), each in met.items():
        count = RuleCounters()
        for _, one in each:
            count = count.plus(one)
        if number not in entries or (named and not count.seen):  # which was not there, and that is said elsewhere
            continue
        profile = each[0][0].profile
        name, handful, none = f"impair.{number} ({profile.name}){where}", _handful(profile, count), _lost_none(each)
        if handful or (none and not _predicted(each)):
            text = f"{name} met {handful or none} in the run: too few to show anything"
            few.append(Finding(status=Status.UNKNOWN, text=text))
        elif none:
            text = f"{name} met {none}: so says its pattern, packet by packet, and the workload met no loss"
            spared.append(Finding(status=Status.VALID, text=text))
    return few, spared


def _lost_none(each: list[tuple[Rule, RuleCounters]]) -> str:
    """In words, if that is likely to happen to so few, whatever was asked."""
    share, seen = each[0][0].profile.mean_loss(), sum(count.seen for _, count in each)
    if not 0 < share < 1 or not seen or any(count.dropped for _, count in each):
        return ""
    chain = each[0][0].profile.chain() or lossmodel.iid(share)  # of whole blocks, or correlated: at least that likely
    chance = math.prod(lossmodel.none_lost(chain, max(0, count.seen)) for _, count in each)
    likely = f"{seen} packets and lost none of them ({100 * share:.3g} % of so few is none in {chance:.0%} of cases)"
    return likely if chance > NONE_OF_SO_MANY else ""


def _predicted(each: list[tuple[Rule, RuleCounters]]) -> bool:
    return all(expected_drops(rule, count) is not None for rule, count in each if count.seen)


def _where(hook: Hook, rule: Rule, *, both: bool) -> str:
    """Of whom it has to be shown: of what the experiment names, else of all hosts, each direction by itself."""
    if rule.named:
        return f" at {hook.name}{f' ({rule.pair})' if rule.pair else ''}"
    return f" at {hook.direction}s" if both else ""


def _handful(profile: Profile, count: RuleCounters) -> str:
    """In words, if it is too small to show a share; a few show what takes every packet."""
    overtaking = profile.reorder.share() if profile.reorder is not None else 0.0
    damage = profile.corrupt_percent / 100
    shares = (profile.mean_loss(), profile.duplicate_percent / 100, damage, overtaking)
    if count.seen < FEW and any(0 < share < 1 for share in shares):
        return f"{count.seen} packets"
    if damage and count.damage_counted and count.damageable < (FEW if damage < 1 else 1):
        return f"{count.damageable} packets that could be damaged"
    return ""


def _test_of_sum(watched: Watched, hook: Hook, label: str, count: RuleCounters) -> list[tuple[str, float]]:
    """Rules that are counted together can't have lost more than the worst of them would have of every packet."""
    losses = [rule.profile.mean_loss() for rule in watched.rules.get(hook, {}).values()]
    if label != TOTAL or count.shared or not 0 <= count.dropped <= count.seen:
        return []
    worst = max(losses, default=0.0)
    if count.dropped <= worst * count.seen:
        return []
    p = statistics.binomial_two_sided(count.dropped, count.seen, worst)
    return [(f"{hook.name}: {count.dropped} of {count.seen} packets lost during the run, by all rules together", p)]


def _in_words(watched: Watched, between: Between, checked: int) -> list[Finding]:
    counts = [
        c for hook, here in between.hooks.items() for label, c in here.items() if label in watched.rules.get(hook, {})
    ]
    seen, dropped = sum(c.seen for c in counts), sum(c.dropped for c in counts)
    if not seen:
        return []
    text = f"during the run {dropped} of {seen} matching packets were lost ({dropped / seen:.3%})"
    text += ", as asked" if checked == seen else f"; {checked} of them could be checked against what was asked"
    return [Finding(status=Status.VALID, text=text)]


def generator_is_its_own(rule: Rule, counters: RuleCounters) -> bool:
    """Does it stand where its seed leads after as many packets? Another pattern may lose as many."""
    at = counters.position
    drawn = at is not None and rule.profile.chain() is not None
    return at is None or at.generator == lossmodel.advanced(rule.seed, at.packets if drawn else 0)


def expected_drops(rule: Rule, counters: RuleCounters) -> int | None:
    """How many of the packets seen a seeded rule must have dropped, exactly; None if that can't be said."""
    if counters.position is None or counters.position.packets != counters.seen:
        return None
    if isinstance(rule.profile.loss, TraceLoss):
        return lost_by_trace(rule.profile.loss, counters.seen)
    chain = rule.profile.chain()
    limit = PREDICT_PACKETS if chain is not None and len(chain.states) == 1 else PREDICT_BURSTY
    lost = predicted(rule, counters.seen) if counters.seen <= limit else None
    return None if lost is None else int(lost.sum())


# --- fragments -------------------------------------------------------------------------------------------------------


def judge_fragments(watched: Watched, between: Between) -> list[Finding]:
    """Ports (and our datagrams' header) are in the first fragment of a datagram only, and IPv6 hides the protocol of
    all of them: a rule that asks for these did not meet the rest. Hosts count what they cut and what they put
    together."""
    out: dict[str, None] = {}
    for hook, rules in watched.rules.items():
        link = between.links.get(hook.rank)
        if link is None or link.sockets is None:
            continue
        for rule in rules.values():
            escaped = _escaped(hook, rule, link.sockets)
            if escaped:
                what = f"h{hook.rank} {'sent' if hook.direction == 'uplink' else 'got'} {escaped} IP fragments"
                asked = f"{rule.match.in_words()} (profile {rule.profile.name})"
                out[f"{what}, of which not all show whether they are {asked}: send what fits the MTU"] = None
    return [Finding(status=Status.UNKNOWN, text=text) for text in out]


def _escaped(hook: Hook, rule: Rule, inside: Sockets) -> int:
    four, six = (inside.cut, inside.cut_6) if hook.direction == "uplink" else (inside.pieces, inside.pieces_6)
    if rule.match.asks_for_ports() or isinstance(rule.profile.loss, BlockLoss):
        return four + six
    return six if rule.match.protocol else 0
