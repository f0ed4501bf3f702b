"""Backend edt: ebpf, and delay by earliest departure time where the kernel has fq.

The program stamps a surviving packet with the moment it may leave; behind it every packet goes through an IFB whose fq
qdisc keeps it until then. Everything else is the ebpf backend."""

from __future__ import annotations

from harness.net.impair import ebpf
from harness.net.impair.base import Counters, HookPoint
from harness.net.impair.cbpf_program import classifier
from harness.net.impair.clsact import PARENT, ensure_clsact
from harness.net.impair.ebpf_delay import Delays
from harness.net.impair.netem import limit_packets
from harness.net.kinds import TC_H_ROOT
from harness.placement import Rule
from harness.profile import Match, Profile

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
    """See base.Backend."""

    name = "edt"

    def put(self, point: HookPoint, rules: tuple[Rule, ...]) -> Counters:
        held = [rule.profile for rule in rules if rule.profile.delay is not None]
        if held:  # before packets are stamped
            self._put_queue(point, max(limit_packets(profile) for profile in held))
        return super().put(point, rules)

    def _put_queue(self, point: HookPoint, limit: int) -> None:
        """Made once and kept: without a stamp fq lets a packet through at once."""
        name = f"e{point.hook.rank}{point.hook.direction[0]}"
        known = self._switch.link_lookup(ifname=name)
        if not known:
            self._switch.link("add", ifname=name, kind="ifb", mtu=max(point.mtu, 1500))
        device = self._switch.link_lookup(ifname=name)[0]
        self._switch.link("set", index=device, state="up")
        self._switch.tc("replace", "fq", device, 0x10000, parent=TC_H_ROOT, limit=limit)
        if known:
            return
        ensure_clsact(self._switch, point.port_index)
        self._switch.tc(
            "replace-filter", "bpf", point.port_index, handle=1, parent=PARENT[point.hook.direction],
            prio=REDIRECT_PRIO, ops=classifier(Match()),
            action={"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": device},
        )  # fmt: skip

    def _delays(self, point: HookPoint, rules: tuple[Rule, ...]) -> Delays:
        del point, rules
        return Delays(stamp=True)
