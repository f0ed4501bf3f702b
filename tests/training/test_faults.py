"""Ranks as real processes in a real network: killed, stopped, late, busy. Slow is waited for, dead is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lossbench.net.host.enter import hosts_file
from lossbench.net.star.network import StarNetwork
from lossbench.spec.topology import Topology
from tests.networks import Build

HERE = Path(__file__).parent
pytestmark = [pytest.mark.training, pytest.mark.netns]
WORLD, TIMEOUT_S = 3, 8


class Loop:
    """The ranks of tests/training/loop.py."""

    def __init__(self, network: StarNetwork, folder: Path, **each: dict[int, str]) -> None:
        (folder / "hosts").write_text(hosts_file(network.experiment.topology), encoding="ascii")
        self.logs = [folder / f"rank{rank}.log" for rank in range(WORLD)]
        self.processes = []
        for rank, log in enumerate(self.logs):
            variables = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(WORLD),
                "MASTER_ADDR": Topology().all_hosts()[0].control_ipv4,
                "MASTER_PORT": "29500",
                "LOSSBENCH_ADDRESSES": ",".join(h.ipv4 for h in Topology(hosts=WORLD).all_hosts()),
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": f"{HERE.parent.parent}/.package:{HERE.parent.parent}",
                "LOSSBENCH_RANKS_HERE": str(WORLD),
                "LOSSBENCH_POLICY": f"timeout_s={TIMEOUT_S}",
                **{name: values[rank] for name, values in each.items() if rank in values},
            }
            step_in = network.star.place(f"h{rank}").stepper(folder / "hosts", mortal=True)
            with open(log, "wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(HERE / "loop.py")],
                        env=variables,
                        preexec_fn=step_in,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )

    def calls(self, rank: int) -> list[tuple[int, float, float, bool]]:
        """(number, milliseconds, share that arrived, right) of each call that ended."""
        lines = [line.split() for line in self.logs[rank].read_text().splitlines() if line.startswith("call ")]
        return [(int(n), float(ms), float(share), right == "True") for _, n, ms, share, right in lines]

    def wait_for(self, what: Callable[[], bool], seconds: float = 60) -> None:
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

    def make(profile: str = "loss_1", *, engine: str = "compiled", **each: dict[int, str]) -> Loop:
        network = build(topology={"hosts": WORLD}, impair=[{"profile": profile}])
        native = dict.fromkeys(range(WORLD), "" if engine == "compiled" else "0")
        made.append(Loop(network, tmp_path, LOSSBENCH_NATIVE=native, **each))
        return made[-1]

    yield make
    for one in made:
        one.end()


ENGINES = pytest.mark.parametrize("engine", ["compiled", "python"])


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


@ENGINES
def test_a_worker_that_holds_the_interpreter_is_waited_for(loop: Callable[..., Loop], engine: str) -> None:
    """As it was: after a sort of two seconds nine wrong sums in a row."""
    ranks = loop(profile="clean", engine=engine, LOOP_SORT={1: "3000000"}, LOOP_CALLS=dict.fromkeys(range(WORLD), "12"))
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
