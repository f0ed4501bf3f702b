"""What a user may decide about lossy collectives, and how: LOSSBENCH_POLICY="deadline_max_ms=500,normaliser=world"."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from lossbench.workloads.errors import PolicyError

NORMALISERS = ("count", "world", "expected")
MISSING = ("own", "zero")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Defaults suit a data centre. Times of a half run from its first packet, not from one's own entry."""

    deadline_min_ms: float = 250.0  # the adaptive deadline never falls below
    deadline_max_ms: float = 2000.0  # nor rises above; also used until enough halves were seen
    deadline_factor: float = 5.0  # times the 90th percentile of past halves of the same size
    reorder_ms: float = 0.3  # wait for packets that an end marker overtook; grows with what is seen, up to
    reorder_max_ms: float = 20.0
    close_fraction: float = 1.0  # end a half as soon as this share arrived
    normaliser: str = "count"  # count: mean of what arrived; world: divided by N; expected: unbiased
    missing: str = "own"  # a lost second half keeps the own buffer, or zero
    timeout_s: float = 60.0  # nothing at all heard, or a reliable transfer stuck: give up with an error
    absent_after: int = 3  # halves in a row without a sign of a peer: no longer waited for until heard again
    window_kb: int = 0  # packets under way to one peer; 0: from the size of the receive buffer
    pace_mbit: float = 0.0  # send no faster; 0: as fast as the network takes it
    dscp: int = 0
    send_thread: str = "auto"  # auto: if there are two cores for each rank; on, off
    reliable_below_bytes: int = 0  # smaller reductions go reliable
    fsdp_gather: str = "reliable"  # parameters FSDP gathers: reliable, or stale (lossy, keeps a copy)

    def __post_init__(self) -> None:
        for name, allowed in (
            ("normaliser", NORMALISERS),
            ("missing", MISSING),
            ("send_thread", ("auto", "on", "off")),
            ("fsdp_gather", ("stale", "reliable")),
        ):
            if getattr(self, name) not in allowed:
                raise PolicyError(f"{name} is '{getattr(self, name)}': one of {', '.join(allowed)}")
        if not 0 < self.deadline_min_ms <= self.deadline_max_ms:
            raise PolicyError("deadlines: 0 < deadline_min_ms <= deadline_max_ms")
        if not 0 < self.close_fraction <= 1:
            raise PolicyError("close_fraction lies above 0 and up to 1")
        if not 0 <= self.dscp < 64:
            raise PolicyError("dscp lies between 0 and 63")
        if self.timeout_s <= 0 or self.absent_after < 1:
            raise PolicyError("timeout_s and absent_after are positive")

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
        return cls().with_settings(env.get("LOSSBENCH_POLICY", ""))


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What an end of a group knows of it."""

    rank: int
    peers: dict[int, tuple[str, int]]
    token: int
    policy: Policy
    datagram_bytes: int
    window_bytes: int


class Deadlines:
    """How long halves of one size take; one history per power of two of their bytes."""

    MEMORY, ENOUGH = 64, 8

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._past: dict[int, deque[float]] = {}

    def now_s(self, size: int) -> float:
        past = self._past.get(size.bit_length(), ())
        policy = self._policy
        if len(past) < self.ENOUGH:
            return policy.deadline_max_ms / 1000
        typical = float(np.quantile(np.array(past), 0.9))
        wanted = 1000 * typical * policy.deadline_factor
        return min(max(wanted, policy.deadline_min_ms), policy.deadline_max_ms) / 1000

    def took(self, size: int, seconds: float) -> None:
        self._past.setdefault(size.bit_length(), deque(maxlen=self.MEMORY)).append(seconds)
