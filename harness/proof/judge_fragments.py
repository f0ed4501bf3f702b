"""Which packets did a rule not recognise, because they were pieces of larger ones? Pure."""

from __future__ import annotations

from lossbench.net.conservation import Between
from lossbench.net.counters import Sockets
from lossbench.proof.verdict import Finding, Status
from lossbench.proof.watched import Watched
from lossbench.spec.losses import BlockLoss
from lossbench.spec.placement import Hook, Rule


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
