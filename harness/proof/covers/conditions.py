"""The table: what can be asked, and by what each backend's is judged. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lossbench.spec.experiment import Experiment
from lossbench.spec.losses import BlockLoss, GilbertElliottLoss, State4Loss, TraceLoss
from lossbench.spec.profile import Profile

BACKENDS = ("ebpf", "edt", "netem", "cbpf", "relay")
REFUSED, NOT_JUDGED = "refused", "not judged"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """`cells`: by backend, judged by what in short words, REFUSED or NOT_JUDGED."""

    name: str
    asked: Callable[[Experiment], bool]
    cells: dict[str, str]


def profiles_of(experiment: Experiment) -> list[Profile]:
    return [entry.profile for entry in experiment.impair]


def _any(test: Callable[[Profile], object]) -> Callable[[Experiment], bool]:
    return lambda experiment: any(test(profile) for profile in profiles_of(experiment))


def rated(experiment: Experiment) -> bool:
    return bool(experiment.topology.uplink_mbit() or experiment.topology.downlink_mbit())


def in_time(experiment: Experiment) -> bool:
    return any(entry.from_s or entry.to_s is not None for entry in experiment.impair)


def in_steps(experiment: Experiment) -> bool:
    return any(entry.from_step or entry.to_step is not None for entry in experiment.impair)


def bursty(profile: Profile) -> bool:
    return isinstance(profile.loss, GilbertElliottLoss | State4Loss | TraceLoss | BlockLoss)


def _by(words: str, **others: str) -> dict[str, str]:
    """`words` for every backend that is not named."""
    return {backend: others.get(backend, words) for backend in BACKENDS}


PATTERN = "the pattern of its seed: probes to the packet, the run by count"
TAILS = "exact tails of counts, probes and run"
MOMENTS = "when it came and went everywhere: 5 % or 20 ms, late or early"

CONDITIONS = (
    Condition(
        name="loss",
        asked=lambda _: True,  # none is asked for too
        cells=_by(PATTERN, netem=f"{TAILS}; fields read back", cbpf=f"{TAILS}; instructions read back"),
    ),
    Condition(
        name="bursts",
        asked=_any(bursty),
        cells=_by(PATTERN, netem="exact tails of the probes' burst lengths; fields read back", cbpf=REFUSED),
    ),
    Condition(
        name="delay",
        asked=_any(lambda p: p.delay),
        cells=_by(
            REFUSED,
            edt="median of spaced probes; its queue read back",
            netem="median of spaced probes; fields read back",
            relay="median of spaced probes; the run by how long its wire kept packets and how late it was",
        ),
    ),
    Condition(
        name="jitter",
        asked=_any(lambda p: p.delay and p.delay.jitter_ms),
        cells=_by(
            REFUSED,
            edt="quartiles and tails of spaced probes",
            netem="quartiles and tails of spaced probes; fields read back",
            relay="quartiles and tails of spaced probes; the run by the deviation of what its wire kept",
        ),
    ),
    Condition(
        name="reordering",
        asked=_any(lambda p: p.reorder),
        cells=_by(
            REFUSED,
            netem="exact tails of probes that overtook; fields read back",
            relay="exact tails of what overtook, probes and run",
        ),
    ),
    Condition(name="duplicates", asked=_any(lambda p: p.duplicate_percent), cells=_by(TAILS, cbpf=REFUSED)),
    Condition(
        name="damage",
        asked=_any(lambda p: p.corrupt_percent),
        cells=_by(TAILS, netem="probes that are missing; fields read back", cbpf=REFUSED),
    ),
    Condition(
        name="rate and queue",
        asked=rated,
        cells=_by("classes and queues read back; bytes between any two looks; what queues lost is counted"),
    ),
    Condition(
        name="windows in time",
        asked=in_time,
        cells=_by(
            MOMENTS,
            ebpf="the kernel's clock at every packet, told in time; its limits read back",
            edt="the kernel's clock at every packet, told in time; its limits read back",
        ),
    ),
    Condition(
        name="windows in steps",
        asked=in_steps,
        cells=_by("steps that ranks had reported when it came and went: 5 % or one step, late or early"),
    ),
    Condition(
        name="matches",
        asked=_any(lambda p: not p.match.is_everything()),
        cells=_by(
            "probes of its kind, others that it must not take; its own counter in the run; fragments",
            cbpf="probes of its kind, others that it must not lose; an upper bound of the run's sum; fragments",
        ),
    ),
    Condition(
        name="directions",
        asked=lambda experiment: bool(experiment.impair),
        cells=_by(
            "probes through each hook; all that passes a port met its rules",
            cbpf="probes through each hook; instructions read back at each side",
        ),
    ),
    Condition(
        name="pairs",
        asked=lambda experiment: any(entry.pairs for entry in experiment.impair),
        cells=_by(
            "probes of each, others that it must not take; each was met in the run itself",
            cbpf="probes of each, others that it must not lose; an upper bound of their sum",
        ),
    ),
    Condition(
        name="MTU",
        asked=lambda _: True,
        cells=_by("MTU and offloads read back and listened to; larger packets counted at the hook"),
    ),
    Condition(
        name="presence",
        asked=lambda _: True,
        cells=_by(
            "counters of every rule; bytes on the control links; what hosts and links lost",
            cbpf="that its port lost some; bytes on the control links; what hosts and links lost",
        ),
    ),
    Condition(
        name="slots, marks, a profile's own rate",
        asked=_any(lambda p: p.slot or p.ecn or p.rate_mbit),
        cells=_by(REFUSED, netem=NOT_JUDGED),
    ),
)
