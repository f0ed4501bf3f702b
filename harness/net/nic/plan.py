"""What would be done, as the commands it equals. Pure."""

from __future__ import annotations

from lossbench.net.nic.facts import Facts
from lossbench.net.nic.request import Request
from lossbench.net.nic.safety import free_priority, protected
from lossbench.net.nic.way.programs import Traffic
from lossbench.spec.profile import Profile

ID = "XXXX"


def lines(request: Request, facts: Facts, backend: str) -> list[str]:
    """The gate and what leads onward are eBPF programs of ours, which `tc` can't write down: said in words."""
    out = [f"# {facts.name}: {request.name()} by {backend} for {request.for_s:g} s; nothing of others is changed"]
    out += ["# two watchdogs are started and proven alive first; the kernel's own deadline ends the loss without them"]
    if not facts.clsact and not facts.old_ingress:
        out.append(f"tc qdisc add dev {facts.name} clsact")
    for side in request.sides:
        a, b, c, d = (f"lb{ID}{side[0]}{letter}" for letter in ("a", "b", "c0", "d0"))
        profile = request.rules[side][0].profile
        out.append(f"ip link add {a} mtu {facts.mtu} type veth peer name {b} mtu {facts.mtu}")
        out.append(f"ethtool -K {a} tso off gso off tx-udp-segmentation off")
        if backend == "netem":
            out.append(f"ip link add {c} mtu {facts.mtu} type veth peer name {d} mtu {facts.mtu}")
            out.append(f"tc qdisc add dev {c} root netem {netem_words(profile)}")
            out.append(f"tc filter add dev {b} ingress bpf da ...   # to {c}")
            out.append(f"tc filter add dev {d} ingress bpf da ...   # onward, to {facts.name} {side}")
        else:
            out.append(f"tc filter add dev {b} ingress pref 1 bpf da ...   # the loss itself, seed {request.seed}")
            out.append(f"tc filter add dev {b} ingress pref 2 bpf da ...   # onward, to {facts.name} {side}")
        at = f"{facts.name} {side} pref {free_priority(facts, side)}"
        out.append(f"tc filter add dev {at} bpf da ...   # {traffic_words(request.traffic)}: to {a}")
    never = protected(facts)
    ports = ", ".join(map(str, never.ssh_ports))
    gateways = f", gateway {', '.join(never.gateways)}" if never.gateways else ""
    return [*out, f"# never touched: TCP port {ports}, ARP, ND, DHCP, DNS{gateways}, and what is no IP"]


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
    return " ".join(out) or "limit 1000"
