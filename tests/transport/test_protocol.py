"""Who is slow, gone, a stranger or a liar: the protocol goes on, or ends with one clear error."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import re
import shutil
import socket
import struct
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import c_char_p, c_int64, c_uint32, c_void_p
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossbench.contract import HEADER_BYTES, Header
from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.context import Group
from lossbench.workloads.collective.reduce import all_reduce, ask_all_reduce, reduce_scatter
from lossbench.workloads.errors import PolicyError, TransportError
from lossbench.workloads.transport import meeting
from lossbench.workloads.transport.endpoint import Endpoint
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.native import build
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.packet.tag import Tags
from lossbench.workloads.transport.plan import address
from lossbench.workloads.transport.policy import Policy
from lossbench.workloads.transport.udp.admission import (
    ALL_BITS,
    IF_EQUAL,
    INSTRUCTION_BYTES,
    LOAD_HALF,
    RETURN,
    SO_ATTACH_FILTER,
)
from lossbench.workloads.transport.udp.link import Link
from tests.forms import forms, full
from tests.shared import dissect_frame

from .conftest import Make, Ranks, Store, make_ranks

F32 = CODECS["float32"]
QUICK = Policy(timeout_s=2)
SO_RCVBUFFORCE = 33
KINDS: dict[str, Callable[[Group], object]] = {
    "all_reduce": lambda group: summed(group),
    "reduce_scatter": lambda group: reduce_scatter(group, np.ones(3000, np.float32), codec=F32, op="avg"),
    "barrier": exchange.barrier,
    "broadcast": lambda group: exchange.broadcast(group, np.zeros(5000, np.uint8), root=1),
    "integers": lambda group: all_reduce(group, np.ones(3000, np.int64), codec=CODECS["int64"], lossy=False),
}


def summed(group: Group, count: int = 20_000) -> np.ndarray:
    mine = np.full(count, float(group.endpoint.rank + 1), np.float32)
    all_reduce(group, mine, codec=F32)
    return mine


def fall_silent(ranks: Ranks, rank: int) -> None:
    """As if it were dead: nothing that it says reaches the others any more."""
    for other, group in enumerate(ranks.groups):
        if other != rank:
            peers = [place for peer, place in group.endpoint.peers.items() if peer != rank]
            group.endpoint.link.admit_only(peers or [("127.0.0.1", 9)])


def errors_of(ranks: Ranks, jobs: dict[int, Callable[[Group], object]]) -> dict[int, str]:
    futures = {rank: ranks.start(rank, job) for rank, job in jobs.items()}
    return {rank: str(future.exception(120)) for rank, future in futures.items()}


# --- slow is not lost -------------------------------------------------------------------------------------------------


def test_a_slow_peer_is_not_a_loss(ranks: Make) -> None:
    """It comes seconds later; its engine says that it lives."""
    made = ranks(3, policy=QUICK)
    early = [made.start(rank, summed) for rank in (0, 1)]
    time.sleep(2.5)
    late = made.start(2, summed)
    for future in (*early, late):
        assert np.array_equal(future.result(120), np.full(20_000, 6.0, np.float32))
    assert all(group.endpoint.read()["cut"] == 0 for group in made.groups)


def test_packets_of_a_later_half_are_kept(ranks: Make) -> None:
    """One rank submits five calls at once, the other comes later and finds what was sent."""
    made = ranks(2)
    first = [made.start(0, lambda g: summed(g, 50_000)) for _ in range(5)]
    time.sleep(0.2)
    second = [made.start(1, lambda g: summed(g, 50_000)) for _ in range(5)]
    for future in (*first, *second):
        assert np.array_equal(future.result(120), np.full(50_000, 3.0, np.float32))


def test_a_call_that_takes_longer_than_seconds_loses_nothing(ranks: Make) -> None:
    """As it was: a ceiling of two seconds cut whatever was larger."""
    made = ranks(3, policy=Policy(pace="60", timeout_s=20))
    start = time.monotonic()
    for got in made.all(lambda group: summed(group, 7_000_000)):
        assert np.all(got == 6.0)
    assert time.monotonic() - start > 4, "this is about calls that take long"
    assert all(group.endpoint.read()["cut"] == 0 for group in made.groups)


def test_a_rank_that_holds_the_interpreter_costs_nobody_a_number(ranks: Make) -> None:
    """As it was: nine wrong sums in a row after a long sort."""
    made = ranks(3, policy=Policy(timeout_s=20))
    values = np.random.default_rng(0).random(3_000_000).tolist()
    futures = [made.start(rank, summed) for rank in (0, 1) for _ in range(3)]
    sorted(values)  # one step of the interpreter: nothing else in this process runs Python
    futures += [made.start(2, summed) for _ in range(3)]
    for future in futures:
        assert np.all(future.result(120) == 6.0)


def test_what_comes_early_costs_the_thousandth_packet_no_more_than_the_first() -> None:
    """As it was: each walked past all those before it, and 160 MB of them held the engine for 20 s."""
    if isinstance(build.load(), str):
        pytest.skip(f"no compiled engine: {build.load()}")
    made = make_ranks(2)
    try:
        engine: Any = made.groups[0].endpoint.engine
        if made.groups[0].endpoint.link.window_bytes(1) < 2 << 20:
            pytest.skip("needs a receive buffer of 6 MB (root, or sysctl net.core.rmem_max)")
        keep = build.load().keep_early  # type: ignore[union-attr]
        keep.restype, keep.argtypes = None, [c_void_p, c_uint32, c_char_p, c_uint32, c_uint32, c_int64]
        packet = Header(kind=wire.DATA, tag=0, source=1, destination=0, sequence=7).pack() + bytes(60)

        def seconds(count: int) -> float:
            begun = time.process_time()
            for _ in range(count):
                keep(engine._engine, 1, packet, len(packet), len(packet), 0)
            return time.process_time() - begun

        first, _, last = seconds(1000), seconds(30_000), seconds(1000)
        assert last < 15 * first, (first, last)
        assert made.groups[0].endpoint.read()["early"] == 0, "all of them were kept"
    finally:
        made.close()


# --- dead is not slow -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_peer_ends_every_kind_of_call_and_is_named(ranks: Make, kind: str) -> None:
    """On every survivor, also on one that does not need it itself. As it was: 1377 more steps without an error."""
    made = ranks(3, policy=QUICK)
    made.all(KINDS[kind])
    fall_silent(made, 2)
    start = time.monotonic()
    found = errors_of(made, {0: _until_it_ends(KINDS[kind]), 1: _until_it_ends(KINDS[kind])})
    assert all("no sign of life from rank 2" in text for text in found.values()), found
    assert any("(timeout_s): did it end?" in text for text in found.values())
    assert time.monotonic() - start < 60, "and not after a minute's default"


def _until_it_ends(kind: Callable[[Group], object]) -> Callable[[Group], object]:
    """Some calls (a broadcast) do not need everybody; the next ones do."""

    def job(group: Group) -> None:
        kind(group)
        for _ in range(3):
            summed(group)

    return job


def test_a_deadline_cuts_halves_but_never_hides_the_dead(ranks: Make) -> None:
    """Whoever asks for a deadline loses parts, and is still told in the end."""
    made = ranks(3, policy=Policy(timeout_s=2, deadline_ms=100))
    made.all(summed)
    fall_silent(made, 2)
    cut: list[int] = []

    def many(group: Group) -> None:
        for _ in range(1000):
            summed(group)
            cut.append(group.endpoint.read()["cut"])

    found = errors_of(made, {0: many, 1: many})
    assert cut and max(cut) > 0
    assert all("no sign of life from rank 2" in text for text in found.values()), found


def test_whoever_is_not_there_yet_costs_one_deadline(ranks: Make) -> None:
    """Its engine says so all the while. As it was: that counted as progress, and the deadline was that of the late one;
    then the second half waited for the same rank again."""
    made, seconds = ranks(3, policy=Policy(timeout_s=120, deadline_ms=300)), []
    long = partial(summed, count=400_000)  # more than there is room for at once
    for _ in range(3):
        early = [made.start(rank, long) for rank in (0, 1)]
        for future in early:
            future.result(60)  # it comes when they are through
        assert {account.ended for account in made.groups[0].accounts} == {"deadline"}
        seconds.append(made.groups[0].accounts[1].seconds)
        made.start(2, long).result(60)
    assert min(seconds) < 0.3, "the second half of a call goes on without whom the first one gave up"
    counted = [group.endpoint.read() for group in made.groups]
    assert all(one["lost"] == 0 for one in counted), "nothing was lost on any network"
    assert counted[0]["cut"] > 0 and counted[2]["cut"] > 0


@pytest.mark.parametrize("count", [2000, 400_000])
def test_whoever_is_early_alone_waits_for_one_deadline(ranks: Make, count: int) -> None:
    """And sends what there is room for. As it was: nothing ended before something had come, however late that was."""
    made, job = ranks(2, policy=Policy(timeout_s=120, deadline_ms=200)), partial(summed, count=count)
    for _ in range(2):
        early = made.start(0, job).result(30)
        assert np.all(early == 2.0), "its own numbers, instead of the sum"
        assert {account.ended for account in made.groups[0].accounts} == {"deadline"}
        late = made.start(1, job).result(60)
        assert late[count // 2] == 3.0, "what it owns begins with what was sent to it"
        assert late[0] == 2.0, "and so does the other's block"
    until = time.monotonic() + 60
    while not _cut_is_withheld_or_late(found := _total(made)):
        assert time.monotonic() < until, found  # what is late may still wait to be read
        time.sleep(0.01)
    assert found["lost"] == found["early"] == 0


def test_whoever_waits_for_its_own_numbers_is_not_late(ranks: Make) -> None:
    """They come from a GPU, as soon as that has computed them."""
    made, count = ranks(2), 2000

    def held(group: Group) -> bool:
        mine = np.ones(count, np.float32)
        plan, group.endpoint.deadline_s = group.plan(group.endpoint.even(count), F32), 0.1
        asked = ask_all_reduce(group, address(mine), plan=plan, held=True, holds=mine)
        time.sleep(0.4)
        ended = group.endpoint.over(asked.halves[0])
        group.endpoint.engine.release(asked.halves[0], 0)
        exchange.finish(group, asked)
        return ended

    futures = [made.start(0, held), made.start(1, partial(summed, count=count))]
    assert not futures[0].result(60)
    futures[1].result(60)


def test_what_was_sent_whole_and_lost_is_lost_although_less_was_sent_of_the_next(ranks: Make) -> None:
    """Nothing of it came, and the next word is of a half that was withheld: it no longer says that those before were
    sent whole. As it was: the whole of the first one was called cut for ever."""
    made = _withheld_while_deaf(ranks)
    deaf = made.groups[2].endpoint
    deaf.link.admit_only(deaf.peers.values())
    made.start(2, LONG).result(60)
    made.all(summed)
    _wait_for_books(made)


def test_a_sender_that_leaves_says_first_how_much_it_had_sent(ranks: Make) -> None:
    """As it was: it said that it left, and what had been lost of its last halves was called cut for ever."""
    made = _withheld_while_deaf(ranks)
    deaf = made.groups[2].endpoint
    made.start(2, LONG).result(60)
    deaf.link.admit_only(deaf.peers.values())
    made.groups[0].endpoint.close()
    _wait_for_books(made)


LONG = partial(summed, count=400_000)  # more than there is room for at once


def _withheld_while_deaf(ranks: Make) -> Ranks:
    """What rank 0 sends to rank 2 is lost: all of a call, then some of one that is given up."""
    made = ranks(3, policy=Policy(timeout_s=120, deadline_ms=300))
    made.all(summed)
    deaf = made.groups[2].endpoint
    deaf.link.admit_only([deaf.peers[1]])
    made.all(summed)
    for future in [made.start(rank, LONG) for rank in (0, 1)]:
        future.result(60)
    return made


def _wait_for_books(ranks: Ranks) -> None:
    until = time.monotonic() + 30
    while not (found := _booked(ranks))[0] and time.monotonic() < until:
        time.sleep(0.05)
    assert found[0], found


def _booked(ranks: Ranks) -> tuple[bool, dict[str, int]]:
    """Whether what is not here was withheld, or came late, or was lost; and the books. What did not fit a socket on a
    busy machine was sent, and is lost: it moves nothing of what is cut."""
    total = _total(ranks)
    right = total["lost"] > 0 and total["withheld"] > 0 and _cut_is_withheld_or_late(total)
    return right and total["early"] == 0, total


def _total(ranks: Ranks) -> dict[str, int]:
    counted = [group.endpoint.read() for group in ranks.groups]
    names = ("data_expected", "data_arrived", "lost", "cut", "withheld", "late", "early", "overflow")
    return {name: sum(one[name] for one in counted) for name in names}


def _cut_is_withheld_or_late(total: dict[str, int]) -> bool:
    return total["cut"] == total["withheld"] + total["late"]


@full
def test_a_sender_that_still_sends_is_not_cut_off_by_its_own_deadline(ranks: Make) -> None:
    """Slow, as it was asked to be. As it was: its own packets were no progress, and 1184 of them stayed with it."""
    made = ranks(2, policy=Policy(timeout_s=120, deadline_ms=1000, pace="2"))

    def job(group: Group) -> np.ndarray:  # all of it goes from 0 to 1
        values = np.full(150_008, group.endpoint.rank + 1.0, np.float32)
        return reduce_scatter(group, values, codec=F32, counts=(8, 150_000))

    assert np.all(made.all(job)[1] == 3.0)
    counted = [group.endpoint.read() for group in made.groups]
    assert [(one["withheld"], one["cut"], one["lost"]) for one in counted] == [(0, 0, 0)] * 2


def test_whoever_only_sends_more_than_there_is_room_for_hears_of_the_dead(ranks: Make) -> None:
    """It owns nothing, and waits for room alone."""
    made = ranks(2, policy=Policy(timeout_s=1))
    made.all(exchange.barrier)
    fall_silent(made, 0)
    much = np.ones(400_000, np.float32)
    found = errors_of(made, {1: lambda group: reduce_scatter(group, much, codec=F32, counts=(len(much), 0))})
    assert "no sign of life from rank 0 for 1 s" in found[1]


def test_a_peer_that_left_is_named_at_once(ranks: Make) -> None:
    made = ranks(3)
    made.all(summed)
    made.groups[2].endpoint.close()
    start = time.monotonic()
    found = errors_of(made, {0: summed, 1: summed})
    assert all("rank 2 has left the group" in text for text in found.values()), found
    assert time.monotonic() - start < 30, "nobody waits for the timeout"


def test_a_failure_is_told_again_until_it_is_heard_also_by_whoever_ends_with_it(ranks: Make) -> None:
    """As it was: told once. Whoever lost that packet took the one who told it for the dead."""
    made = ranks(2, policy=QUICK)
    ends = [group.endpoint for group in made.groups]
    waiting = made.start(1, summed)
    with deaf_at_first(ends[1]):
        ends[0].engine.give_up()
        closing = threading.Thread(target=ends[0].close)
        closing.start()
    assert "rank 0 gave this call up" in str(waiting.exception(30))
    closing.join()


def test_a_goodbye_is_said_again_until_it_is_heard(ranks: Make) -> None:
    """As it was: said once. Whoever lost that packet waited for `timeout_s`, and spoke of silence."""
    made = ranks(2, policy=QUICK)
    made.all(summed)
    ends = [group.endpoint for group in made.groups]
    with deaf_at_first(ends[1]):
        closing = threading.Thread(target=ends[0].close)
        closing.start()
    closing.join()
    assert "rank 0 has left the group" in str(made.start(1, summed).exception(30))


@contextmanager
def deaf_at_first(end: Endpoint) -> Iterator[None]:
    """To what is said next."""
    end.link.admit_only([("127.0.0.1", 9)])
    before = end.link.turned_away()
    yield
    until = time.monotonic() + 60
    while end.link.turned_away() == before and time.monotonic() < until:
        time.sleep(0.001)
    end.link.admit_only(list(end.peers.values()))


def test_a_marker_that_comes_again_early_takes_no_more_room() -> None:
    """As it was: every repeat was counted for ever, and after some hundred of them nothing early was kept."""
    made = make_ranks(2, engines=["plain", "plain"])
    try:
        engine: Any = made.groups[0].endpoint.engine
        for repeat in range(1000):
            engine.keep_early(engine.next + 1, 1, bytes([repeat % 256]) * 104)
        assert engine.early_bytes == 104
    finally:
        made.close()


def test_an_early_marker_is_held_since_it_came_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest is answered. As it was: numpy did not say that it had been held at all; in C, since the first of
    them: whoever asked took the way for one of no length."""
    made, held = make_ranks(2, engines=["plain", "plain"]), list[tuple[float, float]]()
    try:
        engine: Any = made.groups[1].endpoint.engine
        keep, reply, came = engine.keep_early, engine._reply, list[float]()

        def kept(sequence: int, rank: int, rows: object) -> None:
            came.append(time.monotonic()) if isinstance(rows, bytes) else None
            keep(sequence, rank, rows)

        def said(rank: int, like: Header, bits: bytes = b"", **fields: Any) -> None:
            if came and fields.get("held_us"):
                held.append((fields["held_us"] / 1e6, time.monotonic() - came[-1]))
            reply(rank, like, bits, **fields)

        monkeypatch.setattr(engine, "keep_early", kept)
        monkeypatch.setattr(engine, "_reply", said)
        early = made.start(0, summed)
        while len(came) < 3:
            time.sleep(0.01)
        time.sleep(0.02)
        made.start(1, summed).result(60)
        early.result(60)
        assert held and held[0][0] == pytest.approx(held[0][1], abs=0.01)
    finally:
        made.close()


