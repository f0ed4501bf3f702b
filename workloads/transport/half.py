"""One half of a collective: as it is asked of an engine, and what came of it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from lossbench.workloads.transport import structures
from lossbench.workloads.transport.packet.wire import Array, Bits
from lossbench.workloads.transport.plan import Flows, address
from lossbench.workloads.transport.structures import FLOW, PUT, HalfRecord, Reading

KINDS = {"float32": 1, "bfloat16": 2, "float16": 3}


@dataclass(frozen=True, kw_only=True)
class Account:
    """What arrived in one half, and why it ended. Always on: a few hundred bytes a peer.

    Of what did not arrive it says what was known when the half ended: where a deadline ended it, packets that were sent
    and lost behind the last that came are still among `cut`. The group's counters are put right as soon as the sender
    says how much it had sent; an account is not, since whoever reads it has gone on."""

    half: int
    step: int
    ended: str  # all, markers, fraction, deadline
    seconds: float  # from the half's first packet
    waited: float = 0.0  # seconds from its beginning here: what a deadline bounds
    arrived: dict[int, Bits]  # per peer, per packet
    cut: int  # missing because a deadline came, here or there
    lost: int  # missing although the peer had sent all
    withheld: int  # not sent: the peer gave no room for it

    @property
    def fraction(self) -> float:
        """Share of all packets from others that arrived."""
        total = sum(len(bits) for bits in self.arrived.values())
        return sum(int(bits.sum()) for bits in self.arrived.values()) / total if total else 1.0

    def per_peer(self) -> dict[int, float]:
        return {peer: float(bits.mean()) if len(bits) else 1.0 for peer, bits in self.arrived.items()}


class Half:
    """Made for a shape of call and used for many: `aim` says whose memory, an engine does the rest. Flows are rows of
    structures.FLOW in the order in which they are served."""

    def __init__(
        self,
        *,
        half: int,
        signature: int,
        size: int,
        sends: Flows,
        receives: Flows,
        reliable: bool,
        mode: int = PUT,
        after: bool = False,
        codec: str = "float32",
        missing: float = 1.0,
    ) -> None:
        """`after`: it sends when the one before it is over. `missing`: factor for what did not come."""
        self.must_all = reliable  # else lossy, or repaired in part, as the policy says
        self.plan = (sends, receives)
        self._sends, self._receives = (np.zeros(max(one.template.nbytes, 1), np.uint8) for one in (sends, receives))
        self.arrived: Bits = np.zeros(0, np.bool_)
        self.holds: Any = None  # memory that the engine uses
        self.record = HalfRecord(
            in_=address(self._receives),
            out=address(self._sends),
            plan_in=address(receives.template),
            plan_out=address(sends.template),
            ins=len(receives.template),
            outs=len(sends.template),
            size=size & 0xFFFFFFFF,
            half=half,
            dtype=signature,
            reliable=reliable,
            mode=mode,
            after=after,
            close_fraction=1.0,
            missing=missing,
            kind=KINDS.get(codec, 1),
        )
        self.pointer = ctypes.pointer(self.record)
        self.deadline_s = 0.0

    def set_deadline(self, seconds: float) -> None:
        """Without progress of data, 0: none."""
        self.deadline_s, self.record.deadline = seconds, round(seconds * 1e9)

    def aim(self, *, source: int, target: int, holds: Any) -> None:
        """Addresses of what is sent and of where it goes."""
        record = self.record
        self.arrived = np.empty(self.plan[1].packets, np.bool_)
        record.base_out, record.base_in, record.arrived = source, target, self.arrived.ctypes.data
        self.holds = holds

    @property
    def sends(self) -> Array:
        """Rows as the engine has them."""
        return self._sends.view(FLOW) if self.record.outs else np.zeros(0, FLOW)

    @property
    def receives(self) -> Array:
        return self._receives.view(FLOW) if self.record.ins else np.zeros(0, FLOW)

    def rows(self) -> tuple[bytes, bytes]:
        """Both, as they are now."""
        return self._sends.tobytes(), self._receives.tobytes()


class Kept:
    """Memory of calls that nobody waits for: the engine holds it while it may still write to it. By any thread, and by
    the collector in the middle of this; so every step is one that nothing comes in between."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Any, Any]] = {}

    def keep(self, record: Any, memory: Any) -> None:
        """Until the half of this record is over."""
        self._entries[id(record)] = (record, memory)
        for number, (one, _) in self._entries.copy().items():
            if one.over:
                self._entries.pop(number, None)


class Engine(Protocol):
    """Moves the packets of halves. Two of them speak the same protocol: native/engine.py and plain/engine.py."""

    name: ClassVar[str]
    kept: Kept

    @property
    def build(self) -> str: ...
    def submit(self, halves: list[Half], *, wake: bool) -> None: ...
    def submit_pair(
        self, pair: tuple[Half, Half], data: int, mine_at: int, arrived: int, step: int, *, short: bool = False
    ) -> None: ...
    def wait(self, half: Half, timeout_s: float, *, short: bool = False) -> bool: ...
    def release(self, half: Half, number: int) -> None: ...
    def over(self, half: Half) -> bool: ...
    def read(self) -> Reading: ...
    def give_up(self) -> None: ...
    def close(self, patience_s: float) -> None: ...


class Result:
    """Kept as the engine left it, in one piece; made readable when somebody reads it."""

    def __init__(self, half: Half) -> None:
        self._record, self._rows, self._arrived = bytes(half.record), half.rows(), half.arrived

    @cached_property
    def account(self) -> Account:
        record = HalfRecord.from_buffer_copy(self._record)
        ended = structures.ENDED[record.ended]
        sends, receives = (np.frombuffer(one, FLOW) if len(one) > 1 else np.zeros(0, FLOW) for one in self._rows)
        packets = receives["packets"].astype(np.int64)
        ends = np.cumsum(packets).tolist()
        # What a peer is not known to have sent the network did not lose: `known_sent` in engine.h.
        known = (receives["ended"] != 0) | (ended == "deadline")
        gone = packets - receives["count"]
        lost = np.where(known, np.maximum(receives["highest"].astype(np.int64) - receives["count"], 0), 0)
        parts = zip(receives["peer"].tolist(), ends, packets.tolist(), strict=True)
        return Account(
            half=record.half,
            step=record.step,
            ended=ended,
            seconds=(record.closed - record.first if record.first else 0) / 1e9,
            waited=(record.closed - record.began) / 1e9,
            arrived={peer: self._arrived[end - count : end] for peer, end, count in parts},
            cut=int((gone - lost).sum()),
            lost=int(lost.sum()),
            withheld=int((sends["packets"].astype(np.int64) - sends["cursor"]).sum()),
        )
