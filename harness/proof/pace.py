"""Did a link ever carry more than its rate? Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lossbench.proof.verdict import Finding, Status
from lossbench.proof.watched import Carried
from lossbench.spec.experiment import Experiment

TOLERANCE = 0.05
# What a link may carry beyond its rate between two readings: tokens and what lay in a ring, by its rate and in packets;
# fast links at most so much.
BURST_S, BURST_PACKETS, BURST_BYTES = 0.01, 16, 128 * 1024
SHORTEST_S = 0.1


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
