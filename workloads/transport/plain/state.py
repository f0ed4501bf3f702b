"""What the engine knows: of its peers, of its halves, and how long it waits for what."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from lossbench.workloads.transport import structures
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.tag import Tags
from lossbench.workloads.transport.packet.wire import Bytes
from lossbench.workloads.transport.plain.flows import Flow, Open, now_s
from lossbench.workloads.transport.policy import Membership
from lossbench.workloads.transport.udp.link import Link

FIRST_WINDOW = 32 << 10
STEADY_WINDOW = 256 << 10  # half of a switch's smallest queue; credit.c finds what a link really takes
TAILS, PASSES, ORDERLY, LOSSLESS_S = 16, 16, 256, 10.0
RING = 256  # halves that lie farther ahead than this are not kept


@dataclass
class Tail:
    """A lossy flow whose half is over here. `live`: the peer may wait for its end, or not know how much it was."""

    prefix: bytes
    packets: int
    sent: int
    size: int
    due: float
    pause: float
    until: float
    repeats: int
    live: bool = False


@dataclass
class Past:
    """What came of a flow whose half is over: late packets can be told from double ones, lost ones from those cut."""

    arrived: Bytes
    sent: int  # as far as is known


@dataclass
class Peer:
    address: tuple[str, int]
    heard: float
    needed_since: float = 0.0
    sent: int = 0
    received: int = 0
    control_out: int = 0
    seen: set[int] = field(default_factory=set)
    control_in: int = 0
    passed: int = 0
    passes: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=PASSES))  # when it said so, lately
    went: dict[int, int] = field(default_factory=dict)  # bytes of lossy halves that are over here, not acknowledged yet
    whole: int = 0  # of every half from this one to `passed` it had sent all
    withheld_until: int = 0  # below, something may not have been sent to it; untold: it has not answered a packet
    withheld_at: int = 0  # behind this one, which were the first to say so
    withheld_untold: bool = False
    early: tuple[int, int] = (
        -1,
        -1,
    )  # the farthest that came early, half and packet: what lies below may be a recording
    answer: float = 0.0
    cut_next: int = -1  # the half before this one went on without it
    loss: float = 0.0
    window: int = FIRST_WINDOW
    told: int = FIRST_WINDOW
    refused_since: float = 0.0  # the host takes nothing for it: since when, until when it is not asked
    refused_until: float = 0.0
    refused_error: int = 0
    said_goodbye: bool = False
    knows_goodbye: bool = False
    gave_up_told: float = 0.0
    gave_up_times: int = 0  # how often it was told
    gave_up_too: bool = False  # it says so itself: it knows
    tails: dict[int, Tail] = field(default_factory=dict)
    asked: dict[int, tuple[int, float]] = field(default_factory=dict)  # when the latest markers left

    def heard_before(self, number: int) -> bool:
        if number in self.seen or number <= self.control_in - 64:
            return True
        self.seen.add(number)
        self.control_in = max(self.control_in, number)
        self.seen = {n for n in self.seen if n > self.control_in - 64}
        return False

    def must_hear(self, sequence: int, tail: Tail) -> bool:
        """Whatever it does meanwhile: that its half is over here will not say how much it was."""
        return tail.sent < tail.packets or sequence < self.withheld_until

    def move_on(self, passed: int) -> None:
        self.passed = passed
        self.passes.append((passed, now_s()))

    def passed_at(self, sequence: int, now: float) -> float:
        """When it said, at the latest, that it had passed this half: nothing of it was overtaken since."""
        return min((at for below, at in self.passes if below > sequence), default=now)

    def first_pause(self) -> float:
        """Between markers."""
        return min(max(self.answer * 1.5, FIRST_PAUSE_S), LONG_PAUSE_S)


FIRST_PAUSE_S, PATIENCE_S, BUSY_PAUSE_S, ASK_PAUSE_S = 0.0005, 0.003, 0.02, 0.05
LONG_PAUSE_S, LONGEST_PAUSE_S, GAVE_UP_PAUSE_S, NACK_PAUSE_S = 0.05, 0.5, 0.02, 0.0005
QUICK_REPEATS, MANY_REPEATS, ASKED, GAVE_UP_TIMES = 10, 60, 64, 25


def longer(pause: float, repeats: int) -> float:
    if repeats < QUICK_REPEATS:
        return pause
    return min(pause * 1.5, LONG_PAUSE_S if repeats < MANY_REPEATS else LONGEST_PAUSE_S)


def between(p: Peer, pause: float, repeats: int, now: float) -> float:
    """A peer that says nothing at all is asked ever more slowly: all of it waits in its socket."""
    pause, silent = longer(pause or p.first_pause(), repeats), now - max(p.heard, p.needed_since)
    return max(pause, min(silent / 2, LONGEST_PAUSE_S)) if silent > LONG_PAUSE_S else pause


class State:
    """Of one end of a group."""

    def __init__(self, member: Membership, *, link: Link) -> None:
        policy = member.policy
        self.rank, self.world, self.link = member.rank, member.world, link
        others = max(len(member.peers), 1)
        first = min(FIRST_WINDOW, STEADY_WINDOW // others, member.window_bytes)
        self.peers = {rank: Peer(address, now_s(), window=first, told=first) for rank, address in member.peers.items()}
        self.tags = Tags(member.key, whole=policy.tag == "packet")
        self.timeout_s, self.pipeline = policy.timeout_s, policy.pipeline
        self.ordered = policy.sum_order == "fixed"
        self.counts_at_most = min(self.timeout_s / 4, 1.0)  # of a time in which nobody looked, as silence or refusal
        self.reorder_least_s, self.reorder_most_s = policy.reorder_ms / 1000, policy.reorder_max_ms / 1000
        self.pace, self.pace_at = policy.pace_bytes_s, 0.0
        self.room_bytes = member.window_bytes * others
        self.window = min(self.room_bytes, STEADY_WINDOW) if policy.pace == "adaptive" else self.room_bytes
        self.counts: Counter[str] = Counter()
        self.failed: structures.Failure | None = None
        self.halves: dict[int, Open] = {}  # by sequence
        self.next = self.opened = 0
        self.early: dict[int, deque[tuple[int, Bytes]]] = {}  # data, in its order
        self.early_markers: dict[int, dict[int, tuple[float, bytes]]] = {}  # the latest of each peer, and when it came
        self.early_bytes = 0
        self.reorder_s, self.since_inversion = 0.0, 0
        self.tick_at, self.blocked = 0.0, False
        self.checked_at = 0.0  # when halves were looked at last, while there were any
        self.lost_at = 0.0  # when something was lost last, as far as is known
        self._room = np.zeros(1 << 16, np.uint8)
        self._past: dict[int, dict[int, Past]] = {}

    @property
    def closed_below(self) -> int:
        return next(iter(self.halves), self.next)

    def sooner(self, at: float) -> None:
        self.tick_at = min(self.tick_at, at)

    def full(self, sequence: int) -> int:
        """Of the 32 bits on the wire."""
        return self.next + wire.ahead(sequence, self.next % wire.SEQUENCES)

    def allowance(self, now: float) -> float:
        if not self.lost_at or now - self.lost_at > LOSSLESS_S:
            return self.reorder_most_s
        if self.reorder_s > self.reorder_least_s:
            return self.reorder_s
        return 0.0 if self.since_inversion > ORDERLY else self.reorder_least_s

    def flow_over_there(self, one: Open, flow: Flow) -> None:
        """Its half is over at the peer, which had sent all of it, or will say how much."""
        p = self.peers[flow.peer]
        if one.sequence >= p.whole:
            flow.highest = flow.packets
        self.flow_ended(one, flow, p.passed_at(one.sequence, now_s()))

    def flow_ended(self, one: Open, flow: Flow, at: float | None = None) -> None:
        if not flow.ended and not flow.done:
            flow.ended = True
            at = now_s() if at is None else at
            one.last_ended = max(one.last_ended, at)
            one.first = one.first or at
            self.sooner(0)
