"""Backend ebpf: a program at the hook of the switch's port. Seeded, counted packet by packet, changed in place."""

from __future__ import annotations

import os
import struct
import time
from typing import Any

from pyroute2 import IPRoute

from lossbench.net.bpf import syscalls
from lossbench.net.bpf.syscalls import ArrayMap
from lossbench.net.counters import UNMATCHED, Counters, Detour, Position, ReadBack, RuleCounters, added
from lossbench.net.host.place import Place
from lossbench.net.impair.backend import Kind
from lossbench.net.impair.ebpf import memory
from lossbench.net.impair.ebpf.delay import Delays
from lossbench.net.impair.ebpf.program import ProgramBuilder
from lossbench.net.kernel import Kernel, clock_offset_ns
from lossbench.net.tc.hook import HookPoint, ensure_clsact, filters_at, put_filter
from lossbench.net.tc.look import Look
from lossbench.net.tc.rtnl_messages import Filter
from lossbench.spec.losses import BlockLoss, TraceLoss
from lossbench.spec.placement import Hook, Rule
from lossbench.spec.profile import Profile

NAME = "lossbench"
# A program refers to at most 64 maps. The verifier adds instructions, and jumps must still fit 16 bits: 28,000 were
# taken, 31,000 were not.
MAX_TRACES, MAX_INSTRUCTIONS, INSTRUCTION_BYTES = 60, 26_000, 8
SWAP_S = 0.001  # a packet that met the old program is through with it by then


def refusal(profile: Profile) -> str | None:
    """What this backend can't do of a profile, in words; None if it can do all."""
    for present, what in (
        (profile.delay is not None, "delay"),
        (profile.rate_mbit is not None, "a profile's own rate (a topology's rate_mbit works)"),
        (profile.slot is not None, "slot"),
        (profile.ecn, "ecn"),
        (getattr(profile.loss, "correlation_percent", 0.0) > 0, "correlated loss (gilbert_elliott works)"),
    ):
        if present:
            return what
    return None


def too_many(rules: tuple[Rule, ...]) -> str | None:
    """What of these rules of one hook the kernel would refuse; None if it takes them."""
    traces = sum(isinstance(rule.profile.loss, TraceLoss) for rule in rules)
    if traces > MAX_TRACES:
        return f"{traces} traces at one hook ({MAX_TRACES} is the most)"
    slots = {rule: slot for slot, rule in enumerate(rules, start=1)}
    builder = ProgramBuilder(
        rules=rules,
        slots=slots,
        memory_fd=0,
        lock_fd=0,
        trace_fds=dict.fromkeys(slots.values(), 0),
        port_index=0,
        ingress=True,
        delays=Delays(),
        onward=(1, 2),
    )
    try:
        count = len(builder.build()) // INSTRUCTION_BYTES
    except struct.error:  # a jump beyond 16 bits
        return f"as many BPF instructions at one hook ({MAX_INSTRUCTIONS} is the most)"
    return (
        f"{count} BPF instructions at one hook ({MAX_INSTRUCTIONS} is the most)" if count > MAX_INSTRUCTIONS else None
    )


