"""Ranks as real processes in a real network: killed, stopped, late. Survivors go on; no hang, no wrong number."""

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
DEADLINE_MS = 400
WORLD = 3


class Loop:
    """The ranks of tests/training/loop.py."""

    def __init__(self, network: StarNetwork, folder: Path, deadline_ms: int, **each: dict[int, str]) -> None:
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
                "LOSSBENCH_POLICY": f"deadline_min_ms={deadline_ms // 2},deadline_max_ms={deadline_ms},timeout_s=20",
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

    def make(profile: str = "loss_1", deadline_ms: int = DEADLINE_MS, **each: dict[int, str]) -> Loop:
        network = build(topology={"hosts": WORLD}, impair=[{"profile": profile}])
        made.append(Loop(network, tmp_path, deadline_ms, **each))
        return made[-1]

    yield make
    for one in made:
        one.end()


def all_right(loop: Loop, ranks: list[int]) -> None:
    for rank in ranks:
        calls = loop.calls(rank)
        assert all(right for *_, right in calls), "no wrong number"
        # Two halves, each within its deadline, and whatever this machine holds up besides.
        assert max(ms for _, ms, _, _ in calls[1:]) < 10 * 2 * DEADLINE_MS, "no hang"


def test_a_killed_worker_does_not_stop_the_others(loop: Callable[..., Loop]) -> None:
    ranks = loop(LOOP_CALLS=dict.fromkeys(range(WORLD), "60"))
    ranks.wait_for(lambda: len(ranks.calls(2)) >= 10)
    ranks.processes[2].send_signal(signal.SIGKILL)
    ranks.wait_for(lambda: all(p.poll() is not None for p in ranks.processes[:2]))
    assert [p.poll() for p in ranks.processes[:2]] == [0, 0]
    assert len(ranks.calls(0)) == 60
    all_right(ranks, [0, 1])


def test_a_worker_stopped_for_two_seconds_catches_up(loop: Callable[..., Loop]) -> None:
    ranks = loop(LOOP_CALLS=dict.fromkeys(range(WORLD), "400"))
    ranks.wait_for(lambda: len(ranks.calls(1)) >= 10)
    ranks.processes[1].send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    behind = len(ranks.calls(1))
    assert len(ranks.calls(0)) > behind, "the others went on"
    ranks.processes[1].send_signal(signal.SIGCONT)
    ranks.wait_for(lambda: all(p.poll() is not None for p in ranks.processes), seconds=120)
    assert [p.returncode for p in ranks.processes] == [0, 0, 0]
    all_right(ranks, [0, 1, 2])
    assert max(share for *_, share, _ in ranks.calls(0)[-30:]) > 0.9, "in the end everything arrives again"


def test_a_worker_that_comes_five_seconds_late_is_waited_for(loop: Callable[..., Loop]) -> None:
    calls = dict.fromkeys(range(WORLD), "20")
    ranks = loop(profile="clean", deadline_ms=2000, LOOP_LATE_S={2: "5"}, LOOP_CALLS=calls)
    ranks.wait_for(lambda: all(p.poll() is not None for p in ranks.processes))
    assert [p.returncode for p in ranks.processes] == [0, 0, 0]
    for rank in range(WORLD):
        calls = ranks.calls(rank)
        assert all(right for *_, right in calls) and all(share == 1.0 for _, _, share, _ in calls), "slow is not lost"