def test_a_stuck_reliable_transfer_asks_ever_more_slowly(ranks: Make) -> None:
    """As it was: 68,484 resends of 4 kB in 30 s."""
    made = ranks(2, policy=Policy(timeout_s=3))
    made.all(exchange.barrier)
    fall_silent(made, 1)
    errors_of(made, {0: lambda group: exchange.broadcast(group, np.ones(4096, np.uint8), root=0)})
    counters = made.groups[0].endpoint.read()
    assert counters["resent"] == 0 and counters["markers"] < 300


def test_a_job_that_fails_between_its_halves_ends_on_all_ranks_and_says_so_ever_after(ranks: Make) -> None:
    """The ranks no longer agree which half comes next: never go on with wrong numbers."""
    made = ranks(2, policy=QUICK)
    made.all(exchange.barrier)

    def fails(group: Group) -> None:
        exchange.barrier(group)
        raise ValueError("a job of ours went wrong")

    def fine(group: Group) -> None:
        exchange.barrier(group)
        exchange.barrier(group)

    good = made.start(0, fine)
    with pytest.raises(ValueError, match="went wrong"):
        made.start(1, fails).result(120)
    with pytest.raises(TransportError, match="broke in an earlier call: a job of ours went wrong"):
        made.start(1, exchange.barrier).result(120)
    with pytest.raises(TransportError, match="rank 1 gave this call up"):
        good.result(120)


