"""What an eBPF program does with a packet that survived and must wait: stamp its departure, or send it on a detour."""

from __future__ import annotations

from dataclasses import dataclass

from harness.net.bpf.assembler import (
    KTIME_GET_NS,
    PRANDOM_U32,
    R0,
    R1,
    R2,
    R3,
    R6,
    R7,
    REDIRECT,
    SKB_SET_TSTAMP,
    Assembler,
)
from harness.placement import Rule

DELIVERY_TIME_MONOTONIC = 1


@dataclass(frozen=True, kw_only=True)
class Delays:
    """Nothing by default."""

    stamp: bool = False  # write the earliest departure time into the packet; an fq qdisc behind the hook obeys it
    detour: int = 0  # interface index of a device whose owner holds the packet back and returns it

    def emit(self, a: Assembler, rule: Rule) -> bool:
        """True if the packet's way ends here: code behind it would be unreachable."""
        if rule.profile.delay is None:
            return False
        if self.stamp:
            _emit_departure(a, rule)
        elif self.detour:
            a.mov(R1, self.detour)
            a.mov(R2, 0)
            a.call(REDIRECT)
            a.exit(None)
            return True
        return False


def _emit_departure(a: Assembler, rule: Rule) -> None:
    """now + delay, give or take the jitter, uniformly."""
    delay = rule.profile.delay
    assert delay is not None
    a.call(KTIME_GET_NS)
    a.mov(R7, R0)
    jitter_ns = round(delay.jitter_ms * 1e6)
    a.constant(R1, round(delay.mean_ms * 1e6) - jitter_ns)
    a.alu("add", R7, R1)
    if jitter_ns:
        a.call(PRANDOM_U32)
        a.constant(R1, 2 * jitter_ns)
        a.alu("mul", R0, R1)
        a.alu("rsh", R0, 32)
        a.alu("add", R7, R0)
    a.mov(R1, R6)
    a.mov(R2, R7)
    a.mov(R3, DELIVERY_TIME_MONOTONIC)
    a.call(SKB_SET_TSTAMP)
