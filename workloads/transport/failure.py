"""Why a group broke, in one sentence."""

from __future__ import annotations

import errno
import os

from lossbench.workloads.transport import structures
from lossbench.workloads.transport.packet import wire


def sentence(failure: structures.Failure, *, rank: int, timeout_s: float) -> str:
    who = f"rank {rank}: "
    if failure.code == structures.DISAGREE:
        return who + _disagreement(failure)
    if failure.code == structures.PEER_GAVE_UP:
        return who + _gave_up(failure)
    return who + _plain(failure.code, failure.about, timeout_s, failure.error)


def absent(failure: structures.Failure) -> int | None:
    """Who is gone, if that is why."""
    why = failure.error if failure.code == structures.PEER_GAVE_UP else failure.code
    return int(failure.about) if why in (structures.SILENT, structures.PEER_LEFT) else None


def _plain(code: int, about: int, timeout_s: float, error: int) -> str:
    if code == structures.SILENT:
        return f"no sign of life from rank {about} for {timeout_s:g} s (timeout_s): did it end?"
    if code == structures.PEER_LEFT:
        return f"rank {about} has left the group, and this call needs it"
    if code == structures.SOCKET_ERROR:
        return f"the socket failed: {os.strerror(error)}"
    if code == structures.UNSENDABLE and error == errno.EMSGSIZE:
        return f"packets to rank {about} no longer fit the way there: its MTU has fallen since the group met"
    if code == structures.UNSENDABLE:
        return f"this host takes no packets to rank {about} for {timeout_s:g} s (timeout_s): {os.strerror(error)}"
    return "aborted"


def _gave_up(failure: structures.Failure) -> str:
    said = f"rank {failure.rank} gave this call up"
    if failure.error == structures.SILENT:
        return f"{said}: it has no sign of life from rank {failure.about}"
    if failure.error == structures.DISAGREE:
        return f"{said}: it and rank {failure.about} do not make the same call"
    if failure.error == structures.UNSENDABLE:
        return f"{said}: its host does not take its packets to rank {failure.about} (the MTU, a route, a firewall)"
    if failure.error == structures.PEER_LEFT:
        return f"{said}: rank {failure.about} has left the group"
    return said


def _disagreement(failure: structures.Failure) -> str:
    mine, theirs = failure.mine, failure.theirs
    words = [wire.described(one.dtype, one.size, one.step) for one in (mine, theirs)]
    if words[0] == words[1]:
        words = [
            f"{word}, half {one.half}, block {one.block}, {count} bytes"
            for word, one, count in zip(words, (mine, theirs), (failure.my_bytes, failure.their_bytes), strict=True)
        ]
    return f"disagrees with rank {failure.rank} about call {mine.sequence}: {words[0]} here, {words[1]} there"
