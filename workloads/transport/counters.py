"""What a rank's endpoint has seen. Losses of different causes are never added up under one name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lossbench.workloads.transport.half import Account


@dataclass
class Counters:
    """Packets, since the endpoint was made."""

    ranks: list[int]
    sent: dict[int, int] = field(init=False)  # datagrams of any kind to each peer
    received: dict[int, int] = field(init=False)  # datagrams of any kind from each peer, late and double ones included
    halves: int = 0
    reliable_halves: int = 0  # among them; the data counters below are those of the others
    data_expected: int = 0
    data_arrived: int = 0
    lost: int = 0  # the peer had sent it, it never came in time: the network
    cut: int = 0  # the deadline came first
    late: int = 0  # came after its half was over
    duplicates: int = 0
    withheld: int = 0  # not sent, the peer gave no room
    strangers: int = 0  # not of this run, or not understood
    mismatched: int = 0  # of this run, but not what this half expects: ranks disagree about the call
    resent: int = 0
    markers: int = 0
    by_deadline: int = 0  # halves that the deadline ended
    payload_bytes: int = 0  # that arrived in lossy halves: proof that bytes went the lossy way

    def __post_init__(self) -> None:
        self.sent = dict.fromkeys(self.ranks, 0)
        self.received = dict.fromkeys(self.ranks, 0)

    def closed(self, account: Account, *, reliable: bool) -> None:
        self.halves += 1
        if reliable:  # all of it arrived in the end
            self.reliable_halves += 1
            return
        for bits in account.arrived.values():
            self.data_expected += len(bits)
            self.data_arrived += int(bits.sum())
        self.lost += account.lost
        self.cut += account.cut
        self.withheld += account.withheld
        self.by_deadline += account.ended == "deadline"

    def as_json(self) -> dict[str, Any]:
        out = asdict(self)
        del out["ranks"]
        out["sent"] = [self.sent[rank] for rank in self.ranks]
        out["received"] = [self.received[rank] for rank in self.ranks]
        return out
