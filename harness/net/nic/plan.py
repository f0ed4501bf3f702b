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
        out.append(f"tc qdisc replace dev {c} root handle 1: netem {netem_words(profile)}")
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


def netem_words(profile: Profile) -> str:
    """As `tc` takes them, of the parts that most profiles have."""
    out = []
    if profile.delay is not None:
        jitter = f" {profile.delay.jitter_ms:g}ms" if profile.delay.jitter_ms else ""
        out.append(f"delay {profile.delay.mean_ms:g}ms{jitter}")
    if profile.loss is not None:
        model = getattr(profile.loss, "model", "iid")
        if model == "iid":
            out.append(f"loss {100 * profile.mean_loss():g}%")
        else:
            out.append(f"loss {model} (mean {100 * profile.mean_loss():g}%)")
    out += [f"duplicate {profile.duplicate_percent:g}%"] if profile.duplicate_percent else []
    out += [f"corrupt {profile.corrupt_percent:g}%"] if profile.corrupt_percent else []
    out += [f"rate {profile.rate_mbit:g}mbit"] if profile.rate_mbit else []
    return " ".join([f"limit {limit_packets(profile)}", *out])
