"""The devices beside a NIC, on one of its sides: made, told where to lead packets, read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from lossbench.net.counters import Counters, ReadBack
from lossbench.net.counters import Detour as Held
from lossbench.net.host.place import Here
from lossbench.net.impair.backend import Backend
from lossbench.net.impair.ebpf.backend import EbpfBackend
from lossbench.net.nic.facts import Facts
from lossbench.net.nic.way import programs
from lossbench.net.nic.way.gate import BeforeMaking, no_gate, put_program
from lossbench.net.nic.way.netem import VethNetem
from lossbench.net.tc import awake, offloads, ours
from lossbench.net.tc.hook import HookPoint, Side
from lossbench.net.tc.look import Look
from lossbench.spec.placement import Hook, Rule

ONWARD_PRIORITY = 0x7001  # behind all rules, and behind what counts the rest
LONGEST = 65535


@dataclass(kw_only=True)
class Detour:
    """Of one side. `ever`: rules that may come in force later."""

    network_id: str
    facts: Facts
    side: Side
    hook: Hook
    rules: tuple[Rule, ...]
    backend: str
    handle: IPRoute
    ever: tuple[Rule, ...] = ()
    _rules: Backend | None = field(default=None, init=False)

    def device(self, letter: str) -> str:
        return f"lb{self.network_id}{self.side[0]}{letter}"

    def index(self, letter: str) -> int:
        return int(self.handle.link_lookup(ifname=self.device(letter))[0])

    def point(self) -> HookPoint:
        return HookPoint(hook=self.hook, port_index=self.index("b"), mtu=self.facts.mtu, side="ingress")

    # --- making ----------------------------------------------------------------------------------------------------

    def build(self, before_making: BeforeMaking) -> None:
        """Everything but the gate: no packet comes yet."""
        self._pair("a", "b", before_making)
        offloads.switch(self.device("a"), dict.fromkeys(offloads.SEGMENTATION, False))
        if any(
            rule.profile.corrupt_percent for rule in (*self.rules, *self.ever)
        ):  # for the receiver's checksum to see
            offloads.switch(self.device("a"), dict.fromkeys(offloads.CHECKSUM, False))
        self._rules = self._made(before_making)
        self._rules.expect(self.point(), self.ever)
        self._rules.put(self.point(), self.rules)
        self._program(self.index("b"), ONWARD_PRIORITY, self._onward())

    def _onward(self) -> bytes:
        return programs.onward(nic=self.facts.index, side=self.side)

    def _made(self, before_making: BeforeMaking | None = None, **state: Any) -> Backend:
        """`state` if another process put it in force; without `before_making` only to be read."""
        if self.backend == "ebpf":
            return EbpfBackend(self.handle, place=Here(), **state)

        def make(slot: int) -> int:
            assert before_making is not None
            self._pair(f"c{slot}", f"d{slot}", before_making)
            self._program(self.index(f"d{slot}"), 1, self._onward())
            return self.index(f"c{slot}")

        def named(slot: int) -> tuple[str, str]:
            return self.device(f"c{slot}"), self.device(f"d{slot}")

        return VethNetem(self.handle, place=Here(), named=named, make=make if before_making else None, **state)

    def put(self, rules: tuple[Rule, ...]) -> None:
        """In place of those before."""
        self.in_force().put(self.point(), rules)
        self.rules = rules

    def restart(self) -> None:
        self.in_force().restart(self.point())

    def in_force(self) -> Backend:
        assert self._rules is not None
        return self._rules

    def _pair(self, one: str, other: str, before_making: BeforeMaking) -> None:
        """Silent: nothing of it ever speaks by itself."""
        name, peer = self.device(one), self.device(other)
        before_making(**ours.link_entry(name))
        # Packets are cut by what their sender says, not by this: so the NIC's own MTU may change meanwhile.
        self.handle.link("add", ifname=name, kind="veth", mtu=LONGEST, peer={"ifname": peer, "mtu": LONGEST})
        for each in (name, peer):
            for setting, value in (("disable_ipv6", 1), ("accept_ra", 0)):
                with suppress(OSError):  # no IPv6 here
                    Path(f"/proc/sys/net/ipv6/conf/{each}/{setting}").write_text(str(value))
            index = self.handle.link_lookup(ifname=each)[0]
            self.handle.link("set", index=index, arp=False, state="up")
        awake.wait(lambda: awake.not_up(Here(), (name, peer)))

    def _program(self, index: int, priority: int, code: bytes) -> None:
        put_program(self.handle, index, code, network_id=self.network_id, priority=priority)

    # --- reading ---------------------------------------------------------------------------------------------------

    def counters(self, look: Look) -> Counters:
        return self.in_force().counters(self.point(), look)

    def held(self, look: Look, counters: Counters) -> tuple[Held, ...]:
        """Where packets wait on the way."""
        return self.in_force().detours(self.point(), look, counters)

    def lost(self, look: Look) -> dict[str, int]:
        """By the detour itself, before the rules and behind them. The receiving end of a pair counts."""
        ends = {name: link for link in look.links.values() if (name := link.name).startswith(self.device(""))}
        out = {"before": 0, "behind": 0}
        for name, link in ends.items():
            letter = name[len(self.device("")) :][:1]
            if letter in ("b", "d"):
                out["before" if letter == "b" else "behind"] += link.rx_dropped + link.tx_dropped
        return out

    def read_back(self, look: Look) -> list[ReadBack]:
        """Our own way onward is no stranger."""
        found = self.in_force().read_back(self.point(), look)
        return [replace(one, foreign=one.foreign - 1) for one in found]

    def wrong(self, look: Look) -> list[str]:
        """What the kernel has not as it was asked for, in words."""
        if gone := no_gate(look, self.facts, self.side, self.network_id):
            return gone
        out = []
        for one in self.read_back(look):
            if not one.attached:
                out.append(f"{self.side}: rule {one.rule} is not attached")
            elif not one.equal:
                out.append(f"{self.side}: rule {one.rule} is not in force as asked {', '.join(one.differs)}".rstrip())
            if one.foreign:
                out.append(f"{self.side}: {one.foreign} filters that are not ours stand at the loss point")
        return out

    def offloads_wrong(self) -> list[str]:
        on = offloads.read(self.device("a"), None)
        return [f"{self.device('a')}: {name} is on" for name in offloads.SEGMENTATION if on.get(name)]

    def state(self) -> dict[str, Any]:
        """What another process needs to read it."""
        return self.in_force().state()

    def attach(self, state: dict[str, Any]) -> None:
        self._rules = self._made(state=state, rules={self.hook: self.rules})

    def close(self) -> None:
        if self._rules is not None:
            self._rules.close()
