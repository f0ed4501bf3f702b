"""One half of a collective as the endpoint drives it: flows out, flows in, and the rule that ends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from lossbench.workloads.transport.flow import Incoming, Outgoing
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.policy import Policy
from lossbench.workloads.transport.sink import NOWHERE


@dataclass(frozen=True, kw_only=True)
class Account:
    """What arrived in one half, and why it ended. Always on: a few hundred bytes a peer."""

    half: int
    step: int
    ended: str  # all, markers, fraction, deadline
    seconds: float  # from the half's first packet
    arrived: dict[int, wire.Bits]  # per peer, per packet
    cut: int  # missing because the deadline came
    lost: int  # missing although the peer had sent all
    withheld: int  # not sent: the peer gave no room for it

    @property
    def fraction(self) -> float:
        """Share of all packets from others that arrived."""
        total = sum(len(bits) for bits in self.arrived.values())
        return sum(int(bits.sum()) for bits in self.arrived.values()) / total if total else 1.0

    def per_peer(self) -> dict[int, float]:
        return {peer: float(bits.mean()) if len(bits) else 1.0 for peer, bits in self.arrived.items()}


@dataclass(kw_only=True)
class Half:
    """`sequence` numbers all halves of a group in order; it is the same on all ranks."""

    sequence: int
    step: int
    half: int
    reliable: bool
    deadline_s: float = 0.0
    outgoing: dict[int, Outgoing] = field(default_factory=dict)
    incoming: dict[int, Incoming] = field(default_factory=dict)
    entered: float = 0.0
    first_packet: float | None = None  # or when a peer last said that it is still busy elsewhere
    sending: bool = False  # the second half of an all-reduce listens before it sends
    closed: str = ""
    closed_at: float = 0.0
    absent: frozenset[int] = frozenset()  # peers not waited for
    given_up_by: int | None = None  # a peer left this reliable half before it was done
    error: BaseException | None = None  # of the thread that sends

    @property
    def size(self) -> int:
        """Bytes that come in; halves of one size have one deadline."""
        return sum(flow.total * flow.segment for flow in self.incoming.values())

    def sends_done(self) -> bool:
        if self.reliable:
            return all(flow.finished for flow in self.outgoing.values())
        return all(flow.sent_all or flow.peer in self.absent for flow in self.outgoing.values())

    def just_sent(self) -> bool:
        """Everything has left and no marker has gone yet."""
        return any(flow.sent_all and flow.marker_at == 0.0 for flow in self.outgoing.values())

    def ending(self, now: float, policy: Policy, allowance_s: float) -> str:
        """Why this half is over now; empty if it is not."""
        waited = [f for f in self.incoming.values() if not f.complete and f.peer not in self.absent]
        done = self.sends_done()
        if not waited and done:
            return "all" if all(f.complete for f in self.incoming.values()) else "markers"
        if self.reliable:
            return ""
        if done and all(f.ended_at is not None and now - f.ended_at >= allowance_s for f in waited):
            return "markers"
        if done and policy.close_fraction < 1 and self._share() >= policy.close_fraction:
            return "fraction"
        if self.first_packet is not None and now - self.first_packet >= self.deadline_s:
            return "deadline"
        return ""

    def _share(self) -> float:
        total = sum(f.total for f in self.incoming.values())
        return sum(f.count for f in self.incoming.values()) / total if total else 1.0

    def wait_s(self, now: float, allowance_s: float) -> float:
        """How long nothing can change without a packet."""
        times = []
        if self.first_packet is not None:
            times.append(self.first_packet + self.deadline_s)
        open_ends = [f.ended_at for f in self.incoming.values() if not f.complete and f.peer not in self.absent]
        ended = [at for at in open_ends if at is not None]
        if ended and len(ended) == len(open_ends) and self.sends_done():
            times.append(max(ended) + allowance_s)
        return max(min(times, default=now + 0.05) - now, 0.0)

    def let_go(self) -> None:
        """It is over: the caller's memory is not held any longer."""
        for flow in self.incoming.values():
            flow.sink = NOWHERE
        if not self.reliable:
            for out in self.outgoing.values():
                out.data = out.data[:0].copy()

    def account(self) -> Account:
        cut = lost = 0
        for flow in self.incoming.values():
            gone = flow.total - flow.count
            if flow.ended_at is None:
                cut += gone
            else:
                lost += gone
        return Account(
            half=self.half,
            step=self.step,
            ended=self.closed,
            seconds=self.closed_at - self.first_packet if self.first_packet is not None else 0.0,
            arrived={peer: flow.arrived for peer, flow in self.incoming.items()},
            cut=cut,
            lost=lost,
            withheld=sum(flow.total - min(flow.cursor, flow.total) for flow in self.outgoing.values()),
        )


class Pump(Protocol):
    """Who fills flows by itself must know which are listened to."""

    def expect(self, key: bytes, half: Half, flow: Incoming) -> None: ...
    def forget(self, half: Half) -> None: ...


def bitmap(missing: np.ndarray, limit_bytes: int) -> tuple[int, bytes]:
    """(first packet it speaks of, bits): which packets are missing, as many as fit."""
    if not len(missing):
        return 0, b""
    base = int(missing[0])
    near = missing[missing < base + 8 * limit_bytes] - base
    bits = np.zeros(int(near[-1]) + 1, dtype=np.uint8)
    bits[near] = 1
    return base, np.packbits(bits, bitorder="little").tobytes()


def from_bitmap(base: int, body: bytes, total: int) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(body, dtype=np.uint8), bitorder="little")
    index = np.flatnonzero(bits) + base
    return index[index < total].astype(np.uint32)
