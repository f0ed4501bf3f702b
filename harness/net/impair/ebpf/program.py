"""Generates the eBPF program of one hook: sort a packet to its rule, count it, decide its fate."""

from __future__ import annotations

from dataclasses import dataclass, field

from lossbench import contract
from lossbench.net.bpf.assembler import (
    CLONE_REDIRECT,
    FP,
    MAP_LOOKUP,
    PRANDOM_U32,
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    SKB_LOAD_BYTES,
    SKB_STORE_BYTES,
    SPIN_LOCK,
    SPIN_UNLOCK,
    Assembler,
)
from lossbench.net.impair.ebpf.delay import Delays
from lossbench.net.impair.ebpf.match import HEADER, SAVED, SCRATCH, emit_match, emit_parse
from lossbench.net.impair.ebpf.memory import AT, CORRUPT, DUPLICATE, OUTCOME_BYTES, RULE_BYTES, STATE_BYTES, TABLE
from lossbench.net.impair.ebpf.mix import emit_mix
from lossbench.net.impair.ebpf.onward import emit_onward, stride_of
from lossbench.net.impair.ebpf.window import emit_now, emit_window
from lossbench.spec.losses import BlockLoss, TraceLoss
from lossbench.spec.lossmodel import GAMMA, MAX_OUTCOMES, MAX_STATES
from lossbench.spec.placement import Rule

PASS, DROP = -1, 2  # TC_ACT_UNSPEC: go on with whatever comes next; TC_ACT_SHOT
DUPLICATE_MARK = 0x6C62  # a clone of ours comes round again with this skb mark
_SKB_LEN, SKB_MARK, _SKB_GSO_SEGS = 0, 8, 164


