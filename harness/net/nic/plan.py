"""What would be done, as the commands it equals. Pure."""

from __future__ import annotations

from lossbench.net.impair.netem.backend import FIRST_PRIO, REST_PRIO
from lossbench.net.impair.netem.options import limit_packets
from lossbench.net.nic.facts import Facts
from lossbench.net.nic.request import Request
from lossbench.net.nic.safety import free_priority, protected
from lossbench.net.nic.way.detour import LONGEST, ONWARD_PRIORITY
from lossbench.net.nic.way.netem import QUEUE_PACKETS
from lossbench.net.nic.way.programs import Traffic
from lossbench.net.tc.hook import Side
from lossbench.net.tc.offloads import CHECKSUM, SEGMENTATION
from lossbench.spec.losses import GilbertElliottLoss, IidLoss, State4Loss
from lossbench.spec.placement import Rule
from lossbench.spec.profile import Profile

ID = "XXXX"


def lines(request: Request, facts: Facts, backend: str) -> list[str]:
    """The gate and what leads onward are eBPF programs of ours, which `tc` can't write down: said in words."""
    out = [f"# {facts.name}: {request.name()} by {backend} for {request.for_s:g} s; nothing of others is changed"]
    out += ["# two watchdogs are started and proven alive first; the kernel's own deadline ends the loss without them"]
    out += [f"# what was left there ({', '.join(facts.left)}) is taken away first"] if facts.left else []
    for side in request.sides:
        out += _detour(request, facts, backend, side)
    if not facts.clsact and not facts.old_ingress:
        out.append(f"tc qdisc add dev {facts.name} clsact")
    for side in request.sides:
        at = f"{facts.name} {side} pref {free_priority(facts, side)}"
        out.append(f"tc filter add dev {at} bpf da ...   # {traffic_words(request.traffic)}: to {_device(side, 'a')}")
    never = protected(facts)
    ports = ", ".join(map(str, never.ssh_ports))
    gateways = f", gateway {', '.join(never.gateways)}" if never.gateways else ""
    return [*out, f"# never touched: TCP port {ports}, ARP, ND, DHCP, DNS{gateways}, and what is no IP"]


def _device(side: Side, letter: str) -> str:
    return f"lb{ID}{side[0]}{letter}"


def _pair(one: str, other: str) -> list[str]:
    made = f"ip link add {one} mtu {LONGEST} type veth peer name {other} mtu {LONGEST}"
    return [made, *(f"ip link set {each} arp off up   # without IPv6" for each in (one, other))]


def _detour(request: Request, facts: Facts, backend: str, side: Side) -> list[str]:
    """What stands beside the interface, in the order in which it is made."""
    a, b, c, d = (_device(side, letter) for letter in ("a", "b", "c0", "d0"))
    profile = request.rules[side][0].profile
    onward = f"bpf da ...   # onward, to {facts.name} {side}"
    out = [*_pair(a, b), *(f"ethtool -K {a} {name} off" for name in SEGMENTATION)]
    out += [f"ethtool -K {a} {name} off" for name in CHECKSUM if profile.corrupt_percent]
    if backend == "netem":
        out += [*_pair(c, d), f"tc qdisc add dev {d} clsact", f"tc filter add dev {d} ingress pref 1 {onward}"]
        out.append(f"ip link set {c} txqueuelen {QUEUE_PACKETS}")
        words = netem_words(request.rules[side][0])
        out.append(f"tc qdisc replace dev {c} root handle 1: netem {words}   # seed: tc of iproute2 6.6, or without")
        out.append(f"tc qdisc add dev {b} clsact")
        out.append(f"tc filter add dev {b} ingress pref {FIRST_PRIO} bpf ... action mirred   # to {c}")
        out.append(f"tc filter add dev {b} ingress pref {REST_PRIO} bpf ... action gact   # counts the rest")
    else:
        out.append(f"tc qdisc add dev {b} clsact")
        out.append(f"tc filter add dev {b} ingress pref 1 bpf da ...   # the loss itself, seed {request.seed}")
    return [*out, f"tc filter add dev {b} ingress pref {ONWARD_PRIORITY} {onward}"]


def traffic_words(traffic: Traffic) -> str:
    parts = [f"to and from {', '.join(traffic.peers)}"] if traffic.peers else []
    parts += [f"port {', '.join(f'{a}-{b}' if a != b else str(a) for a, b in traffic.ports)}"] if traffic.ports else []
    parts += [f"DSCP {traffic.dscp}"] if traffic.dscp is not None else []
    parts += [traffic.protocol] if traffic.protocol else []
    return "; ".join(parts) or "all packets"


def netem_words(rule: Rule) -> str:
    """All that is sent (netem.options), as `tc` takes it."""
    profile = rule.profile
    out = [f"limit {limit_packets(profile)}", *_delay_words(profile), *_loss_words(profile)]
    out += [f"duplicate {_percent(profile.duplicate_percent)}"] if profile.duplicate_percent else []
    out += [f"corrupt {_percent(profile.corrupt_percent)}"] if profile.corrupt_percent else []
    out += [f"rate {profile.rate_mbit:.12g}mbit"] if profile.rate_mbit else []
    if (slot := profile.slot) is not None:
        out.append(f"slot {slot.min_ms:.12g}ms {slot.max_ms:.12g}ms")
        out += [f"packets {slot.packets}"] if slot.packets else []
        out += [f"bytes {slot.bytes}"] if slot.bytes else []
    return " ".join([*out, f"seed {rule.seed}"])


def _percent(number: float) -> str:
    return f"{number:.12g}%"


def _delay_words(profile: Profile) -> list[str]:
    """Without a table of a distribution the kernel's own is uniform, for which tc has no word."""
    out, delay, reorder = [], profile.delay, profile.reorder
    if delay is not None:
        correlation = f" {_percent(delay.correlation_percent)}" if delay.correlation_percent else ""
        jitter = f" {delay.jitter_ms:.12g}ms{correlation}" if delay.jitter_ms or correlation else ""
        out.append(f"delay {delay.mean_ms:.12g}ms{jitter}")
        out += [f"distribution {delay.distribution}"] if delay.jitter_ms and delay.distribution != "uniform" else []
    if reorder is not None:
        correlation = f" {_percent(reorder.correlation_percent)}" if reorder.correlation_percent else ""
        out.append(f"reorder {_percent(reorder.percent)}{correlation} gap {reorder.gap}")
    return out


def _loss_words(profile: Profile) -> list[str]:
    """tc takes ecn only beside losses; without any it does nothing."""
    loss = profile.loss
    if isinstance(loss, IidLoss):
        correlation = f" {_percent(loss.correlation_percent)}" if loss.correlation_percent else ""
        words = f"loss random {_percent(loss.percent)}{correlation}"
    elif isinstance(loss, GilbertElliottLoss):
        good, bad = loss.chain().states
        shares = (good[0].probability, bad[0].probability, bad[0].loss, good[0].loss)
        words = " ".join(["loss gemodel", *(_percent(100 * share) for share in shares)])
    elif isinstance(loss, State4Loss):
        order = (loss.p13_percent, loss.p31_percent, loss.p32_percent, loss.p23_percent, loss.p14_percent)
        words = " ".join(["loss state", *map(_percent, order)])
    else:
        return []
    return [words, "ecn"] if profile.ecn and profile.mean_loss() else [words]
