"""The memory an eBPF program shares with us: its layout, and how a rule is written into it.

Per hook one map with RULE_BYTES per slot (counters, thresholds, the loss chain's table), the first of them for packets
that no rule takes; and one map with a locked entry per slot: the generator's value and the chain's state. A rule keeps
its slot for as long as the maps live, whether it is in force or not: nothing of it is wound back by a change. Where a
rule has a window in time, a third map says of each slot from when to when: it is written without touching a counter."""

from __future__ import annotations

import struct
from functools import lru_cache

import numpy as np

from lossbench.spec.losses import BlockLoss, TraceLoss
from lossbench.spec.lossmodel import (
    MAX_OUTCOMES,
    MAX_STATES,
    ONE,
    Chain,
    Outcome,
    cumulative,
    first_state,
    mean_loss,
    threshold,
)
from lossbench.spec.placement import Rule

COUNTERS = ("seen", "seen_bytes", "dropped", "super_packets", "duplicated", "corrupted", "damageable", "spare")
AT = {name: 8 * i for i, name in enumerate(COUNTERS)}
DUPLICATE, CORRUPT, TABLE = 64, 72, 80
OUTCOME_BYTES = 24  # limit on the first random word, next state, loss threshold
STATE_BYTES = MAX_OUTCOMES * OUTCOME_BYTES
RULE_BYTES = TABLE + MAX_STATES * STATE_BYTES
WINDOW_BYTES = 16  # from and to, in ns of the kernel's monotonic clock
NEVER = 2**64 - 1
LOCK_WORDS = 2  # generator, packets decided
LOCK_BYTES = 8 + 8 * LOCK_WORDS


def chain_table(chain: Chain) -> bytes:
    """The chain as the kernel reads it. Unused outcomes repeat the last one; unused states are never entered."""
    out = b""
    for outcomes in chain.states:
        rows = [
            struct.pack("<QQQ", limit, o.next_state, threshold(o.loss))
            for limit, o in zip(cumulative(outcomes), outcomes, strict=True)
        ]
        out += b"".join(rows + [rows[-1]] * (MAX_OUTCOMES - len(rows)))
    return out.ljust(MAX_STATES * STATE_BYTES, b"\0")


def rule_memory(rule: Rule | None) -> bytes:
    """The initial memory of a rule: counters at zero, thresholds as asked. None: packets that no rule takes."""
    if rule is None:
        return bytes(RULE_BYTES)
    profile = rule.profile
    chain = profile.chain()
    if chain is not None:
        table = chain_table(chain)
    elif isinstance(profile.loss, BlockLoss):
        table = struct.pack("<QQQ", ONE, 0, threshold(profile.loss.percent / 100)).ljust(
            MAX_STATES * STATE_BYTES, b"\0"
        )
    else:
        table = bytes(MAX_STATES * STATE_BYTES)
    thresholds = struct.pack(
        "<QQ", threshold(profile.duplicate_percent / 100), threshold(profile.corrupt_percent / 100)
    )
    return bytes(DUPLICATE) + thresholds + table


def asked_part(memory: bytes) -> bytes:
    """The part of a rule's memory that says what is asked, without the counters."""
    return memory[DUPLICATE:RULE_BYTES]


def lock_memory(rule: Rule | None) -> bytes:
    if rule is None:
        return bytes(LOCK_BYTES)
    chain = rule.profile.chain()
    state = first_state(chain, seed=rule.seed) if chain is not None else 0
    return struct.pack("<IIQQ", 0, state, rule.seed, 0)


def window_memory(rule: Rule | None, began_ns: int | None) -> bytes:
    """When a rule takes packets; `began_ns`: when the run's clock began. None: probes meet what is in force at its
    second 0; NEVER: they are through, it has not begun yet, and no window is open."""
    if rule is None or rule.window is None:
        return struct.pack("<QQ", 0, NEVER)
    first, last = rule.window
    if began_ns is None:
        return struct.pack("<QQ", NEVER if first else 0, NEVER)
    if began_ns == NEVER:
        return struct.pack("<QQ", NEVER, NEVER)
    end_ns = NEVER if last is None else began_ns + round(last * 1e9)
    return struct.pack("<QQ", began_ns + round((first or 0) * 1e9), end_ns)


def trace_memory(loss: TraceLoss) -> bytes:
    """The pattern as bits, 64 to a word."""
    raw: bytes = np.packbits(np.asarray(loss.pattern(), dtype=np.bool_), bitorder="little").tobytes()
    return raw.ljust(-(-len(raw) // 8) * 8, b"\0")


def mean_loss_of(memory: bytes, rule: Rule, trace: bytes = b"") -> float | None:
    """The long-run loss rate that the kernel's own numbers amount to; None if somebody wrote there what is no chain.
    `memory`: of this rule; `trace`: its pattern, if it has one."""
    if isinstance(rule.profile.loss, TraceLoss):
        return int.from_bytes(trace, "little").bit_count() / len(rule.profile.loss.pattern())
    if isinstance(rule.profile.loss, BlockLoss):
        return float(struct.unpack_from("<QQQ", memory, TABLE)[2] / ONE)
    return _mean_loss_of_table(memory[TABLE:RULE_BYTES])


@lru_cache(maxsize=1024)
def _mean_loss_of_table(table: bytes) -> float | None:
    """A state that was written has outcomes: those behind it are never entered."""
    states, count = [], max(1, len(table.rstrip(b"\0") + bytes(STATE_BYTES - 1)) // STATE_BYTES)
    for state in range(count):
        before, outcomes = 0, []
        for outcome in range(MAX_OUTCOMES):
            at = state * STATE_BYTES + outcome * OUTCOME_BYTES
            limit, next_state, loss = struct.unpack_from("<QQQ", table, at)
            outcomes.append(Outcome(probability=(limit - before) / ONE, next_state=next_state, loss=loss / ONE))
            before = limit
        if before != ONE or any(o.probability < 0 or o.next_state >= count for o in outcomes):
            return None
        states.append(tuple(outcomes))
    return mean_loss(Chain(states=tuple(states)))
