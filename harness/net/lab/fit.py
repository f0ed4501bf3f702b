"""What keeps machines from being used, each by itself and together, and what only worries. Pure: what they have said is
judged, nothing is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CLOCK_OFF_S = 1.0  # beyond this, times of two machines can't be laid side by side
# Offloads that decide what a packet is, as people call them.
OFFLOADS = {
    "tx-tcp-segmentation": "TSO",
    "tx-udp-segmentation": "USO",
    "tx-generic-segmentation": "GSO",
    "rx-gro": "GRO",
    "rx-gro-hw": "GRO in hardware",
    "rx-lro": "LRO",
}
COMPARED = ("kernel", "python", "torch", "numpy")


@dataclass(kw_only=True)
class Row:
    """One machine. `wrong` keeps it from use, `notes` only worry."""

    name: str
    ssh: str
    about: dict[str, Any] = field(default_factory=dict)
    clock_ms: float | None = None
    clock_within_ms: float | None = None
    interface: dict[str, Any] = field(default_factory=dict)
    path: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def judge(row: Row, found: dict[str, Any], addresses: Sequence[str] = ()) -> None:
    """One by itself. `addresses`: of all machines, on the data network."""
    row.about, row.interface = about, here = found["about"], found["interface"]
    within, offset = found["clock"]
    row.clock_ms, row.clock_within_ms = 1000 * offset, 1000 * within
    name, address = found["name"], found["address"]
    if about["no_gate"]:
        row.wrong.append(f"{about['no_gate']}: its gate is an eBPF program")
    elif not about["backends"]:
        row.wrong.append("neither netem nor ebpf works there")
    if address not in here["addresses"]:
        row.wrong.append(f"{name} has not the address {address}")
    if not here["up"]:
        row.wrong.append(f"{name} is down")
    if here["impaired"]:
        row.wrong.append(f"{name} is impaired already ({here['impaired']}); lossbench lab revert")
    row.wrong += [f"{name}: {reason}; {step}" for reason, step in here["refused"]]
    row.wrong += [
        f"{name}: {reason} (runs and --side ingress refuse it); {step}" for reason, step in here["refused_in"]
    ]
    row.wrong += [
        f"{one} is a gateway of {name}, which is never touched" for one in here["gateways"] if one in addresses
    ]
    if abs(offset) > CLOCK_OFF_S + within:
        row.notes.append(f"its clock is {offset:+.1f} s off: times of this machine can't be laid beside others'")
    if here["ssh_here"]:
        text = "control and data share an interface: ssh is spared, and takes bandwidth; --yes-these-nics is needed"
        row.notes.append(text)
    elif here["default_route"]:
        row.notes.append(f"{name} holds the default route: --yes-these-nics is needed")
    if not about["torch"]:
        row.notes.append("no torch there: no training on it")


def mixed(mtus: Mapping[str, int], addresses: Sequence[str]) -> list[tuple[str, str]]:
    """(what keeps all of them from a run, what to do)."""
    out = []
    if len(set(mtus.values())) > 1:
        out.append((f"machines differ in their MTU ({shared(mtus)})", "set the same one on all"))
    if len({":" in one for one in addresses}) > 1:
        out.append(("some machines have IPv4 and some IPv6 addresses", "give all the same in lab.toml"))
    return out


def unlike(rows: Sequence[Row]) -> list[str]:
    """In what they differ where results may depend on it; and offloads, which are left as they are."""
    known = [row for row in rows if row.about]
    out = []
    for what in COMPARED:
        values = {row.name: str(row.about[what] or "none") for row in known}
        if len(set(values.values())) > 1:
            out.append(f"{what} differs: {shared(values)}")
    on = {row.name: row.interface["offloads"] for row in known}
    words = {name: ", ".join(word for one, word in OFFLOADS.items() if one in here) for name, here in on.items()}
    if any(words.values()):
        out.append(f"offloads: {shared({name: text or 'none' for name, text in words.items()})}")
    return out


def shared(values: Mapping[str, object]) -> str:
    """Each value once, with who has it; one that all have needs no names."""
    named: dict[object, list[str]] = {}
    for name, value in values.items():
        named.setdefault(value, []).append(name)
    if len(named) == 1:
        return str(next(iter(named)))
    return "; ".join(f"{value} on {', '.join(names)}" for value, names in named.items())
