"""What of a condition no verdict speaks of, although it is judged: where it is asked so, the verdict says so. Pure."""

from __future__ import annotations

from lossbench.proof.covers.conditions import bursty, in_steps, in_time, rated
from lossbench.proof.covers.limit import Asked, Limit
from lossbench.spec.losses import BlockLoss, GilbertElliottLoss, IidLoss, State4Loss
from lossbench.spec.profile import Profile

OVERTAKING_FROM_MS = 4.0  # below this a packet that goes at once can't be told from one that waits
HOSTS_SHOWN = 6


def _delayed_twice(asked: Asked) -> bool:
    """May a packet meet two delays on its way?"""
    sides = {side for entry in asked.entries if entry.profile.delay for side in entry.directions()}
    return len(sides) > 1


def _general(profile: Profile) -> bool:
    loss = profile.loss
    return isinstance(loss, State4Loss) or (
        isinstance(loss, GilbertElliottLoss) and (loss.h_percent, loss.k_percent) != (0.0, 100.0)
    )


def _told_together(asked: Asked) -> bool:
    """May a port hold several rules, or one that does not take every packet?"""
    return len(asked.entries) > 1 or any(e.pairs or not e.profile.match.is_everything() for e in asked.entries)


def _bare(asked: Asked) -> tuple[str, ...]:
    return asked.after.bare if asked.after is not None else ()


def _silent(asked: Asked) -> bool:
    return bool(asked.entries) and all(one.is_silent() for one in (asked.experiment.workload, *asked.experiment.beside))


def _by_command(asked: Asked) -> bool:
    """Programs that are not ours, on hosts that share a machine."""
    programs = (asked.experiment.workload, *asked.experiment.beside)
    return not asked.experiment.topology.machines and any(one.command for one in programs)


