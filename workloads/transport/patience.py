"""When waiting makes no sense any more: one clear error instead of a hang."""

from __future__ import annotations

from collections.abc import Iterable

from lossbench.workloads.errors import TransportError
from lossbench.workloads.transport.half import Half

LONGEST_S = 0.05
FRESH = 0.25  # weight of the newest


class Answers:
    """How long peers take to answer, smoothed: asking slow ones more often makes them slower."""

    def __init__(self, peers: Iterable[int]) -> None:
        self.seconds = dict.fromkeys(peers, 0.0)

    def took(self, peer: int, seconds: float | None) -> None:
        if seconds is not None:
            self.seconds[peer] += FRESH * (min(seconds, LONGEST_S) - self.seconds[peer])


def check(half: Half, *, rank: int, heard: dict[int, float], timeout_s: float, now: float) -> None:
    """Slow peers say that they live; those that say nothing at all for `timeout_s` are gone. A lossy half goes on as
    long as one of them is there, a reliable one needs all."""
    if half.given_up_by is not None:
        raise TransportError(f"rank {rank}: rank {half.given_up_by} gave this call up")
    if half.entered > now - timeout_s:
        return
    waited = {f.peer for f in half.incoming.values() if not f.complete}
    if half.reliable:
        waited |= {f.peer for f in half.outgoing.values() if not f.finished}
    gone = sorted(peer for peer in waited if heard[peer] < now - timeout_s)
    if gone and (half.reliable or len(gone) == len(waited)):
        check_alive(gone, rank=rank, heard=heard, timeout_s=timeout_s, now=now)


def check_alive(peers: list[int], *, rank: int, heard: dict[int, float], timeout_s: float, now: float) -> None:
    if all(heard[peer] < now - timeout_s for peer in peers):
        raise TransportError(
            f"rank {rank}: no sign of life from rank {', '.join(map(str, peers))} for {timeout_s:g} s (timeout_s): "
            "did it end?"
        )
