"""What an eBPF program does with a packet that survived and must wait: stamp its departure, or send it on a detour."""

from __future__ import annotations

from dataclasses import dataclass

from lossbench.net.bpf.assembler import (
    FP,
    KTIME_GET_NS,
    PRANDOM_U32,
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    REDIRECT,
    SKB_SET_TSTAMP,
    SKB_STORE_BYTES,
    Assembler,
)
from lossbench.net.impair.ebpf.match import SCRATCH
from lossbench.spec.placement import Rule

DELIVERY_TIME_MONOTONIC = 1
# When a packet came, for who holds it back: monotonic time in units of 2^10 ns, where the first bytes of the sender's
# hardware address were. They are the same for all hosts, and put back by the reader.
STAMP_AT, STAMP_BYTES, STAMP_SHIFT = 6, 5, 10


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
            _emit_arrival(a)
            a.mov(R1, self.detour)
            a.mov(R2, 0)
            a.call(REDIRECT)
            a.exit(None)
            return True
        return False


def _emit_arrival(a: Assembler) -> None:
    a.call(KTIME_GET_NS)
    a.alu("rsh", R0, STAMP_SHIFT)
    a.store(8, FP, SCRATCH, R0)
    a.mov(R1, R6)
    a.mov(R2, STAMP_AT)
    a.mov(R3, FP)
    a.alu("add", R3, SCRATCH)
    a.mov(R4, STAMP_BYTES)
    a.mov(R5, 0)
    a.call(SKB_STORE_BYTES)


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
