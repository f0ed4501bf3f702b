"""Looks at a lab before it is used: every machine by itself, then packets from each to the next."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lossbench import __version__
from lossbench.errors import LossbenchError
from lossbench.net.lab.channel import Channel
from lossbench.net.lab.orders import Channels, channels
from lossbench.net.lab.traffic import PAUSE_EVERY
from lossbench.spec.lab import Lab

CLOCK_OFF_S = 1.0  # beyond this, times of two machines can't be laid side by side
BARE_PACKETS, BARE_BYTES, PAUSE_S = 2000, 500, 0.002
BARE_MBIT = PAUSE_EVERY * BARE_BYTES * 8 / PAUSE_S / 1e6
MARKED, MARK = 50, 8
RATE_PACKETS = 20_000
HEARD_S = 0.5


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


def check(lab: Lab) -> list[Row]:
    rows = {rank: Row(name=f"h{rank}", ssh=one.ssh) for rank, one in enumerate(lab.machine)}
    with channels(lab) as machines:
        for rank, error in machines.closed.items():
            rows[rank].wrong.append(str(error))
        for rank, found in machines.each(_alone).items():
            if isinstance(found, LossbenchError):
                rows[rank].wrong.append(str(found))
            else:
                _judge_alone(rows[rank], found)
        able = {rank for rank in machines.open if not rows[rank].wrong}
        for rank in sorted(able) if len(machines.open) > 1 else ():
            other = next_to(rank, machines.open)
            if other in able:
                _to_the_next(machines, rank, other, rows)
            else:  # which is its own mistake, not this one's
                rows[rank].notes.append(f"the way to h{other} was not tried: h{other} can't be used")
    return list(rows.values())


def _alone(channel: Channel) -> dict[str, Any]:
    return {
        "about": channel.ask("machine.about"),
        "clock": channel.clock("machine.time", time.time),
        "interface": channel.ask("machine.interface", name=channel.machine.interface),
        "name": channel.machine.interface,
        "address": channel.machine.address,
    }


def _judge_alone(row: Row, found: dict[str, Any]) -> None:
    row.about, row.interface = found["about"], found["interface"]
    within, offset = found["clock"]
    row.clock_ms, row.clock_within_ms = 1000 * offset, 1000 * within
    name, address = found["name"], found["address"]
    if row.about["lossbench"] != __version__:
        row.wrong.append(f"lossbench {row.about['lossbench']} there, {__version__} here")
    if not row.about["root"]:
        row.wrong.append("not root there: ssh as root, or sudo = true")
    elif not row.about["backends"]:
        row.wrong.append("neither netem nor ebpf works there")
    if address not in row.interface["addresses"]:
        row.wrong.append(f"{name} has not the address {address}")
    if not row.interface["up"]:
        row.wrong.append(f"{name} is down")
    if abs(offset) > CLOCK_OFF_S + within:
        row.notes.append(f"its clock is {offset:+.1f} s off: times of this machine can't be laid beside others'")
    if row.interface["ssh_here"]:
        row.notes.append("control and data share an interface: ssh is spared, and takes bandwidth")
    if not row.about["torch"]:
        row.notes.append("no torch there: no training on it")


def next_to(rank: int, ranks: Iterable[int]) -> int:
    """In a ring."""
    ring = sorted(ranks)
    return ring[(ring.index(rank) + 1) % len(ring)]


def _to_the_next(machines: Channels, rank: int, other: int, rows: dict[int, Row]) -> None:
    """Bare loss, rate, MTU and marks of the way to the next machine."""
    row, sender, receiver = rows[rank], machines.open[rank], machines.open[other]
    ends: dict[str, Any] = {"source": sender.machine.address, "to": receiver.machine.address}
    mtu = min(rows[one].interface.get("mtu", 1500) for one in (rank, other))

    def way(count: int, size: int, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        port = receiver.ask("wire.listen", address=receiver.machine.address)
        sent = sender.ask("wire.send", **ends, port=port, count=count, size=size, **more)
        time.sleep(HEARD_S)
        return sent, receiver.ask("wire.heard")

    try:
        bare_sent, bare = way(BARE_PACKETS, BARE_BYTES, pause_s=PAUSE_S)
        big_sent, big = way(20, mtu)
        _, marked = way(MARKED, BARE_BYTES, dscp=MARK)
        _, fast = way(RATE_PACKETS, mtu)
    except LossbenchError as error:
        row.wrong.append(f"to h{other}: {error.message}")
        return
    lost = bare_sent["sent"] - bare["packets"] - bare["overflow"]
    row.path = {
        "to": f"h{other}",
        "bare_loss": lost / max(1, bare_sent["sent"]),
        "mtu": mtu if big["packets"] and not big_sent["too_long"] else None,
        "dscp": int(marked["dscp"].get(str(MARK), 0)) == marked["packets"] > 0,
        "rate_mbit": fast["bytes"] * 8 / fast["seconds"] / 1e6 if fast["seconds"] > 0 else None,
    }
    if not bare["packets"]:
        row.wrong.append(f"nothing arrives at h{other} on the data network")
        return
    if lost > 0:
        at = f"at up to {BARE_MBIT:.0f} Mbit/s"
        row.notes.append(f"{lost} of {bare_sent['sent']} packets to h{other} are lost {at}, without any profile")
    if row.path["mtu"] is None:
        row.notes.append(f"packets of {mtu} bytes do not reach h{other}: the path's MTU is smaller")
    if not row.path["dscp"]:
        row.notes.append(f"DSCP does not survive the way to h{other}: no priority by marks")
