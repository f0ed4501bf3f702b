"""The way between machines of a lab, measured when it is checked: bare loss, rate, MTU and marks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lossbench.net.lab.channel import Channel
from lossbench.net.lab.traffic import PAUSE_EVERY

BARE_PACKETS, BARE_BYTES, PAUSE_S = 2000, 500, 0.002
BARE_MBIT = PAUSE_EVERY * BARE_BYTES * 8 / PAUSE_S / 1e6
BIG_PACKETS = 20
MARKED, MARK = 50, 8
RATE_PACKETS = 20_000
HEARD_S = 0.5
Pair = tuple[int, int]


def next_to(rank: int, ranks: Iterable[int]) -> int:
    """In a ring."""
    ring = sorted(ranks)
    return ring[(ring.index(rank) + 1) % len(ring)]


def rounds(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """No machine twice in one round: pairs of a round are measured at once. A ring takes two or three."""
    out: list[list[Pair]] = []
    for pair in pairs:
        free = next((one for one in out if not any(set(pair) & set(other) for other in one)), None)
        if free is None:
            out.append(free := [])
        free.append(pair)
    return out


@dataclass(frozen=True, kw_only=True)
class Way:
    """What was sent, and what of it was heard."""

    mtu: int
    sent: int
    lost: int
    heard: int
    whole: bool  # packets of the full MTU arrive
    marks: bool
    rate_mbit: float | None

    def as_json(self, to: str) -> dict[str, Any]:
        return {
            "to": to,
            "bare_loss": self.lost / max(1, self.sent),
            "mtu": self.mtu if self.whole else None,
            "dscp": self.marks,
            "rate_mbit": self.rate_mbit,
        }

    def wrong(self, to: str) -> list[str]:
        return [] if self.heard else [f"nothing arrives at {to} on the data network"]

    def notes(self, to: str) -> list[str]:
        out: list[str] = []
        if not self.heard:
            return out
        if self.lost > 0:
            at = f"at up to {BARE_MBIT:.0f} Mbit/s"
            out.append(f"{self.lost} of {self.sent} packets to {to} are lost {at}, without any profile")
        if not self.whole:
            out.append(f"packets of {self.mtu} bytes do not reach {to}: the path's MTU is smaller")
        if not self.marks:
            out.append(f"DSCP does not survive the way to {to}: no priority by marks")
        return out


def measured(sender: Channel, receiver: Channel, *, mtu: int) -> Way:
    ends: dict[str, Any] = {"source": sender.machine.address, "to": receiver.machine.address}

    def way(count: int, size: int, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        port = receiver.ask("wire.listen", address=receiver.machine.address)
        sent = sender.ask("wire.send", **ends, port=port, count=count, size=size, **more)
        time.sleep(HEARD_S)
        return sent, receiver.ask("wire.heard")

    bare_sent, bare = way(BARE_PACKETS, BARE_BYTES, pause_s=PAUSE_S)
    big_sent, big = way(BIG_PACKETS, mtu)
    _, marked = way(MARKED, BARE_BYTES, dscp=MARK)
    _, fast = way(RATE_PACKETS, mtu)
    return Way(
        mtu=mtu,
        sent=bare_sent["sent"],
        lost=bare_sent["sent"] - bare["packets"] - bare["overflow"],
        heard=bare["packets"],
        whole=bool(big["packets"]) and not big_sent["too_long"],
        marks=int(marked["dscp"].get(str(MARK), 0)) == marked["packets"] > 0,
        rate_mbit=fast["bytes"] * 8 / fast["seconds"] / 1e6 if fast["seconds"] > 0 else None,
    )
