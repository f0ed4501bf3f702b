"""When a probe came: by the kernel's stamp, whatever the machine did meanwhile."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace

import pytest

from lossbench import contract
from lossbench.proof.probe import ancillary, datagram
from lossbench.proof.probe.exchange import DRAIN_BYTES, STAMP_AT, Exchange
from lossbench.proof.probe.flows import plan
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import rules_in_force
from lossbench.spec.userfile import check

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


class Socket:
    """In which reads wait, each with packets of (flow, number, sent at)."""

    def __init__(self, exchange: Exchange, reads: list[list[tuple[int, int, int]]], beside_them: list[bytes]) -> None:
        self.waiting = [b"".join(packet(exchange, *one) for one in read) for read in reads] + beside_them

    def recvmsg(self, *_: int) -> tuple[bytes, ancillary.Ancillary, int, tuple[str, int]]:
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.pop(0), [], 0, ORIGIN


ORIGIN = ("10.0.0.1", 4000)


def packet(exchange: Exchange, flow: int, number: int, sent_ns: int) -> bytes:
    one = exchange.flows[min(flow, 1)]
    header = contract.Header(
        kind=contract.KINDS["probe"],
        tag=exchange.token + flow,
        source=one.source.rank,
        destination=one.destination.rank,
        step=one.step,
        half=one.half,
        block=0,
        chunk=number,
    )
    data = bytearray(datagram.payload(header, size=exchange.size))
    data[STAMP_AT : STAMP_AT + 8] = struct.pack("<Q", sent_ns)
    return bytes(data)


def test_what_is_read_at_once_is_told_apart_by_flow_and_waited_for_by_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ancillary, "came_ns", lambda _: 9 * SECOND)
    experiment = check(Experiment, {"name": "t", "topology": {"hosts": 2}, "impair": []}, origin="test")
    (flow, *_), _ = plan(rules_in_force(experiment, seed=1), experiment.topology)
    exchange = Exchange([flow, replace(flow, step=1)], place_of=lambda _: None, payload_bytes=200, token=1 << 20)  # type: ignore[arg-type,return-value]
    exchange.origins = {0: ORIGIN, 1: ORIGIN}
    at = [8 * SECOND, 7 * SECOND, 6 * SECOND]
    reads = [[(0, 0, at[0]), (1, 5, at[1]), (0, 1, at[2])], [(1, 4, at[2])], [(7, 0, at[0])]]
    waiting = Socket(exchange, reads, [b"", b"x" * 199])
    exchange._receivers[(flow.destination.rank, 4, 0, "udp")] = waiting  # type: ignore[assignment]
    heard = exchange.begun(10)
    assert exchange.drain(heard) == 4, "neither a stranger's nor what is no packet of ours"
    assert [one.sequence().tolist() for one in heard] == [[0, 1], [5, 4]]
    assert [one.delays_ms for one in heard] == [[1000.0], [2000.0, 3000.0]]
    assert [one.wrong_headers for one in heard] == [0, 0]


def test_what_came_while_nobody_read_is_not_held_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: a thousand reads were joined, 64 MB where each brought what a segment of a link holds."""
    monkeypatch.setattr(ancillary, "came_ns", lambda _: 9 * SECOND)
    experiment = check(Experiment, {"name": "t", "topology": {"hosts": 2}, "impair": []}, origin="test")
    (flow, *_), _ = plan(rules_in_force(experiment, seed=1), experiment.topology)
    exchange = Exchange([flow], place_of=lambda _: None, payload_bytes=1000, token=1 << 20)  # type: ignore[arg-type,return-value]
    exchange.origins = {0: ORIGIN}
    read = b"".join(packet(exchange, 0, number, 0) for number in range(64))
    exchange._receivers[flow.destination.rank, 4, 0, "udp"] = Socket(exchange, [], [read] * 200)  # type: ignore[assignment]
    joined, real = [], exchange._account
    monkeypatch.setattr(
        exchange, "_account", lambda *a, **k: joined.append(sum(len(data) for data, _ in a[1])) or real(*a, **k)
    )
    heard = exchange.begun(64)
    assert sum(exchange.drain(heard) for _ in range(10)) == 64 * 200
    assert sum(joined) == 64_000 * 200 and max(joined) < DRAIN_BYTES + (1 << 16)
