"""Ranks as real processes in a real network: killed, stopped, late, busy. Slow is waited for, dead is said."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from lossbench.net.host.enter import hosts_file
from lossbench.net.star.network import StarNetwork
from lossbench.spec.topology import Topology
from tests.forked import Forked, Host, start
from tests.forms import forms, full
from tests.networks import Build

HERE = Path(__file__).parent
pytestmark = [pytest.mark.training, pytest.mark.netns]
WORLD, TIMEOUT_S = 3, 8


class Loop:
    """The ranks of tests/training/loop.py."""

    def __init__(self, network: StarNetwork, folder: Path, script: str = "loop.py", **each: dict[int, str]) -> None:
        (folder / "hosts").write_text(hosts_file(network.experiment.topology), encoding="ascii")
        self.until = folder / "until"  # a number in it: the step that is the last
        self._network, self._folder, self._script, self._each = network, folder, script, each
        self.logs = [folder / f"rank{rank}.log" for rank in range(WORLD)]
        self.processes = [self.start(rank) for rank in range(WORLD)]

    def start(self, rank: int) -> Forked:
        """Its log begins anew."""
        variables = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(WORLD),
            "MASTER_ADDR": Topology().all_hosts()[0].control_ipv4,
            "MASTER_PORT": "29500",
            "LOSSBENCH_ADDRESSES": ",".join(h.ipv4 for h in Topology(hosts=WORLD).all_hosts()),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "LOOP_UNTIL": str(self.until),
            "LOSSBENCH_RANKS_HERE": str(WORLD),
            "LOSSBENCH_POLICY": f"timeout_s={TIMEOUT_S}",
            **{name: values[rank] for name, values in self._each.items() if rank in values},
        }
        place = self._network.star.place(f"h{rank}")
        host = Host(where=place.where, name=place.name, hosts_path=self._folder / "hosts")
        with open(self.logs[rank], "wb") as output:
            return start("torch", [str(HERE / self._script)], output=output, environment=variables, host=host)

    def calls(self, rank: int) -> list[tuple[int, float, float, bool]]:
        """(number, milliseconds, share that arrived, right) of each call that ended."""
        lines = [line.split() for line in self.logs[rank].read_text().splitlines() if line.startswith("call ")]
        return [(int(n), float(ms), float(share), right == "True") for _, n, ms, share, right in lines]

    def wait_for(self, what: Callable[[], bool], seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < until, [log.read_text()[-600:] for log in self.logs]
            time.sleep(0.05)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def loop(build: Build, tmp_path: Path) -> Iterator[Callable[..., Loop]]:  # noqa: F811
    made: list[Loop] = []

    def make(
        profile: str = "loss_1", *, engine: str = "compiled", script: str = "loop.py", **each: dict[int, str]
    ) -> Loop:
        network = build(topology={"hosts": WORLD}, impair=[{"profile": profile}])
        native = dict.fromkeys(range(WORLD), "" if engine == "compiled" else "0")
        made.append(Loop(network, tmp_path, script, LOSSBENCH_NATIVE=native, **each))
        return made[-1]

    yield make
    for one in made:
        one.end()


ENGINES = forms("engine", ["compiled", "python"])


def all_right(loop: Loop, ranks: list[int]) -> None:
    assert all(right for rank in ranks for *_, right in loop.calls(rank)), "no wrong number"


@ENGINES
def test_a_killed_worker_ends_the_run_on_every_survivor_and_is_named(loop: Callable[..., Loop], engine: str) -> None:
    """As it was: its shard stood still for ever, and nobody was told."""
    ranks = loop(engine=engine, LOOP_CALLS=dict.fromkeys(range(WORLD), "100000"))
    ranks.wait_for(lambda: len(ranks.calls(2)) >= 10)
    ranks.processes[2].send_signal(signal.SIGKILL)
    ranks.wait_for(lambda: all(p.poll() is not None for p in ranks.processes[:2]), seconds=60)
    assert all(p.poll() != 0 for p in ranks.processes[:2])
    for rank in (0, 1):
        assert "no sign of life from rank 2" in ranks.logs[rank].read_text()
    all_right(ranks, [0, 1])


@ENGINES
def test_a_worker_stopped_for_seconds_is_waited_for(loop: Callable[..., Loop], engine: str) -> None:
    ranks = loop(profile="clean", engine=engine, LOOP_CALLS=dict.fromkeys(range(WORLD), "60"))
    ranks.wait_for(lambda: len(ranks.calls(1)) >= 10)
    ranks.processes[1].send_signal(signal.SIGSTOP)
    time.sleep(3.0)
    ranks.processes[1].send_signal(signal.SIGCONT)
    ranks.wait_for(lambda: all(p.poll() is not None for p in ranks.processes), seconds=120)
    assert [p.returncode for p in ranks.processes] == [0, 0, 0]
    all_right(ranks, [0, 1, 2])
    assert all(share == 1.0 for rank in range(WORLD) for *_, share, _ in ranks.calls(rank)), "nothing was lost"


@full
@ENGINES
def test_a_worker_that_holds_the_interpreter_is_waited_for(loop: Callable[..., Loop], engine: str) -> None:
    """As it was: after a sort of two seconds nine wrong sums in a row."""
    ranks = loop(profile="clean", engine=engine, LOOP_SORT={1: "3000000"}, LOOP_CALLS=dict.fromkeys(range(WORLD), "4"))
    ranks.wait_for(lambda: all(p.poll() is not None for p in ranks.processes), seconds=120)
    assert [p.returncode for p in ranks.processes] == [0, 0, 0]
    assert all(share == 1.0 for rank in range(WORLD) for *_, share, _ in ranks.calls(rank)), "slow is not lost"


def test_a_worker_that_comes_five_seconds_late_is_waited_for(loop: Callable[..., Loop]) -> None:
    calls = dict.fromkeys(range(WORLD), "20")
    ranks = loop(profile="clean", LOOP_LATE_S={2: "5"}, LOOP_CALLS=calls)
    ranks.wait_for(lambda: all(p.poll() is not None for p in ranks.processes))
    assert [p.returncode for p in ranks.processes] == [0, 0, 0]
    for rank in range(WORLD):
        calls = ranks.calls(rank)
        assert all(right for *_, right in calls) and all(share == 1.0 for _, _, share, _ in calls), "slow is not lost"


# --- going on without those who are gone (absent=continue) ------------------------------------------------------------


class Trained(NamedTuple):
    """What a rank of absent.py printed."""

    begun: int
    losses: dict[int, float]
    sums: dict[int, str]  # of all parameters, after a step
    text: str


def trained(loop: Loop, rank: int) -> Trained:
    text = loop.logs[rank].read_text()
    rows = [line.split() for line in text.splitlines() if line.startswith("step ") and line.count(" ") == 3]
    begun = next((int(line.split()[-1]) for line in text.splitlines() if line.startswith("begins at")), -1)
    return Trained(begun, {int(r[1]): float(r[2]) for r in rows}, {int(r[1]): r[3] for r in rows}, text)


def going_on(loop: Callable[..., Loop], strategy: str, steps: int, *, engine: str, profile: str = "clean") -> Loop:
    every = range(WORLD)
    return loop(
        profile,
        engine=engine,
        script="absent.py",
        STRATEGY=dict.fromkeys(every, strategy),
        BUCKETS=dict.fromkeys(every, "3" if engine == "python" else "1"),
        LOOP_STEPS=dict.fromkeys(every, str(steps)),
        LOSSBENCH_POLICY=dict.fromkeys(every, "timeout_s=5,absent=continue"),
    )


def all_ended(ranks: Loop, which: list[int]) -> bool:
    return all(ranks.processes[rank].poll() is not None for rank in which)


def end_soon(ranks: Loop) -> int:
    """The last step of all, which none of them has reached yet; after it they end."""
    last = max(trained(ranks, 0).losses) + 60
    ranks.until.with_suffix(".new").write_text(str(last))
    ranks.until.with_suffix(".new").rename(ranks.until)
    ranks.wait_for(lambda: all_ended(ranks, [0, 1, 2]))
    return last


@forms(("strategy", "engine"), [("bounded_drift", "compiled"), ("rps", "compiled"), ("bounded_drift", "python")])
def test_survivors_divide_a_lost_shard_and_go_on(loop: Callable[..., Loop], strategy: str, engine: str) -> None:
    ranks = going_on(loop, strategy, 150, engine=engine)
    ranks.wait_for(lambda: len(trained(ranks, 2).losses) >= 20)
    ranks.processes[2].send_signal(signal.SIGKILL)
    ranks.wait_for(lambda: all_ended(ranks, [0, 1]), seconds=120)
    first, second = trained(ranks, 0), trained(ranks, 1)
    assert [ranks.processes[rank].returncode for rank in (0, 1)] == [0, 0], first.text[-800:]
    assert "without rank 2" in first.text and "without rank 2" in second.text
    assert ("its optimizer's state fresh" in first.text) == (strategy == "bounded_drift")
    assert first.text.splitlines()[-2].endswith(", 0)"), "nothing is left with the dead"
    assert first.sums[149] == second.sums[149], "nothing was lost but a rank: they agree"
    assert first.losses[149] < first.losses[20], "and go on learning, the lost shard too"


def test_a_rank_that_comes_back_is_let_in_and_taught(loop: Callable[..., Loop]) -> None:
    ranks = going_on(loop, "bounded_drift", 100_000, engine="compiled", profile="loss_1")
    ranks.wait_for(lambda: len(trained(ranks, 2).losses) >= 20)
    ranks.processes[2].send_signal(signal.SIGKILL)
    ranks.processes[2].wait()
    ranks.wait_for(lambda: max(trained(ranks, 0).losses) >= 60)
    ranks.processes[2] = ranks.start(2)
    ranks.wait_for(lambda: len(trained(ranks, 2).losses) >= 5)
    last = end_soon(ranks)
    assert [process.returncode for process in ranks.processes] == [0, 0, 0], ranks.logs[2].read_text()[-800:]
    mine, theirs = trained(ranks, 2), trained(ranks, 0)
    assert 60 < mine.begun < last and "rank 2 came back" in theirs.text
    first = mine.losses[mine.begun]
    assert first < theirs.losses[0] / 2, "it did not begin again from nothing"


@full
def test_a_rank_that_was_away_too_long_gets_in_again_by_itself(loop: Callable[..., Loop]) -> None:
    ranks = going_on(loop, "rps", 100_000, engine="compiled")
    ranks.wait_for(lambda: len(trained(ranks, 1).losses) >= 20)
    ranks.processes[1].send_signal(signal.SIGSTOP)
    away = max(trained(ranks, 0).losses)
    ranks.wait_for(lambda: max(trained(ranks, 0).losses) >= away + 40)
    ranks.processes[1].send_signal(signal.SIGCONT)
    ranks.wait_for(lambda: max(trained(ranks, 1).losses) > away + 40)
    last = end_soon(ranks)
    assert [process.returncode for process in ranks.processes] == [0, 0, 0], ranks.logs[1].read_text()[-800:]
    mine, theirs = trained(ranks, 1), trained(ranks, 0)
    assert "without rank 1" in theirs.text and "rank 1 came back" in theirs.text
    assert away + 20 not in mine.losses and mine.sums[last] == theirs.sums[last], "it skipped to where they were"


def test_without_the_keeper_of_the_store_the_run_ends_and_says_so(loop: Callable[..., Loop]) -> None:
    ranks = going_on(loop, "rps", 100000, engine="compiled")
    ranks.wait_for(lambda: len(trained(ranks, 2).losses) >= 10)
    ranks.processes[0].send_signal(signal.SIGKILL)
    ranks.wait_for(lambda: all_ended(ranks, [1, 2]), seconds=60)
    assert all(ranks.processes[rank].returncode != 0 for rank in (1, 2))
    assert "the group's store can't be reached" in ranks.logs[1].read_text()
