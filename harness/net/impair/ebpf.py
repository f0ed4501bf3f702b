"""Backend ebpf: a program at the hook of the switch's port. Seeded, counted packet by packet, changed in place."""

from __future__ import annotations

import os
import struct
import time
from typing import Any

from pyroute2 import IPRoute

from harness.net.bpf import syscalls
from harness.net.bpf.syscalls import ArrayMap
from harness.net.impair import ebpf_memory as memory
from harness.net.impair.base import UNMATCHED, Counters, HookPoint, Position, RuleCounters
from harness.net.impair.clsact import PARENT, ensure_clsact, filters_of
from harness.net.impair.ebpf_delay import Delays
from harness.net.impair.ebpf_program import ProgramBuilder
from harness.placement import Hook, Rule
from harness.profile import BlockLoss, Profile, TraceLoss

NAME = "lossbench"
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


class _Placed:
    """One hook's program and maps."""

    def __init__(self, *, rules: tuple[Rule, ...], ids: dict[str, Any], maps: dict[str, ArrayMap]) -> None:
        self.rules = rules
        self.ids = ids
        self.maps = maps

    def close(self) -> None:
        for one in self.maps.values():
            one.close()


class EbpfBackend:
    """See base.Backend."""

    name = "ebpf"

    def __init__(
        self, switch: IPRoute, *, namespace: str, state: dict[str, Any] | None = None, rules: Any = None
    ) -> None:
        self._switch = switch
        self._namespace = namespace
        self._placed: dict[Hook, _Placed] = {}
        self._btf: tuple[int, int, int] | None = None
        for hook, ids in (state or {}).items():
            self._placed[Hook.named(hook)] = _reopen(rules[Hook.named(hook)], ids)

    def put(self, point: HookPoint, rules: tuple[Rule, ...]) -> Counters:
        maps: dict[str, ArrayMap] = {}
        maps["memory"] = ArrayMap.create(value_bytes=memory.RULE_BYTES * (len(rules) + 1), name="lb_memory")
        maps["memory"].write(b"".join(memory.rule_memory(rule) for rule in (*rules, None)))
        for number, rule in enumerate(rules):
            if isinstance(rule.profile.loss, BlockLoss):
                continue
            if self._btf is None:
                self._btf = syscalls.load_lock_btf(memory.LOCK_WORDS)
            maps[f"lock{number}"] = ArrayMap.create(value_bytes=memory.LOCK_BYTES, name="lb_lock", btf=self._btf)
            maps[f"lock{number}"].write(memory.lock_memory(rule))
            if isinstance(rule.profile.loss, TraceLoss):
                raw = memory.trace_memory(rule.profile.loss)
                maps[f"trace{number}"] = ArrayMap.create(value_bytes=len(raw), name="lb_trace")
                maps[f"trace{number}"].write(raw)
        program = self._attach(point, rules, maps)
        ids = {"program": program, **{name: [m.kernel_id(), m.value_bytes] for name, m in maps.items()}}
        before = self._placed.get(point.hook)
        self._placed[point.hook] = _Placed(rules=rules, ids=ids, maps=maps)
        if before is None:
            return {}
        time.sleep(SWAP_S)
        final = _counters(before)
        before.close()
        return final

    def _attach(self, point: HookPoint, rules: tuple[Rule, ...], maps: dict[str, ArrayMap]) -> int:
        builder = ProgramBuilder(
            rules=rules,
            memory_fd=maps["memory"].fd,
            lock_fds={n: maps[f"lock{n}"].fd for n in range(len(rules)) if f"lock{n}" in maps},
            trace_fds={n: maps[f"trace{n}"].fd for n in range(len(rules)) if f"trace{n}" in maps},
            port_index=point.port_index,
            ingress=point.hook.direction == "uplink",
            delays=self._delays(point, rules),
        )
        fd = syscalls.load_classifier(builder.build(), name=NAME)
        try:
            ensure_clsact(self._switch, point.port_index)
            self._switch.tc(
                "replace-filter", "bpf", point.port_index, handle=1, parent=PARENT[point.hook.direction],
                prio=1, fd=fd, name=NAME, direct_action=True,
            )  # fmt: skip
            return syscalls.program_id(fd)
        finally:
            os.close(fd)

    def _delays(self, point: HookPoint, rules: tuple[Rule, ...]) -> Delays:
        """How packets are held back; this backend does not."""
        del point, rules
        return Delays()

    def read_back(self, point: HookPoint) -> list[dict[str, Any]]:
        placed = self._placed[point.hook]
        attached = [f.get("TCA_BPF_ID") for f in filters_of(self._switch, point.port_index, point.hook.direction)]
        value = placed.maps["memory"].read()
        out = []
        for number, rule in enumerate(placed.rules):
            own = value[number * memory.RULE_BYTES : (number + 1) * memory.RULE_BYTES]
            out.append(
                {
                    "rule": rule.label,
                    "attached": placed.ids["program"] in attached,
                    "equal": memory.asked_part(own) == memory.asked_part(memory.rule_memory(rule)),
                    "mean_loss": memory.mean_loss_of(own, rule),
                }
            )
        if not placed.rules:
            out.append(
                {"rule": UNMATCHED, "attached": placed.ids["program"] in attached, "equal": True, "mean_loss": 0}
            )
        return out

    def counters(self, point: HookPoint) -> Counters:
        return _counters(self._placed[point.hook])

    def state(self) -> dict[str, Any]:
        return {hook.name: placed.ids for hook, placed in self._placed.items()}

    def close(self) -> None:
        """Descriptors only: the program lives as long as the port it is attached to."""
        for placed in self._placed.values():
            placed.close()
        if self._btf is not None:
            os.close(self._btf[0])


def _counters(placed: _Placed) -> Counters:
    value = placed.maps["memory"].read()
    out: Counters = {}
    for number, label in enumerate([*(rule.label for rule in placed.rules), UNMATCHED]):
        words = struct.unpack_from(f"<{len(memory.COUNTERS)}Q", value, number * memory.RULE_BYTES)
        by_name = dict(zip(memory.COUNTERS, words, strict=True))
        out[label] = RuleCounters(
            seen=by_name["seen"],
            dropped=by_name["dropped"],
            seen_bytes=by_name["seen_bytes"],
            duplicated=by_name["duplicated"],
            corrupted=by_name["corrupted"],
            super_packets=by_name["super_packets"],
            position=_position(placed.maps.get(f"lock{number}")),
        )
    return out


def _position(lock: ArrayMap | None) -> Position | None:
    if lock is None:
        return None
    _, state, generator, packets = struct.unpack("<IIQQ", lock.read())
    return Position(generator=generator, state=state, packets=packets)


def _reopen(rules: tuple[Rule, ...], ids: dict[str, Any]) -> _Placed:
    maps = {
        name: ArrayMap.open(map_id=value[0], value_bytes=value[1]) for name, value in ids.items() if name != "program"
    }
    return _Placed(rules=rules, ids=ids, maps=maps)
