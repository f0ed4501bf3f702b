"""Did a link ever carry more than its rate? Did wires in user space keep packets for as long as they were asked to?
Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lossbench.net.counters import Held
from lossbench.proof import statistics
from lossbench.proof.verdict import Finding, Status
from lossbench.proof.watched import Carried, Watched
from lossbench.spec.delay import Delay
from lossbench.spec.experiment import Experiment

TOLERANCE = 0.05
# What a link may carry beyond its rate between two readings: tokens and what lay in a ring, by its rate and in packets;
# fast links at most so much.
BURST_S, BURST_PACKETS, BURST_BYTES = 0.01, 16, 128 * 1024
SHORTEST_S = 0.1
EXACT_MS = 0.05  # the kernel's stamps are of microseconds
SOME = 100  # waits, of which fewer say nothing of their deviation
TESTS_OF_KEPT = 3  # of a wire: how long it kept packets, the longest of them, and how differently
PARETO = 4 / 3  # of its jitter, as netem has it


def burst_bytes(rate_mbit: float, mtu: int) -> float:
    return min(BURST_BYTES, rate_mbit * 1e6 / 8 * BURST_S + BURST_PACKETS * mtu)


def judge_rates(experiment: Experiment, carried: Sequence[Carried]) -> list[Finding]:
    """Between every two looks, and over all of the run."""
    topology = experiment.topology
    out = []
    for name, asked in (("up", topology.uplink_mbit()), ("down", topology.downlink_mbit())):
        if asked is None or len(carried) < 2:
            continue
        pairs = [*zip(carried, carried[1:], strict=False), (carried[0], carried[-1])]
        worst: dict[int, tuple[float, str]] = {}
        for first, last in pairs:
            seconds = last.to_s - first.from_s  # at most
            if last.from_s - first.to_s < SHORTEST_S:
                continue
            for rank, total in getattr(last, name).items():
                spent = (total - getattr(first, name).get(rank, 0) - burst_bytes(asked, topology.mtu)) * 8 / 1e6
                reached = spent / seconds
                if reached > asked * (1 + TOLERANCE) and reached > worst.get(rank, (0.0, ""))[0]:
                    worst[rank] = reached, f"between {first.from_s:.1f} and {last.to_s:.1f} s"
        for rank, (reached, when) in sorted(worst.items()):
            text = f"h{rank} {name}link: {reached:.3g} Mbit/s {when}, {asked:g} asked"
            out.append(Finding(status=Status.FAILED, text=text))
    return out


def judge_kept(watched: Watched) -> list[Finding]:
    """How late a wire was is judged as lateness: here it is taken off, and a busy machine excuses nothing."""
    kept = [
        (f"{hook.name}, {label}", rule.profile.delay, held)
        for hook, here in watched.held.items()
        for label, held in here.items()
        for rule in (watched.rules.get(hook, {}).get(label),)
        if rule is not None and rule.profile.delay is not None and held.waited
    ]
    limit = statistics.limit_for(TESTS_OF_KEPT * len(kept), of="what wires kept")
    return [one for where, delay, held in kept for one in _judge_wire(where, delay, held, limit)]


def _judge_wire(where: str, delay: Delay, held: Held, limit: float) -> list[Finding]:
    deviations = statistics.deviations_at(limit)
    (mean, spread), (asked, deviation) = held.kept_ms(), delay.kept_ms()
    n = held.waited
    below = deviations * deviation / math.sqrt(n) + EXACT_MS
    above = below + (_rare(delay, n, limit) if delay.distribution.startswith("pareto") else 0.0)
    of = f"{where}: its wire kept {n} packets"
    if not -below <= mean - asked <= above:
        return [Finding(status=Status.FAILED, text=f"{of} for {mean:.2f} ms, asked {asked:.2f}")]
    room = _spread_room(delay, n, deviations)
    if room is not None and abs(spread - deviation) > room:
        text = f"{of} with a deviation of {spread:.2f} ms, asked {deviation:.2f} (jitter {delay.jitter_ms:g})"
        return [Finding(status=Status.FAILED, text=text)]
    return []


def _rare(delay: Delay, n: int, limit: float) -> float:
    """What the longest of n heavy-tailed waits may add to their mean."""
    return delay.jitter_ms * PARETO * math.pow(n / limit, 1 / 3) / n


def _spread_room(delay: Delay, n: int, deviations: float) -> float | None:
    """That the deviation of n waits may be off; None where it can't be told: tails are heavy, or cut at nothing."""
    if not delay.jitter_ms:
        return EXACT_MS
    if not delay.is_plain() or n < SOME:
        return None
    fourth = 3.0 if delay.distribution == "normal" else 1.8
    return delay.kept_ms()[1] * deviations * math.sqrt((fourth - 1) / n) / 2 + EXACT_MS