class _Placed:
    """One hook's maps: a slot for every rule that is or will be in force, the first for packets that no rule takes."""

    def __init__(self, *, slots: dict[Rule, int], maps: dict[str, ArrayMap]) -> None:
        self.slots = slots
        self._order = [None, *sorted(slots, key=slots.__getitem__)]  # made once: a run's beginning has no time for it
        self.maps = maps
        self._by_slot = {slot: rule for rule, slot in slots.items()}
        losses = {slot: rule.profile.loss for slot, rule in self._by_slot.items()}
        self.traces = {slot: memory.trace_memory(one) for slot, one in losses.items() if isinstance(one, TraceLoss)}
        self._asked: dict[int, bytes] = {}  # the part of a slot's memory that says what is asked; as it is wanted
        self.rules: tuple[Rule, ...] = ()  # in force
        self.ever: dict[str, int] = {}  # label -> slot, of those that were in force
        self.program = 0
        self.began_ns: int | None = None

    def close(self) -> None:
        for one in self.maps.values():
            one.close()

    def fill(self) -> None:
        """Everything at its beginning."""
        order = self._order
        self.maps["memory"].write(b"".join(memory.rule_memory(rule) for rule in order))
        for slot, rule in enumerate(order):
            self.maps["lock"].write(memory.lock_memory(rule), entry=slot)
        self.open_windows()

    def open_windows(self) -> None:
        """As they are to be since the run's clock began, or before it does."""
        if "window" in self.maps:
            self.maps["window"].write(b"".join(memory.window_memory(rule, self.began_ns) for rule in self._order))

    def trace_at(self, slot: int) -> bytes:
        """The pattern that the kernel has; nothing for rules without one."""
        return self.maps[f"trace{slot}"].read() if slot in self.traces else b""

    def is_as_asked(self, slot: int, own: bytes, windows: bytes, trace: bytes) -> bool:
        """What the kernel has of a rule: `own`, its memory; `windows`, of all of them; `trace`, its pattern."""
        rule, at = self._by_slot[slot], slot * memory.WINDOW_BYTES
        if slot not in self._asked:
            self._asked[slot] = memory.asked_part(memory.rule_memory(rule))
        window = memory.window_memory(rule, self.began_ns) if rule.window is not None else b""
        same = windows[at : at + len(window)] == window and trace == self.traces.get(slot, b"")
        return same and memory.asked_part(own) == self._asked[slot]

    def in_use(self) -> dict[str, ArrayMap]:
        """What the program refers to: the rest ends with this process."""
        names = {"memory"} | {f"trace{self.slots[rule]}" for rule in self.rules}
        names |= {"window"} if any(rule.window is not None for rule in self.rules) else set()
        names |= {"lock"} if any(not isinstance(rule.profile.loss, BlockLoss) for rule in self.rules) else set()
        return {name: one for name, one in self.maps.items() if name in names}

    def counters(self) -> Counters:
        value = self.maps["memory"].read()
        return {label: self._counted(value, slot) for label, slot in {**self.ever, UNMATCHED: 0}.items()}

    def _counted(self, value: bytes, slot: int) -> RuleCounters:
        words = struct.unpack_from(f"<{len(memory.COUNTERS)}Q", value, slot * memory.RULE_BYTES)
        numbers = {name: n for name, n in zip(memory.COUNTERS, words, strict=True) if not name.startswith("spare")}
        position = None
        if slot and "lock" in self.maps:
            _, state, generator, packets = struct.unpack("<IIQQ", self.maps["lock"].read(entry=slot))
            position = Position(generator=generator, state=state, packets=packets)
        return RuleCounters(**numbers, position=position)