@dataclass(kw_only=True)
class ProgramBuilder:
    """Descriptors of the maps are known; `build` returns the code."""

    rules: tuple[Rule, ...]
    slots: dict[Rule, int]
    memory_fd: int
    lock_fd: int
    trace_fds: dict[int, int]  # by slot
    window_fd: int = 0
    port_index: int
    ingress: bool
    delays: Delays = field(default_factory=lambda: Delays())
    onward: tuple[int, ...] = ()  # ports of the switch by rank, see onward.py; without them the bridge finds the way
    asm: Assembler = field(default_factory=Assembler)
    _ways: int = 0  # that lead onward: the verifier refuses code that none leads to

    def build(self) -> bytes:
        a = self.asm
        a.mov(R6, R1)
        self._pass_own_clones()
        if any(rule.window is not None for rule in self.rules):
            emit_now(a)
        if not all(rule.matches_all() for rule in self.rules):
            emit_parse(a)
        taken = []
        for number, rule in enumerate(self.rules):
            emit_match(a, rule, otherwise=f"not{number}")
            if rule.window is not None:
                emit_window(a, self.window_fd, self.slots[rule], otherwise=f"not{number}")
            a.jump(f"rule{number}")
            a.label(f"not{number}")
            taken.append(number)
            if rule.takes_all():  # what follows is unreachable, and the verifier refuses dead code
                break
        else:
            self._count(0)
            self._pass()
        for number in taken:
            a.label(f"rule{number}")
            self._count(self.slots[self.rules[number]])
            self._decide(number)
        if self._ways:
            a.label("onward")
            emit_onward(a, self.onward, otherwise=PASS)
        return a.assemble()

    def _pass(self) -> None:
        """Never past a queue that holds packets back: it stands behind this program."""
        if self.delays.stamp or not stride_of(self.onward):
            return self.asm.exit(PASS)
        self._ways += 1
        return self.asm.jump("onward")

    def _pass_own_clones(self) -> None:
        """A duplicate or a delayed packet is fed back into the same hook: it was counted and must not meet its fate
        twice."""
        if not self.delays.detour and not any(rule.profile.duplicate_percent for rule in self.rules):
            return
        a = self.asm
        a.load(4, R0, R6, SKB_MARK)
        a.jump_if("ne", R0, DUPLICATE_MARK, "original")
        a.mov(R0, 0)
        a.store(4, R6, SKB_MARK, R0)
        a.exit(PASS)
        a.label("original")

    def _count(self, slot: int) -> None:
        """r9 = this slot's memory; one more packet seen, and a super-packet if it still holds several."""
        a = self.asm
        a.map_value(R9, self.memory_fd, slot * RULE_BYTES)
        a.mov(R1, 1)
        a.atomic_add(R9, AT["seen"], R1)
        a.load(4, R2, R6, _SKB_LEN)
        a.atomic_add(R9, AT["seen_bytes"], R2)
        a.load(4, R2, R6, _SKB_GSO_SEGS)
        a.jump_if("le", R2, 1, f"single{slot}")
        a.atomic_add(R9, AT["super_packets"], R1)
        a.label(f"single{slot}")

    def _decide(self, number: int) -> None:
        a, rule = self.asm, self.rules[number]
        drop, live = f"drop{number}", f"live{number}"
        if isinstance(rule.profile.loss, TraceLoss):
            self._trace(number, rule.profile.loss, drop=drop, live=live)
        elif isinstance(rule.profile.loss, BlockLoss):
            self._block(rule, drop=drop)
        else:
            self._chain(number, drop=drop, live=live)
        a.label(live)
        if rule.profile.corrupt_percent:
            self._corrupt(number)
        if rule.profile.duplicate_percent:
            self._duplicate(number)
        if not self.delays.emit(a, rule):
            self._pass()
        a.label(drop)
        a.mov(R1, 1)
        a.atomic_add(R9, AT["dropped"], R1)
        a.exit(DROP)

    def _locked(self, number: int, *, live: str) -> None:
        """r8 = the rule's generator and state, locked."""
        a = self.asm
        a.store_number(4, FP, SCRATCH, self.slots[self.rules[number]])
        a.map(R1, self.lock_fd)
        a.mov(R2, FP)
        a.alu("add", R2, SCRATCH)
        a.call(MAP_LOOKUP)
        a.jump_if("eq", R0, 0, live)  # never: but the verifier wants it asked
        a.mov(R8, R0)
        a.mov(R1, R8)
        a.call(SPIN_LOCK)

    def _chain(self, number: int, *, drop: str, live: str) -> None:
        """Draw one 64-bit word, walk the table of the state held on arrival, decide, remember the next state."""
        a = self.asm
        self._locked(number, live=live)
        a.load(8, R7, R8, 8)
        a.constant(R1, GAMMA)
        a.alu("add", R7, R1)
        a.store(8, R8, 8, R7)
        a.load(8, R1, R8, 16)
        a.alu("add", R1, 1)
        a.store(8, R8, 16, R1)
        emit_mix(a, R7, R1)
        a.mov(R1, R7)
        a.alu("rsh", R1, 32)  # r1: picks the outcome; r7: decides the loss
        a.alu("mov", R7, R7, bits=32)
        a.load(4, R2, R8, 4)
        a.alu("and", R2, MAX_STATES - 1)
        a.alu("mul", R2, STATE_BYTES)
        a.mov(R3, R9)
        a.alu("add", R3, R2)
        for outcome in range(MAX_OUTCOMES - 1):
            a.load(8, R4, R3, TABLE + outcome * OUTCOME_BYTES)
            a.jump_if("lt", R1, R4, f"take{number}_{outcome}")
        for outcome in reversed(range(MAX_OUTCOMES)):
            if outcome < MAX_OUTCOMES - 1:
                a.label(f"take{number}_{outcome}")
            a.load(8, R4, R3, TABLE + outcome * OUTCOME_BYTES + 8)
            a.load(8, R5, R3, TABLE + outcome * OUTCOME_BYTES + 16)
            if outcome:
                a.jump(f"taken{number}")
        a.label(f"taken{number}")
        a.store(4, R8, 4, R4)
        a.store(8, FP, SAVED, R5)
        a.mov(R1, R8)
        a.call(SPIN_UNLOCK)
        a.load(8, R5, FP, SAVED)
        a.jump_if("lt", R7, R5, drop)

    def _trace(self, number: int, loss: TraceLoss, *, drop: str, live: str) -> None:
        a, length = self.asm, len(loss.pattern())
        self._locked(number, live=live)
        a.load(8, R7, R8, 16)
        a.mov(R1, R7)
        a.alu("add", R1, 1)
        a.store(8, R8, 16, R1)
        a.mov(R1, R8)
        a.call(SPIN_UNLOCK)
        if loss.loop:
            a.alu("mod", R7, length)
        a.jump_if("ge", R7, length, live)
        a.mov(R1, R7)
        a.alu("rsh", R1, 6)
        a.alu("lsh", R1, 3)
        a.map_value(R2, self.trace_fds[self.slots[self.rules[number]]])
        a.alu("add", R2, R1)
        a.load(8, R3, R2)
        a.alu("and", R7, 63)
        a.alu("rsh", R3, R7)
        a.alu("and", R3, 1)
        a.jump_if("ne", R3, 0, drop)

    def _block(self, rule: Rule, *, drop: str) -> None:
        """hash(seed, step, half, source, destination, block), as lossmodel.block_lost computes it."""
        a = self.asm
        a.constant(R7, rule.block_seed)
        a.load(4, R1, FP, HEADER + contract.HEADER_FIELDS["step"][0])
        a.alu("lsh", R1, 32)
        a.load(4, R2, FP, HEADER + contract.HEADER_FIELDS["block"][0])
        a.alu("or", R1, R2)
        a.alu("xor", R7, R1)
        emit_mix(a, R7, R1)
        a.load(1, R1, FP, HEADER + contract.HEADER_FIELDS["half"][0])
        a.alu("lsh", R1, 32)
        a.load(2, R2, FP, HEADER + contract.HEADER_FIELDS["source"][0])
        a.alu("lsh", R2, 16)
        a.alu("or", R1, R2)
        a.load(2, R2, FP, HEADER + contract.HEADER_FIELDS["destination"][0])
        a.alu("or", R1, R2)
        a.alu("add", R7, R1)
        emit_mix(a, R7, R1)
        a.alu("rsh", R7, 32)
        a.load(8, R1, R9, TABLE + 16)
        a.jump_if("lt", R7, R1, drop)

    def _corrupt(self, number: int) -> None:
        """Flip one bit behind the headers; with the sender's checksum in the packet the receiver throws it away."""
        a, done = self.asm, f"clean{number}"
        a.load(4, R2, R6, _SKB_LEN)
        a.jump_if("le", R2, 64, done)
        a.mov(R1, 1)
        a.atomic_add(R9, AT["damageable"], R1)
        a.call(PRANDOM_U32)
        a.load(8, R1, R9, CORRUPT)
        a.jump_if("ge", R0, R1, done)
        a.call(PRANDOM_U32)
        a.load(4, R2, R6, _SKB_LEN)
        a.jump_if("le", R2, 64, done)
        a.alu("sub", R2, 64)
        a.mov(R7, R0)
        a.alu("mod", R7, R2)
        a.alu("add", R7, 64)
        self._byte_at_r7(SKB_LOAD_BYTES, done=done)
        a.load(1, R1, FP, SCRATCH)
        a.alu("xor", R1, 0x10)
        a.store(1, FP, SCRATCH, R1)
        self._byte_at_r7(SKB_STORE_BYTES, done=done)
        a.mov(R1, 1)
        a.atomic_add(R9, AT["corrupted"], R1)
        a.label(done)

    def _byte_at_r7(self, helper: int, *, done: str) -> None:
        a = self.asm
        a.mov(R1, R6)
        a.mov(R2, R7)
        a.mov(R3, FP)
        a.alu("add", R3, SCRATCH)
        a.mov(R4, 1)
        a.mov(R5, 0)
        a.call(helper)
        a.jump_if("ne", R0, 0, done)

    def _duplicate(self, number: int) -> None:
        a, done = self.asm, f"once{number}"
        a.call(PRANDOM_U32)
        a.load(8, R1, R9, DUPLICATE)
        a.jump_if("ge", R0, R1, done)
        a.mov(R1, DUPLICATE_MARK)
        a.store(4, R6, SKB_MARK, R1)
        a.mov(R1, R6)
        a.mov(R2, self.port_index)
        a.mov(R3, 1 if self.ingress else 0)
        a.call(CLONE_REDIRECT)
        a.mov(R1, 0)
        a.store(4, R6, SKB_MARK, R1)
        a.jump_if("ne", R0, 0, done)
        a.mov(R1, 1)
        a.atomic_add(R9, AT["duplicated"], R1)
        a.label(done)