LIMITS = (
    Limit(
        text="a backend of one's own: no table of ours says what shows its mistakes",
        of="loss",
        backends=(),
        when=lambda _: True,
    ),
    Limit(
        text="the rate of correlated loss: netem's correlation changes it",
        of="loss",
        backends=("netem",),
        when=lambda a: any(isinstance(p.loss, IidLoss) and p.loss.correlation_percent for p in a.profiles),
    ),
    Limit(
        text="which blocks were lost during the run: counted, not predicted",
        of="bursts",
        backends=("ebpf", "edt", "relay"),
        when=lambda a: any(isinstance(p.loss, BlockLoss) for p in a.profiles),
    ),
    Limit(
        text="burst lengths of general chains (state4, Gilbert-Elliott with h or k): only their counts are",
        of="bursts",
        backends=("netem",),
        when=lambda a: any(_general(p) for p in a.profiles),
    ),
    Limit(
        text="burst lengths during the run: fields read back, their count tested, measured before the run only",
        of="bursts",
        backends=("netem",),
        when=lambda a: any(bursty(p) for p in a.profiles),
    ),
    Limit(
        text="delays during the run: kept by the kernel, read back, measured before the run only",
        of="delay",
        backends=("netem", "edt"),
        when=lambda a: any(p.delay for p in a.profiles),
    ),
    Limit(
        text=f"delays below {OVERTAKING_FROM_MS:g} ms: one that was late by up to 2 ms is taken for them",
        of="delay",
        backends=("netem", "edt", "relay"),
        when=lambda a: any(p.delay and 0 < p.delay.mean_ms < OVERTAKING_FROM_MS for p in a.profiles),
    ),
    Limit(
        text="correlation of delays: netem takes it and correlates nothing",
        of="delay",
        backends=("netem",),
        when=lambda a: any(p.delay and p.delay.correlation_percent for p in a.profiles),
    ),
    Limit(
        text="spread of delays during the run with heavy tails or cut off at none: their mean is",
        of="jitter",
        backends=("relay",),
        when=lambda a: any(p.delay and not p.delay.is_plain() for p in a.profiles),
    ),
    Limit(
        text="spread of paretonormal delays by more than their quartiles, to 5 % and 2 ms",
        of="jitter",
        backends=("netem", "relay"),
        when=lambda a: any(
            p.delay and p.delay.jitter_ms and p.delay.distribution == "paretonormal" for p in a.profiles
        ),
    ),
    Limit(
        text="spread of delays where packets meet two of them: only their sum's median is",
        of="jitter",
        backends=("edt", "netem", "relay"),
        when=lambda a: _delayed_twice(a) and any(p.delay and p.delay.jitter_ms for p in a.profiles),
    ),
    Limit(
        text=f"overtaking among delays below {OVERTAKING_FROM_MS:g} ms or where packets meet two of them",
        of="reordering",
        backends=("netem",),
        when=lambda a: any(
            p.reorder and p.delay and (_delayed_twice(a) or p.delay.mean_ms < OVERTAKING_FROM_MS) for p in a.profiles
        ),
    ),
    Limit(
        text="duplicates of delayed packets: they do not wait",
        of="duplicates",
        backends=("relay", "edt"),
        when=lambda a: any(p.duplicate_percent and p.delay for p in a.profiles),
    ),
    Limit(
        text="duplicates beside loss on netem",
        of="duplicates",
        backends=("netem",),
        when=lambda a: any(p.duplicate_percent and p.loss for p in a.profiles),
    ),
    Limit(
        text="the rate of damage: netem does not count it",
        of="damage",
        backends=("netem",),
        when=lambda a: any(p.corrupt_percent for p in a.profiles),
    ),
    Limit(
        text="whether links reach their rate: only that none exceeds it",
        of="rate and queue",
        when=lambda a: rated(a.experiment),
    ),
    Limit(
        text="how much a port lost whose rules changed under traffic: cbpf counts the old and the new together",
        of="loss",
        backends=("cbpf",),
        when=lambda a: in_time(a.experiment) or in_steps(a.experiment),
    ),
    Limit(
        text="probes of what begins later: there were none, it stands by the run's own packets alone",
        of="loss",
        when=lambda a: any(not entry.active(elapsed_s=0.0, step=0) for entry in a.entries),
    ),
    Limit(
        text="ranks behind the first: a window in steps goes by the rank that is furthest ahead",
        of="windows in steps",
        when=lambda a: in_steps(a.experiment),
    ),
    Limit(
        text="steps that machines had begun and not yet told when a rule came or went",
        of="windows in steps",
        machines=True,
        when=lambda a: in_steps(a.experiment),
    ),
    Limit(
        text="single rules: cbpf counts per port, their sum is judged",
        of="loss",
        backends=("cbpf",),
        when=_told_together,
    ),
    Limit(
        text="that each rule was met, and by how many packets: cbpf counts per port, one loss stands for all",
        of="presence",
        backends=("cbpf",),
        when=_told_together,
    ),
    Limit(
        text="what it takes too much of during the run: read back, probed before it and, to a percent, after it",
        of="matches",
        when=lambda a: any(not p.match.is_everything() for p in a.profiles),
    ),
    Limit(
        text="packets of others that it takes during the run: read back, probed before it and, to a percent, after it",
        of="pairs",
        backends=("netem", "cbpf"),
        when=lambda a: any(e.pairs for e in a.entries),
    ),
    Limit(
        text="what is for all hosts (broadcast, multicast): at an uplink no entry for one of them is about it",
        of="pairs",
        when=lambda a: (
            a.after is not None
            and a.after.for_all > 0
            and any(e.pairs and "uplink" in e.directions() for e in a.entries)
        ),
    ),
    Limit(
        text="the other IP version at a hook: probes try one at each, hosts in turn",
        of="matches",
        when=lambda a: (
            a.experiment.topology.family == "both"
            and any(not (p.match.is_everything() or p.match.sources or p.match.destinations) for p in a.profiles)
        ),
    ),
    Limit(
        text="IPv6 packets with options or a routing header: they hide from protocol and ports",
        of="matches",
        backends=("netem", "cbpf"),
        when=lambda a: (
            a.experiment.topology.family != "ipv4"
            and any(p.match.protocol or p.match.asks_for_ports() for p in a.profiles)
        ),
    ),
    Limit(
        text="packets past the rules of one side of a port: cbpf counts both sides together",
        of="directions",
        backends=("cbpf",),
        when=lambda a: any("downlink" in entry.directions() for entry in a.entries),
    ),
    Limit(
        text="what programs count of their own packets: some were for all hosts",
        of="presence",
        when=lambda a: a.after is not None and a.after.for_all > 0 and len(a.after.links) > 2,
    ),
    Limit(
        text="which packets were the workload's own: programs beside it send on the same links",
        of="presence",
        when=lambda a: a.experiment.beside,
    ),
    Limit(
        text="whether any packet met what was asked: its programs send none by design (silent)",
        of="presence",
        when=_silent,
    ),
    Limit(
        text="what programs count of their own packets: several ranks speak for a host (torchrun)",
        of="presence",
        when=lambda a: a.experiment.workload.torchrun > 1 and not a.experiment.beside,
    ),
    Limit(
        text="what programs of its hosts tell each other through this machine's memory (/dev/shm, process_vm_readv)",
        of="presence",
        when=_by_command,
    ),
    Limit(
        text="what sockets for whole packets (raw, AF_PACKET) lose",
        of="presence",
        when=_bare,
        more=lambda a: f": open in {', '.join(_bare(a)[:HOSTS_SHOWN])}",
    ),
    Limit(
        text="what ranks and their store send each other: this kernel can't copy it aside, a megabyte is for all",
        of="presence",
        when=lambda a: a.after is not None and not a.after.store_told,
    ),
    Limit(
        text="what went over the control network: a lab's is not counted",
        of="presence",
        machines=True,
        when=lambda _: True,
    ),
    Limit(
        text="what machines' own stacks throw away, but for full sockets of UDP: they count all their networks as one",
        of="presence",
        machines=True,
        when=lambda _: True,
    ),
    Limit(
        text="machines' own firewalls, IPsec, routes and tcx programs: daemons of theirs change them",
        of="presence",
        machines=True,
        when=lambda _: True,
    ),
    Limit(
        text="slots, ECN marks and a profile's own rate: read back only",
        of="slots, marks, a profile's own rate",
        backends=("netem",),
        when=lambda a: any(p.slot or p.ecn or p.rate_mbit for p in a.profiles),
    ),
)
