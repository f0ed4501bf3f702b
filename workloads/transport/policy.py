"""What a user may decide about lossy collectives, and how: LOSSBENCH_POLICY="normaliser=world,timeout_s=20"."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from lossbench.workloads.errors import PolicyError

NORMALISERS = ("count", "world", "expected")
MISSING = ("own", "zero")
CHOICES = {
    "normaliser": NORMALISERS,
    "missing": MISSING,
    "send_thread": ("auto", "on", "off"),
    "fsdp_gather": ("stale", "reliable"),
    "tag": ("header", "packet"),
    "absent": ("stop", "continue"),
    "repair_order": ("spread", "first"),
    "sum_order": ("fixed", "arrival"),
}
LONGEST_S = 1e9  # as far as the engine's clock counts
RANGES = {  # both ends are allowed
    "timeout_s": (0.001, LONGEST_S),
    "deadline_ms": (0, LONGEST_S),
    "reorder_ms": (0, 60_000),
    "reorder_max_ms": (0, 60_000),
    "reliable_below_bytes": (0, 1 << 62),
    "window_kb": (0, 1 << 30),
    "pipeline": (1, 16),
    "dscp": (0, 63),
    "traffic": (0, 255),
}
WHOLE = ("reliable_below_bytes", "window_kb", "pipeline", "dscp", "traffic")
PACES_MBIT = (0.001, 1e7)
OWN = ("pace", "window_kb", "send_thread", "dscp", "traffic")  # a rank's own affair: it changes no result


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Defaults suit a data centre."""

    timeout_s: float = 60.0  # a peer that a call needs gives no sign of life for so long: the call ends with an error
    absent: str = "stop"  # or continue: those who are left agree on who they are, and go on (rps, bounded_drift)
    deadline_ms: float = (
        0.0  # end a lossy half after so long without progress; 0: as long as peers live, they are waited for
    )
    close_fraction: float = 1.0  # end a half as soon as this share arrived
    repair: float = 0.0  # send what was lost again until this share of each peer's packets has arrived; 0: never
    repair_order: str = "spread"  # which of them: others at every half, or the first packets first
    reorder_ms: float = 0.3  # wait for packets that the end of a flow overtook; grows with what is seen, up to
    reorder_max_ms: float = 20.0
    normaliser: str = "count"  # count: mean of what arrived; world: divided by N; expected: unbiased
    missing: str = "own"  # a lost second half keeps the own buffer, or zero
    reliable_below_bytes: int = 0  # smaller reductions go reliable
    sum_order: str = "fixed"  # of reliable sums of floats: the same bits at every call; arrival: as packets come
    fsdp_gather: str = "reliable"  # parameters FSDP gathers: reliable, or stale (lossy, keeps a copy)
    pace: str = "adaptive"  # by what arrives; off: as fast as the network takes it; or Mbit/s
    window_kb: int = 0  # packets under way to one peer, at most; 0: what the receive buffer holds
    pipeline: int = 2  # halves that may be under way at once: the second of one call beside the first of the next
    tag: str = "header"  # what the keyed tag covers: header (stops whoever can't read the link), packet (whoever can)
    dscp: int = 0
    traffic: int = 0  # a number of the user's in every header, for rules and captures
    send_thread: str = "auto"  # auto: if there are two cores for each rank; on, off

    def shared(self) -> dict[str, object]:
        """What all ranks of a group must have in common."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in OWN}

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise PolicyError(f"{name} is '{getattr(self, name)}': one of {', '.join(allowed)}")
        if not 0 < self.close_fraction <= 1:
            raise PolicyError("close_fraction lies above 0 and up to 1")
        if not 0 <= self.repair < 1:
            raise PolicyError("repair lies between 0 and 1: for all of it there are reliable transports")
        if self.repair and self.close_fraction < 1:
            raise PolicyError("repair and close_fraction: a half ends early, or it is repaired")
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:  # nor is what is not a number
                raise PolicyError(f"{name} is {value:g}: it lies between {least:g} and {most:g}")
            if name in WHOLE and value != int(value):
                raise PolicyError(f"{name} is {value:g}: a whole number")
        least, most = PACES_MBIT
        if self.pace not in ("adaptive", "off") and not least <= self.pace_bytes_s * 8 / 1e6 <= most:
            raise PolicyError(f"pace is '{self.pace}': adaptive, off, or Mbit/s between {least:g} and {most:g}")

    @property
    def pace_bytes_s(self) -> float:
        """Of a fixed pace; 0: there is none."""
        try:
            return float(self.pace) * 1e6 / 8
        except ValueError:
            return 0.0

    def with_settings(self, text: str) -> Policy:
        """NAME=VALUE pairs, separated by commas."""
        types: dict[str, Callable[[str], object]] = {f.name: type(getattr(self, f.name)) for f in fields(self)}
        changes: dict[str, object] = {}
        for pair in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = pair.partition("=")
            if name not in types:
                raise PolicyError(f"no setting '{name}': known are {', '.join(types)}")
            try:
                changes[name] = types[name](value)
            except ValueError:
                raise PolicyError(f"{name}={value}: not a number") from None
        return replace(self, **changes)  # type: ignore[arg-type]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Policy:
        env = os.environ if environment is None else environment
        return cls(dscp=int(env.get("LOSSBENCH_DSCP", "0"))).with_settings(env.get("LOSSBENCH_POLICY", ""))


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What an end of a group knows of it."""

    rank: int
    peers: dict[int, tuple[str, int]]
    key: bytes  # 16, of this group alone
    policy: Policy
    datagram_bytes: int
    window_bytes: int
    send_thread: bool = False
    numbers: int = 0  # ranks are numbered below this; 0: all of them are here

    @property
    def world(self) -> int:
        """Numbers of ranks: some may be absent."""
        return self.numbers or len(self.peers) + 1
