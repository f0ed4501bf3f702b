"""Backend edt: ebpf, and delay by earliest departure time where the kernel has fq.

The program stamps a surviving packet with the moment it may leave; behind it every packet goes through an IFB whose fq
qdisc keeps it until then. Everything else is the ebpf backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyroute2 import IPRoute

from lossbench.net.bpf.classic import classifier
from lossbench.net.counters import Counters, Detour, ReadBack
from lossbench.net.host.place import Place
from lossbench.net.impair.backend import Kind
from lossbench.net.impair.ebpf import backend as ebpf
from lossbench.net.impair.ebpf.delay import Delays
from lossbench.net.impair.netem.options import limit_packets
from lossbench.net.tc.hook import TC_H_ROOT, HookPoint, aside, ensure_clsact, filters_at, put_filter
from lossbench.net.tc.look import Look
from lossbench.net.tc.rtnl_messages import Filter
from lossbench.spec.placement import Hook, Rule
from lossbench.spec.profile import Match, Profile

REDIRECT_PRIO = 2
MAX_JITTER_MS = 2000  # twice the jitter in ns, times a 32-bit random word, must fit 64 bits


def refusal(profile: Profile) -> str | None:
    """What this backend can't do of a profile, in words; None if it can do all."""
    if profile.delay is not None and (profile.delay.distribution != "uniform" or profile.delay.correlation_percent):
        return "a delay distribution other than uniform"
    if profile.delay is not None and profile.delay.jitter_ms > MAX_JITTER_MS:
        return f"jitter above {MAX_JITTER_MS} ms"
    if profile.reorder is not None:
        return "reordering"
    return ebpf.refusal(profile.model_copy(update={"delay": None, "reorder": None}))


class EdtBackend(ebpf.EbpfBackend):
    """See backend.Backend."""

    name = "edt"

    def __init__(
        self, switch: IPRoute, *, place: Place, state: dict[str, Any] | None = None, rules: Any = None
    ) -> None:
        super().__init__(switch, place=place, state=state, rules=rules)
        self._queued = {hook for hook in self._placed if switch.link_lookup(ifname=_device(hook))}

    def expect(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        super().expect(point, rules)
        self._hold(point, rules)

    def put(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        self._hold(point, rules)
        super().put(point, rules)

    def _hold(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        """Before packets are stamped, and from the beginning where a rule will need it: all then take the same way."""
        held = [rule.profile for rule in rules if rule.profile.delay is not None]
        if held and point.hook not in self._queued:
            self._queued.add(point.hook)
            self._put_queue(point, max(limit_packets(profile) for profile in held))

    def _put_queue(self, point: HookPoint, limit: int) -> None:
        """Made once and kept: without a stamp fq lets a packet through at once."""
        name = _device(point.hook)
        known = self._switch.link_lookup(ifname=name)
        if not known:
            self._switch.link("add", ifname=name, kind="ifb", mtu=max(point.mtu, 1500))
        device = self._switch.link_lookup(ifname=name)[0]
        self._switch.link("set", index=device, state="up")
        self._switch.tc("replace", "fq", device, 0x10000, parent=TC_H_ROOT, limit=limit)
        if known:
            return
        ensure_clsact(self._switch, point.port_index)
        put_filter(self._switch, point, prio=REDIRECT_PRIO, ops=classifier(Match()), action=aside(device))

    def _delays(self, point: HookPoint, rules: tuple[Rule, ...]) -> Delays:
        del point, rules
        return Delays(stamp=True)

    def read_back(self, point: HookPoint, look: Look) -> list[ReadBack]:
        """The program may be in force while the queue that obeys it is gone, or another stands in its place."""
        entries = super().read_back(point, look)
        device = look.device(_device(point.hook)) if point.hook in self._queued else None
        if point.hook not in self._queued:
            return entries
        filters = [one for one in filters_at(point, look) if one.priority == REDIRECT_PRIO]
        obeyed = device is not None and any(q.kind == "fq" for q in look.qdiscs.get(device.index, ()))
        led = device is not None and any(one.target == device.index for one in filters)
        return entries if obeyed and led else [replace(entry, attached=False) for entry in entries]

    def _is_ours(self, one: Filter, point: HookPoint, program: int) -> bool:
        return super()._is_ours(one, point, program) or (
            point.hook in self._queued and one.priority == REDIRECT_PRIO and one.instructions == classifier(Match())
        )

    def detours(self, point: HookPoint, look: Look, counters: Counters) -> tuple[Detour, ...]:
        """Every packet that survives its rule waits in the queue, if only for a moment."""
        device = look.device(_device(point.hook)) if point.hook in self._queued else None
        if device is None:
            return ()
        queue = next((q for q in look.qdiscs.get(device.index, ()) if q.parent == TC_H_ROOT), None)
        into = sum(c.seen - c.dropped + c.duplicated for c in counters.values())
        return (
            Detour(
                place=f"{point.hook.name}: fq of {device.name}",
                into=into,
                returned=device.tx_packets,
                dropped=device.tx_dropped + device.rx_dropped + (queue.dropped if queue else 0),
                waiting=queue.waiting if queue else 0,
            ),
        )


def _device(hook: Hook) -> str:
    return f"e{hook.rank}{hook.direction[0]}"


KIND = Kind(
    name="edt",
    make=EdtBackend,
    keeps_time=True,
    refusal=refusal,
    too_many=ebpf.too_many,
    lacking=lambda kernel: kernel.no_detour() or kernel.bpf or kernel.no_qdisc("fq"),
    advice="run as root on a kernel with sch_fq",
)