def test_a_mistake_before_anything_was_sent_breaks_nothing(ranks: Make) -> None:
    made = ranks(2)

    def mistaken(group: Group) -> None:
        raise NotImplementedError("no such type")

    for _ in range(40):  # as it was: result threads died after 25
        for rank in (0, 1):
            with pytest.raises(NotImplementedError):
                made.start(rank, mistaken).result(120)
    assert np.array_equal(made.all(summed)[0], np.full(20_000, 3.0, np.float32))


def test_a_closed_group_takes_no_more_calls(ranks: Make) -> None:
    made = ranks(2)
    made.close()
    with pytest.raises(TransportError, match="this group is closed"):
        made.all(summed)


def test_a_closed_group_leaves_no_thread_and_no_descriptor(ranks: Make) -> None:
    def held() -> tuple[int, int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    for _ in range(2):  # what is loaded and cached on first use is there after the first
        before = held()
        made = make_ranks(3)
        made.all(summed)
        made.close()
    until = time.monotonic() + 60  # a thread that was joined is listed for a moment
    while any(now > then for now, then in zip(held(), before, strict=True)):
        assert time.monotonic() < until, (held(), before)
        time.sleep(0.05)


def test_calls_after_a_fork_say_so(ranks: Make) -> None:
    made = ranks(2)
    made.all(summed)
    child = os.fork()
    if not child:
        try:
            made.groups[0].endpoint.begin(lambda: None)
        except TransportError as error:
            os._exit(0 if "belongs to the process that was forked" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- disagreement -----------------------------------------------------------------------------------------------------


def _step(number: int) -> Callable[[Group], object]:
    def job(group: Group) -> object:
        group.endpoint.step = number
        return summed(group)

    return job


DISAGREEMENTS: dict[str, tuple[Callable[[Group], object], Callable[[Group], object], str]] = {
    "size": (lambda g: summed(g, 10_000), lambda g: summed(g, 10_100), "of 10100 float32 elements"),
    "dtype": (
        lambda g: summed(g, 10_000),
        lambda g: all_reduce(g, np.zeros(10_000, np.uint16), codec=CODECS["bfloat16"]),
        "of 10000 bfloat16 elements",
    ),
    "step": (_step(3), _step(4), "in step 4"),
    "operation": (
        lambda g: summed(g, 10_000),
        lambda g: all_reduce(g, np.zeros(10_000, np.float32), codec=F32, op="avg"),
        "reduction .avg. of 10000",
    ),
    "order": (exchange.barrier, lambda g: summed(g, 10_000), "reduction .sum. of 10000"),
    "bytes": (
        lambda g: exchange.exchange(g, send={}, receive={1: np.zeros(999, np.uint8)}),
        lambda g: exchange.exchange(g, send={0: np.zeros(1000, np.uint8)}, receive={}),
        "1000 bytes",
    ),
}


@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_ranks_that_disagree_are_told_on_both_ends(ranks: Make, what: str) -> None:
    """As it was: wrong values, an endless hang, or everything "lost"."""
    made = ranks(2, policy=Policy(timeout_s=10))
    made.all(exchange.barrier)
    one, other, described = DISAGREEMENTS[what]
    found = errors_of(made, {0: one, 1: other})
    for rank, text in found.items():
        assert f"rank {rank}: disagrees with rank {1 - rank}" in text, found
        assert " here, " in text and text.endswith("there")
    if what != "order":  # there each side sees the other's first packet only
        import re

        assert re.search(described, found[0]), found


def test_whoever_does_not_disagree_is_told_too(ranks: Make) -> None:
    made = ranks(3, policy=Policy(timeout_s=10))
    made.all(exchange.barrier)
    small: Callable[[Group], object] = lambda g: summed(g, 9_000)  # noqa: E731
    found = errors_of(made, {0: small, 1: small, 2: lambda g: summed(g, 9_300)})
    assert all("disagree" in text or "do not make the same call" in text for text in found.values()), found


# --- many -------------------------------------------------------------------------------------------------------------


@forms("pump", ["compiled", "python"], indirect=True)
def test_sixty_four_ranks_of_one_address_give_right_sums(pump: str) -> None:
    """As it was: 65 s, 1.3 million markers, wrong sums."""
    world, calls = 64 if pump == "compiled" else 24, 2
    made = make_ranks(world, policy=Policy(timeout_s=60))
    try:
        for _ in range(calls):
            for got in made.all(lambda group: summed(group, 16_384)):
                assert np.all(got == world * (world + 1) / 2)
        flows = 2 * calls * world * (world - 1)
        markers = sum(group.endpoint.read()["markers"] for group in made.groups)
        assert markers < 20 * flows, "control grows with the flows, not faster"
    finally:
        made.close()


@full
@forms("pump", ["compiled", "python"], indirect=True)
def test_hundreds_of_groups_on_one_address(pump: str) -> None:
    """As it was: the 17th group of 4 ranks found no port."""
    groups = [make_ranks(4) for _ in range(40 if pump == "compiled" else 18)]
    try:
        for made in (groups[0], groups[-1]):
            assert all(np.all(got == 10.0) for got in made.all(lambda group: summed(group, 1000)))
    finally:
        for made in groups:
            made.close()


def test_groups_over_ipv6(pump: str) -> None:
    made = make_ranks(2, addresses=["::1", "::1"])
    try:
        assert all(np.all(got == 3.0) for got in made.all(summed))
    finally:
        made.close()


# --- measured loss, memory --------------------------------------------------------------------------------------------


def test_one_bad_half_does_not_mislead_the_measured_loss(ranks: Make) -> None:
    """The normaliser `expected` divides by 1-p: p is measured over packets, per peer, and bounded."""
    group = ranks(2).groups[0]

    def half(arrived: int, total: int) -> Account:
        bits = np.arange(total) < arrived
        return Account(half=0, step=0, ended="markers", seconds=0, arrived={1: bits}, cut=0, lost=0, withheld=0)

    group.measure(half(0, 1))
    assert group.loss[1] < 0.06
    for _ in range(50):
        group.measure(half(900, 1000))
    assert group.loss[1] == pytest.approx(0.1, abs=0.005)
    for _ in range(300):
        group.measure(half(0, 1000))
    assert group.loss[1] == 0.9


def test_memory_of_a_finished_call_is_not_held(ranks: Make) -> None:
    made = ranks(2)
    watched = []

    def job(group: Group) -> None:
        mine = np.ones(50_000, np.float32)
        watched.append(weakref.ref(mine))
        all_reduce(group, mine, codec=F32)

    for _ in range(12):
        made.all(job)
    until = time.monotonic() + 60
    while sum(reference() is not None for reference in watched) > 2:
        assert time.monotonic() < until
        time.sleep(0.05)
        gc.collect()


# --- strangers --------------------------------------------------------------------------------------------------------


def test_a_stranger_spraying_the_port_changes_nothing(ranks: Make) -> None:
    made = ranks(2)
    generator = np.random.default_rng(1)
    target = made.groups[0].endpoint.link.address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for number in range(600):
            noise = generator.integers(0, 256, int(generator.integers(0, 1472))).astype(np.uint8).tobytes()
            if number % 3 == 0:  # our header, or a rank that does not exist
                noise = Header(kind=number % 7, tag=number, source=number % 11, destination=0).pack() + noise[:100]
            stranger.sendto(noise, target)
            if number % 100 == 0:
                for got in made.all(summed):
                    assert np.array_equal(got, np.full(20_000, 3.0, np.float32))
    made.all(exchange.barrier)
    counters = made.groups[0].endpoint.read()
    assert counters["strangers"] > 300 and counters["overflow"] == 0


def packets_of(end: Endpoint, *, source: int, tags: Tags | None, behind: int = 0) -> list[bytes]:
    """Data and markers of the first halves to come, as `source` would send them; `tags`: of whoever has the key."""
    poison = np.full((end.datagram_bytes - HEADER_BYTES) // 4, 1e6, np.float32).tobytes()
    out = []
    for sequence in range(4):
        head = Header(
            kind=wire.DATA,
            tag=0,
            source=source,
            destination=end.rank,
            sequence=sequence,
            step=end.step,
            half=sequence % 2,
            dtype=wire.signature("float32", "sum"),
            size=20_000,
            behind=behind,
        )
        bodies = [(head.pack()[: wire.PREFIX_BYTES] + chunk.to_bytes(4, "little"), poison) for chunk in range(30)]
        marker = Header(**{**head.__dict__, "kind": wire.MARKER}).pack()
        bodies.append((marker, wire.Control(number=7, packets=28, sent=28, size=40_000, extra=wire.DATA).pack()))
        out += [tags.stamped(header + body) if tags else header + body for header, body in bodies]
    return out


def test_markers_that_piled_up_while_a_rank_slept_do_not_end_what_is_to_be_repaired(ranks: Make) -> None:
    """As it was: of 33 in a row each counted as a repair in vain, and a call was over with nothing of the other's."""
    made = ranks(2, policy=Policy(repair=0.9, timeout_s=2))
    end, peer = made.groups[0].endpoint, made.groups[1].endpoint
    packets = -(-40_000 // ((end.datagram_bytes - HEADER_BYTES) // 8 * 8))
    early = made.start(0, summed)
    for half in (0, 1):
        time.sleep(0.3)
        head = Header(kind=wire.ACK, tag=0, source=1, destination=0, sequence=half, half=half, block=half, size=20_000)
        head = replace(head, step=end.step, dtype=wire.signature("float32", "sum"))
        said = wire.Control(packets=packets, sent=packets, size=40_000, extra=wire.DATA)
        for number in range(40):  # that it has got all, and then whether what it sent has come, again and again
            said = said._replace(number=1000 + 40 * half + number, state=0 if number else wire.FINISHED)
            packet = replace(head, kind=wire.MARKER if number else wire.ACK).pack() + said.pack()
            peer.link.send(Tags(end.key, whole=False).stamped(packet), end.link.address)
    time.sleep(0.3)
    assert end.read()["received"][1] >= 80 and not early.done()


@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.usefixtures("ethernet")
def test_a_datagram_with_the_right_tag_from_another_port_does_not_count(
    ranks: Make, filtered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: one such datagram turned 3.0 into 1000001.0. The socket's filter is about room, and may be missing."""
    if not filtered:
        monkeypatch.setattr(Link, "admit_only", lambda *_: False)
    made = ranks(2)
    end = made.groups[0].endpoint
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        packets = packets_of(end, source=1, tags=Tags(end.key, whole=False))
        for packet in packets:
            stranger.sendto(packet, end.link.address)
        for got in made.all(summed):
            assert np.array_equal(got, np.full(20_000, 3.0, np.float32))
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody answers a stranger
            stranger.recv(2048)
    counters = end.read()
    assert counters["strangers"] >= len(packets) and counters["received"][1] < 200


@pytest.fixture
def ethernet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets as they are there: numpy takes a third of a second for the tag of a whole one of loopback's."""
    monkeypatch.setattr(Link, "datagram_bytes", lambda *_: 1472)


@pytest.mark.parametrize("tag", ["header", "packet"])
@pytest.mark.usefixtures("ethernet")
def test_without_the_key_the_right_address_is_not_enough(ranks: Make, tag: str) -> None:
    """Whoever forges a peer's address and port, and knows everything but the key, is not heard."""
    made = ranks(2, policy=Policy(tag=tag))
    end, peer = made.groups[0].endpoint, made.groups[1].endpoint
    forged = packets_of(end, source=1, tags=Tags(bytes(16), whole=tag == "packet"))[2::4]  # a marker among them
    for packet in forged:
        peer.link.send(packet, end.link.address)
    for got in made.all(summed):
        assert np.array_equal(got, np.full(20_000, 3.0, np.float32))
    assert end.read()["strangers"] >= len(forged) == 31


@pytest.mark.usefixtures("ethernet")
def test_whole_packets_can_be_tagged_against_whoever_reads_the_link(ranks: Make) -> None:
    """A packet that was seen and altered keeps a right header: the tag of the whole packet tells."""
    made = ranks(2, policy=Policy(tag="packet"))
    end, peer = made.groups[0].endpoint, made.groups[1].endpoint
    good = packets_of(end, source=1, tags=Tags(end.key, whole=True))[:28]
    for packet in good:
        altered = bytearray(packet)
        altered[-5] ^= 1
        peer.link.send(bytes(altered), end.link.address)
    for got in made.all(summed):
        assert np.array_equal(got, np.full(20_000, 3.0, np.float32))
    assert end.read()["strangers"] >= len(good)


@pytest.mark.parametrize("what", ["altered", "repeated", "early"])
@pytest.mark.usefixtures("ethernet")
def test_whoever_reads_the_link_does_not_keep_a_dead_rank_alive(ranks: Make, what: str) -> None:
    """A packet of it that was seen, changed or sent again as it is. As it was: a sign of life, as long as one likes."""
    made = ranks(2, policy=Policy(tag="packet", timeout_s=0.5))
    end, peer = made.groups[0].endpoint, made.groups[1].endpoint
    peer.link.admit_only([("127.0.0.1", 9)])  # it hears nothing, and so says nothing
    tags, width = Tags(end.key, whole=True), (end.datagram_bytes - HEADER_BYTES) // 8 * 8
    head = packets_of(end, source=1, tags=None)[0][:HEADER_BYTES]
    if what == "early":  # of a half that is not asked for yet
        head = packets_of(end, source=1, tags=None, behind=3)[-2][:HEADER_BYTES]
    seen = tags.stamped(head + bytes(width))
    future = made.start(0, summed)
    peer.link.send(seen, end.link.address)
    if what == "altered":
        seen = seen[:-1] + b"!"
    until = time.monotonic() + 120  # numpy tags whole packets slowly, on a busy machine for half a minute
    while not future.done() and time.monotonic() < until:
        peer.link.send(seen, end.link.address)
        time.sleep(0.2)
    assert future.done(), "it is still waited for"
    assert "no sign of life from rank 1 for 0.5 s" in str(future.exception())


def test_a_member_does_not_speak_for_another(ranks: Make) -> None:
    made = ranks(3)
    end, other = made.groups[0].endpoint, made.groups[2].endpoint
    for packet in packets_of(end, source=1, tags=Tags(end.key, whole=False)):
        other.link.send(packet, end.link.address)
    for got in made.all(summed):
        assert np.array_equal(got, np.full(20_000, 6.0, np.float32))


@contextmanager
def tapping(*ports: int) -> Iterator[socket.socket]:
    """What goes to these over loopback. Others use it too: theirs never reach the socket."""
    leave = [struct.pack("=HBBI", LOAD_HALF, 0, 0, 36)]  # Ethernet, IPv4 without options, the port's place in UDP
    for port in ports:
        leave += [struct.pack("=HBBI", IF_EQUAL, 0, 1, port), struct.pack("=HBBI", RETURN, 0, 0, ALL_BITS)]
    code = b"".join([*leave, struct.pack("=HBBI", RETURN, 0, 0, 0)])
    room = ctypes.create_string_buffer(code, len(code))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as tap:
        asked = struct.pack("@HP", len(code) // INSTRUCTION_BYTES, ctypes.addressof(room))
        tap.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, asked)
        tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        tap.bind(("lo", 0x0003))  # from now on, all protocols
        yield tap


def tapped(tap: socket.socket) -> list[bytes]:
    """Frames that passed, until none has come for a second."""
    found: list[bytes] = []
    tap.settimeout(1)
    with suppress(TimeoutError):
        while True:
            found.append(tap.recv(65536))
    return found


def test_what_comes_again_is_not_counted_again(ranks: Make) -> None:
    """Every packet of a peer twice, in this call and in later ones: replays carry the right tag."""
    made = ranks(2)
    end, peer = made.groups[0].endpoint, made.groups[1].endpoint
    with tapping(end.link.address[1]) as tap:
        made.all(summed)
        seen = [frame[42:] for frame in tapped(tap)[:200]]
    assert seen
    for _ in range(3):
        for packet in seen:
            peer.link.send(packet, end.link.address)
        for got in made.all(summed):
            assert np.array_equal(got, np.full(20_000, 3.0, np.float32))


def data_of(end: Endpoint, *, tags: Tags) -> list[bytes]:
    """Rank 1's first half of the first call of `summed`, as it will send it itself."""
    head = Header(kind=wire.DATA, tag=0, source=1, destination=0, step=end.step, size=20_000, behind=wire.NO_WORD)
    head = replace(head, dtype=wire.signature("float32", "sum"))
    values = np.full(10_000, 2.0, np.float32).tobytes()
    width = (end.datagram_bytes - HEADER_BYTES) // 8 * 8
    parts = [values[at : at + width] for at in range(0, len(values), width)]
    return [tags.stamped(replace(head, chunk=number).pack() + part) for number, part in enumerate(parts)]


def counted(end: Endpoint, name: str, count: int) -> None:
    """So many were counted."""
    limit = time.monotonic() + 60
    while np.sum(end.read()[name]) < count:
        assert time.monotonic() < limit, end.read()
        time.sleep(0.01)


@pytest.mark.usefixtures("ethernet")
def test_what_comes_twice_while_its_half_is_open_is_added_once(ranks: Make) -> None:
    """Then it still has a place in a sum."""
    made = ranks(2)
    end, peer = made.groups[0].endpoint, made.groups[1].endpoint
    packets = data_of(end, tags=Tags(end.key, whole=False))[:5]
    first = made.start(0, summed)
    for packet in packets * 3:
        peer.link.send(packet, end.link.address)
    counted(end, "received", len(packets) * 3)
    for future in (first, made.start(1, summed)):
        assert np.array_equal(future.result(120), np.full(20_000, 3.0, np.float32))
    assert end.read()["duplicates"] >= len(packets) * 2


@pytest.mark.usefixtures("ethernet")
def test_each_whole_packet_is_looked_at_and_not_the_first_of_its_flow_alone(ranks: Make) -> None:
    """What begins like a packet that was good, in a half that is open."""
    made = ranks(2, policy=Policy(tag="packet"))
    end, peer = made.groups[0].endpoint, made.groups[1].endpoint
    good, *rest = data_of(end, tags=Tags(end.key, whole=True))[:6]
    first = made.start(0, summed)
    peer.link.send(good, end.link.address)
    counted(end, "received", 1)
    for packet in rest:
        peer.link.send(packet[:-1] + b"!", end.link.address)
    counted(end, "strangers", len(rest))
    for future in (first, made.start(1, summed)):
        assert np.array_equal(future.result(120), np.full(20_000, 3.0, np.float32))


def test_what_comes_again_of_a_reliable_half_that_is_over_is_double(ranks: Make) -> None:
    """It was repaired until all of it was there. As it was: late, as if the call had gone on without it."""
    made = ranks(2)
    made.all(exchange.barrier)
    end, peer = made.groups[0].endpoint, made.groups[1].endpoint
    head = Header(kind=wire.RELIABLE, tag=0, source=1, destination=0, sequence=0, half=1)
    before = end.read()
    peer.link.send(Tags(end.key, whole=False).stamped(head.pack() + bytes(8)), end.link.address)
    until = time.monotonic() + 60
    while (now := end.read())["duplicates"] + now["late"] == before["duplicates"] + before["late"]:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert (now["late"], now["duplicates"]) == (0, before["duplicates"] + 1)


def test_packets_from_far_ahead_are_kept_in_bounded_room(ranks: Make) -> None:
    """A member that runs wild fills no memory, and those who do not are heard."""
    made = ranks(2, policy=Policy(window_kb=16))
    end, peer = made.groups[0].endpoint, made.groups[1].endpoint
    tags = Tags(end.key, whole=False)
    for sequence in range(56, 256):
        head = Header(kind=wire.DATA, tag=0, source=1, destination=0, sequence=sequence, behind=255, size=9).pack()
        peer.link.send(tags.stamped(head + bytes(1000)), end.link.address)
    # Its own packets must not come before the half that they belong to is open: there is no room left for it.
    first = made.start(0, summed)
    until = time.monotonic() + 60
    while end.read()["sent"][1] == 0 or end.read()["early"] <= 100:
        assert time.monotonic() < until
        time.sleep(0.01)
    for future in (first, made.start(1, summed)):
        assert np.array_equal(future.result(120), np.full(20_000, 3.0, np.float32))


def test_where_there_is_a_compiler_there_is_a_compiled_engine() -> None:
    """Else all ranks would go on in Python, more slowly, and tests of the other would be skipped."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    assert not isinstance(build.load(), str), build.load()


# --- policy -----------------------------------------------------------------------------------------------------------


def met(policies: list[Policy]) -> list[Endpoint | BaseException]:
    """Each rank with a policy of its own."""
    store, out = Store(), list[Endpoint | BaseException](policies)  # type: ignore[arg-type]

    def come(rank: int) -> None:
        try:
            out[rank] = meeting.meet(store, rank=rank, world=2, address="127.0.0.1", policy=policies[rank])
        except TransportError as error:
            out[rank] = error

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in out:
        if isinstance(one, Endpoint):
            one.close()
    return out


def test_ranks_with_different_policies_do_not_meet() -> None:
    """As it was: they met, and each did as it liked. How fast one sends is its own affair."""
    found = [str(one) for one in met([Policy(missing="own"), Policy(missing="zero")])]
    assert found[0] == "rank 1 has another policy: missing=zero there, missing=own here; all ranks need the same"
    assert found[1] == "rank 0 has another policy: missing=own there, missing=zero here; all ranks need the same"
    assert all(isinstance(one, Endpoint) for one in met([Policy(pace="100", dscp=1), Policy(send_thread="on")]))


@pytest.mark.parametrize("reason", ["no C compiler", f"{build.SWITCHED_OFF} by somebody"])
def test_numpy_instead_of_the_compiled_engine_is_said_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """As it was: many times slower, and not a word."""
    monkeypatch.setattr(build, "load", lambda: reason)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = met([Policy(), Policy()])
    assert [one.engine.name for one in found if isinstance(one, Endpoint)] == ["plain", "plain"]
    text = {str(one.message) for one in said if "compiled" in str(one.message)}
    loud = {"no compiled transport (no C compiler): numpy moves every packet, many times slower"}
    assert text == (loud if reason == "no C compiler" else set())


TIMES = ("timeout_s", "deadline_ms", "reorder_ms", "reorder_max_ms")
NO_TIMES = ("inf", "nan", "-1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deadlin_ms=3", "no setting 'deadlin_ms': known are timeout_s"),
        ("dscp=many", "dscp=many: not a number"),
        ("normaliser=half", "normaliser is 'half': one of count, world, expected"),
        ("close_fraction=0", "close_fraction lies above 0"),
        ("repair=1", "repair lies between 0 and 1: for all of it"),
        ("pace=fast", "pace is 'fast': adaptive, off, or Mbit/s between"),
        ("pace=inf", "pace is 'inf'"),
        *((f"{name}={value}", f"{name} is {value}: it lies between") for name in TIMES for value in NO_TIMES),
        ("timeout_s=0", "timeout_s is 0: it lies between 0.001 and 1e+09"),
        ("timeout_s=9.3e9", "timeout_s is 9.3e+09"),
        ("window_kb=-1", "window_kb is -1"),
        ("reliable_below_bytes=-1", "reliable_below_bytes is -1"),
        ("pace=-3", "pace is '-3'"),
        ("tag=none", "tag is 'none': one of header, packet"),
    ],
)
def test_a_wrong_policy_says_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(message)):
        Policy().with_settings(text)


def test_the_longest_times_a_policy_takes_are_no_shorter_than_others(ranks: Make) -> None:
    """As it was: 1e10 s and more were over at once, and so was a deadline of a call that is not a number."""
    made = ranks(2, policy=Policy(timeout_s=1e9, deadline_ms=1e9, reorder_ms=60_000, reorder_max_ms=60_000))
    assert np.array_equal(made.all(summed)[0], np.full(20_000, 3.0, np.float32))
    for seconds in (math.inf, math.nan, -1.0):
        with pytest.raises(PolicyError, match="a deadline of"):
            made.groups[0].endpoint.set_deadline(seconds)


def test_a_policy_in_python_is_looked_at_alike() -> None:
    for name, value in (("pipeline", 2.5), ("traffic", math.nan), ("close_fraction", math.nan), ("repair", math.nan)):
        with pytest.raises(PolicyError, match=name):
            replace(Policy(), **{name: value})


def test_a_policy_from_the_environment() -> None:
    policy = Policy.from_environment({"LOSSBENCH_POLICY": "deadline_ms=500, missing=zero, pace=200"})
    assert (policy.deadline_ms, policy.missing, policy.pace_bytes_s) == (500.0, "zero", 25e6)


def test_a_pace_is_kept(ranks: Make) -> None:
    made = ranks(2, policy=Policy(pace="80"))
    start = time.monotonic()
    for got in made.all(lambda group: summed(group, 2_000_000)):
        assert np.all(got == 3.0)
    took = time.monotonic() - start
    assert took > 0.9 * 8e6 * 8 / 80e6, "each rank sends 8 MB"


# --- the format -------------------------------------------------------------------------------------------------------


@pytest.mark.netns
def test_scapy_reads_what_the_transport_sends(pump: str) -> None:
    """Packets off the wire, field by field: the documented format is the real one."""
    del pump
    made = make_ranks(2)
    try:
        with tapping(*(group.endpoint.link.address[1] for group in made.groups)) as tap:
            made.all(lambda group: summed(group, 2000))
            made.all(exchange.barrier)
            seen = [fields for frame in tapped(tap) if (fields := dissect_frame(frame)) is not None]
    finally:
        made.close()
    data = [f for f in seen if f["kind"] == wire.DATA]
    signature = wire.signature("float32", "sum")
    assert {(f["source"], f["destination"], f["half"], f["dtype"]) for f in data} >= {
        (0, 1, 0, signature),
        (1, 0, 1, signature),
    }
    assert all(f["size"] == 2000 and f["version"] == 2 and f["tag"] for f in data)
    assert all(f["block"] == (f["destination"] if f["half"] == 0 else f["source"]) for f in data)
    assert any(f["kind"] == wire.ACK for f in seen) and any(f["kind"] == wire.RELIABLE for f in seen)


def test_a_library_that_others_could_have_written_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(build.load(), str):
        pytest.skip(f"no compiled engine: {build.load()}")
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path))
    path = build.built()
    assert path.stat().st_mode & 0o077 == 0 and path.parent.stat().st_mode & 0o077 == 0
    path.chmod(0o777)
    with pytest.raises(build.NoNativeError, match="can be written by others"):
        build.built()


SAID = {"version": meeting.SPEAKS, "policy": Policy().shared(), "address": "10.0.0.1", "port": 9, "window": 9}
WRONG: list[dict[str, object]] = [
    {"address": "a.b.c.d"},
    {"port": 0},
    {"port": 99999},
    {"window": -1},
    {"version": 1},
    {"policy": Policy(tag="packet").shared()},
    {"policy": None},
]


@pytest.mark.parametrize("said", [b"{", b"[]", *(json.dumps(SAID | wrong).encode() for wrong in WRONG)])
def test_a_rank_that_introduces_itself_wrongly_is_named(said: bytes) -> None:
    with pytest.raises(TransportError, match="rank 3"):
        meeting._member(3, said, policy=Policy())
