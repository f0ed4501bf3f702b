"""The evidence of a proof: what the kernel counted, what receivers missed, and the row that sets them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from lossbench.net.conservation import Between
from lossbench.net.counters import Reading, RuleCounters
from lossbench.proof.verdict import Judgement
from lossbench.spec.lossmodel import Bits
from lossbench.spec.placement import UNTAKEN, Hook, Rule

NotJudged: TypeAlias = tuple[tuple[str, str], ...]  # condition, and what of it no probe could show


@dataclass(frozen=True, kw_only=True)
class FlowSeen:
    """One probe flow and what its receiver missed. `blocks[i]` is packet i's block number."""

    name: str
    uplink: tuple[Hook, Rule | None]
    downlink: tuple[Hook, Rule | None]
    missing: Bits
    duplicates: int = 0
    reordered: int = 0
    delays_ms: tuple[float, ...] = ()
    clock_ms: float = 0.0  # that the clocks of both ends may differ by
    sender_ms: float = 0.0  # by how much the sender of the spaced probes was late itself, half of the time or more
    wire_ms: float = 0.0  # likewise, by how much wires in user space say that they were
    header: dict[str, int] = field(default_factory=dict)
    blocks: tuple[int, ...] = ()

    @property
    def sent(self) -> int:
        return len(self.missing)

    @property
    def lost(self) -> int:
        return int(self.missing.sum())


@dataclass(frozen=True, kw_only=True)
class Row:
    """The four figures side by side."""

    hook: str
    rule: str
    asked: float
    read_back: float | None
    kernel_seen: int | None  # None: the backend's counters can't tell this rule apart
    kernel_dropped: int | None
    receiver_sent: int
    receiver_missing: int
    burst_asked: float | None  # None: no end to it
    burst_seen: float | None
    p_value: float | None
    exact: bool | None  # the pattern equals the prediction packet by packet; None if it is not predictable
    duplicates: int = 0
    reordered: int = 0
    delay_ms_p50: float | None = None
    delay_ms_p25: float | None = None
    delay_ms_p75: float | None = None
    burst_counts: tuple[
        int, ...
    ] = ()  # bursts of 1, 2, ... packets, the last of them "or longer"; only this rule's own
    burst_shares: tuple[float, ...] = ()  # the same, as asked
    pattern: int | None = None  # seed of a predictable pattern: rows with the same show the same losses

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def foils_among(rows: Sequence[Row]) -> list[Row]:
    """Those of probes that no rule may take, where there are rules: they say nothing of what was asked."""
    ruled = {row.hook for row in rows if row.rule != UNTAKEN}
    return [row for row in rows if row.rule == UNTAKEN and row.hook in ruled]


@dataclass(frozen=True, kw_only=True)
class Proof:
    rows: tuple[Row, ...]
    judgement: Judgement
    not_judged: NotJudged = ()


Counts = dict[tuple[Hook, str], RuleCounters]  # by hook and rule label, "none" for what no rule took


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the probes showed. `bystanders`: other traffic may have been on the wire; `begins_good`: channels of this
    backend begin in their good state."""

    flows: list[FlowSeen]
    counts: Counts
    read_back: dict[tuple[Hook, str], float | None] = field(default_factory=dict)
    overflow: int = 0
    between: Between = field(default_factory=lambda: Between(Reading(), Reading()))
    bystanders: bool = False
    begins_good: bool = False
    not_judged: NotJudged = ()
