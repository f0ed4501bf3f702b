"""A rank that is late, once or for good: it catches up, and is sent no more than it can keep."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossbench.workloads.collective.context import Group
from lossbench.workloads.collective.reduce import all_reduce
from lossbench.workloads.transport.meeting import meet
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.policy import Policy
from lossbench.workloads.transport.udp import link
from tests.forms import forms

from .conftest import Make

F32 = CODECS["float32"]
MOST_CALLS = 100


def ends_of(group: Group, count: int) -> set[str]:
    """Why the halves of one more call ended."""
    all_reduce(group, np.ones(count, np.float32), codec=F32)
    return {account.ended for account in group.accounts}


def nothing_is_lost(read: Callable[[], list[dict[str, Any]]]) -> None:
    """All that is not there was withheld, or came late; what is late may still wait to be read."""
    until = time.monotonic() + 30
    while True:
        counted = read()
        total = {name: sum(one[name] for one in counted) for name in ("data_expected", "data_arrived", "lost", "cut")}
        if total["cut"] == sum(one["withheld"] + one["late"] for one in counted):
            break
        assert time.monotonic() < until, counted
        time.sleep(0.01)
    assert total["lost"] == 0 and total["cut"] > 0, counted
    assert total["data_expected"] == total["data_arrived"] + total["cut"], counted


def test_a_rank_that_was_late_once_catches_up(ranks: Make) -> None:
    """As it was: it sent in full what the others had long passed, waited for room that nobody gave, and every later
    call of both lost its parts."""
    made, count = ranks(2, policy=Policy(timeout_s=60, deadline_ms=60)), 250_000
    go, over, calls = threading.Event(), threading.Event(), [0, 0]

    def early(group: Group) -> bool:
        whole = False
        while not whole and calls[0] < MOST_CALLS:
            ended = ends_of(group, count)
            calls[0] += 1
            if calls[0] == 10:
                go.set()
            whole = calls[0] > 10 and "deadline" not in ended
        over.set()
        return whole

    def late(group: Group) -> None:
        assert go.wait(60)
        while not over.is_set() or calls[1] < calls[0]:
            ends_of(group, count)
            calls[1] += 1

    futures = [made.start(0, early), made.start(1, late)]
    assert futures[0].result(120), "calls end whole again"
    futures[1].result(120)


@forms("pump", ["compiled", "python"], indirect=True)
def test_what_a_rank_that_is_far_behind_could_not_keep_is_not_sent_and_not_lost(pump: str, ranks: Make) -> None:
    """As it was: what lay 256 halves ahead was sent, thrown away there, and called lost on the network."""
    del pump
    made = ranks(2, policy=Policy(timeout_s=60, deadline_ms=4))

    def many(group: Group) -> None:
        for _ in range(150):
            ends_of(group, 2000)

    made.start(0, many).result(60)
    made.start(1, many).result(60)
    nothing_is_lost(lambda: [group.endpoint.read() for group in made.groups])


class Files:
    """A store of processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def set(self, key: str, value: str) -> None:
        place = self.folder / key.replace("/", "_")
        place.with_suffix(".new").write_text(value)
        place.with_suffix(".new").rename(place)

    def get(self, key: str) -> bytes:
        until, place = time.monotonic() + 60, self.folder / key.replace("/", "_")
        while not place.exists():
            assert time.monotonic() < until, key
            time.sleep(0.005)
        return place.read_bytes()


@contextmanager
def other_process(job: Callable[[Callable[[object], object]], object]) -> Iterator[tuple[int, int, int]]:
    """(pid, where to say that it may go on, where it says something). `job` gets how to say it and wait for that."""
    (heard, say), (answers, answer) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(say)
            job(lambda said: (os.write(answer, json.dumps(said).encode()), os.read(heard, 1)))
        finally:
            os._exit(0)
    os.close(heard)
    os.close(answer)
    try:
        yield pid, say, answers
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(say)
        os.close(answers)


@forms("pump", ["compiled", "python"], indirect=True)
def test_a_rank_that_is_stopped_is_sent_no_more_than_its_socket_holds(
    pump: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As it was: every call that a deadline ended sent it a whole window anew."""
    del pump
    monkeypatch.setattr(link, "RECEIVE_BYTES", 212_992)
    policy, count, calls = Policy(timeout_s=60, deadline_ms=50), 250_000, 30

    def come(rank: int) -> Group:
        return Group(meet(Files(tmp_path), rank=rank, world=2, address="127.0.0.1", policy=policy))

    def stopped(wait: Callable[[object], object]) -> None:
        group = come(1)
        ends_of(group, count)
        wait("met")
        for _ in range(calls):
            ends_of(group, count)
        while True:
            wait(group.endpoint.read())

    with other_process(stopped) as (pid, say, answers):
        group = come(0)
        ends_of(group, count)
        assert os.read(answers, 1 << 16)
        os.kill(pid, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        for _ in range(calls):
            ends_of(group, count)
        os.kill(pid, signal.SIGCONT)

        def both() -> list[dict[str, Any]]:
            os.write(say, b"x")
            return [group.endpoint.read(), json.loads(os.read(answers, 1 << 16))]

        nothing_is_lost(both)
        group.endpoint.close(0.0)
