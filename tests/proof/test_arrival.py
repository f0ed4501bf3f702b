"""When a probe came: by the kernel's stamp, whatever the machine did meanwhile."""

from __future__ import annotations

import socket
import struct

import pytest

from lossbench.proof.probe import ancillary

SECOND = 10**9
PAUSE_NS = 10_000_000


class Clocks:
    """Two clocks of a machine that is so busy that every look at one of them takes ten milliseconds."""

    def __init__(self, *, set_by_ns: int = 0) -> None:
        self.passed, self.set_by = 0, set_by_ns

    def monotonic_ns(self) -> int:
        self.passed += PAUSE_NS
        return self.passed

    def time_ns(self) -> int:
        self.passed += PAUSE_NS
        return 1_000 * SECOND + self.passed + self.set_by


def beside(wall_ns: int) -> ancillary.Ancillary:
    return [(socket.SOL_SOCKET, ancillary.SO_TIMESTAMPNS, struct.pack("<qq", *divmod(wall_ns, SECOND)))]


def test_a_pause_between_two_clocks_makes_no_packet_earlier_than_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: the wall clock was read last, what passed before it was taken for time in the socket, and packets came
    ten milliseconds before a delay of thirty was over."""
    monkeypatch.setattr(ancillary, "time", Clocks())
    came_at = 3_000_000
    assert came_at <= ancillary.came_ns(beside(1_000 * SECOND + came_at)) <= came_at + PAUSE_NS


def test_a_wall_clock_that_was_set_back_makes_no_packet_later_than_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ancillary, "time", Clocks(set_by_ns=-60 * SECOND))
    assert ancillary.came_ns(beside(1_000 * SECOND)) == 2 * PAUSE_NS
    assert ancillary.came_ns([]) == 4 * PAUSE_NS