class EbpfBackend:
    """See backend.Backend."""

    name = "ebpf"

    def __init__(
        self, switch: IPRoute, *, place: Place, state: dict[str, Any] | None = None, rules: Any = None
    ) -> None:
        self._switch = switch
        self._place = place
        self._expected: dict[Hook, tuple[Rule, ...]] = {}
        self._placed: dict[Hook, _Placed] = {}
        self._past: dict[Hook, Counters] = {}  # of maps that were replaced
        self._btf: tuple[int, int, int] | None = None
        self._began_ns: int | None = None
        for hook, ids in (state or {}).items():
            self._placed[Hook.named(hook)] = _reopen(rules[Hook.named(hook)], ids)

    def expect(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        self._expected[point.hook] = rules

    def put(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        before = self._placed.get(point.hook)
        placed = before
        if placed is None or not placed.slots.keys() >= set(rules):
            placed = self._make(tuple(dict.fromkeys((*rules, *self._expected.get(point.hook, ())))))
        placed.program = self._attach(point, rules, placed)
        placed.rules = rules
        placed.ever |= {rule.label: placed.slots[rule] for rule in rules}
        self._placed[point.hook] = placed
        if before is not None and before is not placed:
            time.sleep(SWAP_S)
            self._past[point.hook] = added(self._past.get(point.hook, {}), before.counters())
            before.close()

    def _make(self, rules: tuple[Rule, ...]) -> _Placed:
        if self._btf is None:
            self._btf = syscalls.load_lock_btf(memory.LOCK_WORDS)
        size = len(rules) + 1
        maps = {
            "memory": ArrayMap.create(value_bytes=memory.RULE_BYTES * size, name="lb_memory"),
            "lock": ArrayMap.create(value_bytes=memory.LOCK_BYTES, name="lb_lock", btf=self._btf, entries=size),
        }
        placed = _Placed(slots={rule: slot for slot, rule in enumerate(rules, start=1)}, maps=maps)
        for slot, raw in placed.traces.items():
            maps[f"trace{slot}"] = ArrayMap.create(value_bytes=len(raw), name="lb_trace")
            maps[f"trace{slot}"].write(raw)
        if any(rule.window is not None for rule in rules):
            maps["window"] = ArrayMap.create(value_bytes=memory.WINDOW_BYTES * size, name="lb_window")
        placed.began_ns = self._began_ns
        placed.fill()
        return placed

    def _attach(self, point: HookPoint, rules: tuple[Rule, ...], placed: _Placed) -> int:
        builder = ProgramBuilder(
            rules=rules,
            slots=placed.slots,
            memory_fd=placed.maps["memory"].fd,
            lock_fd=placed.maps["lock"].fd,
            window_fd=placed.maps["window"].fd if "window" in placed.maps else 0,
            trace_fds={
                slot: placed.maps[f"trace{slot}"].fd for slot in placed.slots.values() if f"trace{slot}" in placed.maps
            },
            port_index=point.port_index,
            ingress=point.side == "ingress",
            delays=self._delays(point, rules),
            onward=point.onward,
        )
        fd = syscalls.load_classifier(builder.build(), name=NAME)
        try:
            ensure_clsact(self._switch, point.port_index)
            put_filter(self._switch, point, prio=1, fd=fd, name=NAME, direct_action=True)
            return syscalls.program_id(fd)
        finally:
            os.close(fd)

    def _delays(self, point: HookPoint, rules: tuple[Rule, ...]) -> Delays:
        """How packets are held back; this backend does not."""
        del point, rules
        return Delays()

    def restart(self, point: HookPoint) -> None:
        self._past.pop(point.hook, None)
        self._began_ns = self._placed[point.hook].began_ns = memory.NEVER
        self._placed[point.hook].fill()

    def begin(self, at_ns: int) -> None:
        """See backend.KeepsTime."""
        self._began_ns = at_ns - clock_offset_ns()
        for placed in self._placed.values():
            placed.began_ns = self._began_ns
            placed.open_windows()

    def read_back(self, point: HookPoint, look: Look) -> list[ReadBack]:
        placed = self._placed[point.hook]
        filters = filters_at(point, look)
        attached = any(one.program_id == placed.program for one in filters)
        foreign = sum(not self._is_ours(one, point, placed.program) for one in filters)
        value = placed.maps["memory"].read()
        windows = placed.maps["window"].read() if "window" in placed.maps else b""
        out = []
        for rule in placed.rules:
            slot = placed.ever[rule.label]
            at = slot * memory.RULE_BYTES
            own, trace = value[at : at + memory.RULE_BYTES], placed.trace_at(slot)
            equal, loss = placed.is_as_asked(slot, own, windows, trace), memory.mean_loss_of(own, rule, trace)
            out.append(ReadBack(rule=rule.label, attached=attached, equal=equal, mean_loss=loss, foreign=foreign))
        return out or [ReadBack(rule=UNMATCHED, attached=attached, equal=True, mean_loss=0.0, foreign=foreign)]

    def _is_ours(self, one: Filter, point: HookPoint, program: int) -> bool:
        del point
        return one.program_id == program

    def counters(self, point: HookPoint, look: Look) -> Counters:
        del look
        return added(self._past.get(point.hook, {}), self._placed[point.hook].counters())

    def detours(self, point: HookPoint, look: Look, counters: Counters) -> tuple[Detour, ...]:
        del point, look, counters
        return ()

    def state(self) -> dict[str, Any]:
        return {
            hook.name: {
                "program": placed.program,
                "slots": [placed.slots[rule] for rule in placed.rules],
                "maps": {name: [m.kernel_id(), m.value_bytes] for name, m in placed.in_use().items()},
            }
            for hook, placed in self._placed.items()
        }

    def close(self) -> None:
        """Descriptors only: the program lives as long as the port it is attached to."""
        for placed in self._placed.values():
            placed.close()
        if self._btf is not None:
            os.close(self._btf[0])


def _reopen(rules: tuple[Rule, ...], ids: dict[str, Any]) -> _Placed:
    maps = {name: ArrayMap.open(map_id=one[0], value_bytes=one[1]) for name, one in ids["maps"].items()}
    placed = _Placed(slots=dict(zip(rules, ids["slots"], strict=True)), maps=maps)
    placed.program, placed.rules = ids["program"], rules
    placed.ever = {rule.label: slot for rule, slot in placed.slots.items()}
    return placed


KIND = Kind(
    name="ebpf",
    make=EbpfBackend,
    keeps_time=True,
    refusal=refusal,
    too_many=too_many,
    lacking=Kernel.no_program,
    advice="run as root on a kernel with cls_bpf",
)
