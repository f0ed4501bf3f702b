"""Training over links that really lose packets: every strategy, every kind of loss, several ranks in a process,
trouble."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossbench.errors import NotAbleError
from lossbench.net.kernel import Kernel
from lossbench.results.folders import RunFolder
from lossbench.runs import ground, run
from lossbench.runs.choose import choose_backend
from lossbench.runs.ground import ThisMachine
from lossbench.runs.launch import nursery
from lossbench.runs.launch.nursery import Nurseries
from lossbench.simulate.rules import layers
from lossbench.spec.about import about
from lossbench.spec.experiment import Experiment, Program
from lossbench.spec.placement import rules_in_force
from lossbench.spec.userfile import check
from lossbench.workloads.sync.channels.simulated import Rule
from tests.forms import full

pytestmark = [pytest.mark.netns, pytest.mark.training]
TCPS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
OURS = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
OPTIONS = {"steps": 30, "batch": 8, "drift_every": 10, "evaluate_items": 64, "optimizer": "sgd", "lr": 0.1}


@pytest.fixture(scope="module")
def nurseries() -> Iterator[Nurseries]:
    made = Nurseries()
    yield made
    made.close()


class Runs:
    def __init__(self, folder: Path, nurseries: Nurseries | None) -> None:
        self.folder, self.nurseries = folder, nurseries

    def __call__(
        self,
        *,
        loss: Any = None,
        hosts: int = 3,
        per: int = 1,
        backend: str = "auto",
        impair: Any = None,
        seed: int = 0,
        **options: Any,
    ) -> run.Result:
        loss = {"model": "iid", "percent": 10} if loss is None else loss
        written = {
            "name": "t",
            "topology": {"hosts": hosts},
            "backend": backend,
            "probe": {"packets": 6000},
            "impair": [{"profile": {"why": "a test", "loss": loss}}] if impair is None else impair,
            "workload": {
                "name": "training",
                "options": {**OPTIONS, **options},
                "ranks_per_process": per,
                "time_limit_s": 100,
            },
        }
        experiment = check(Experiment, written, origin="test")
        return run.execute(
            experiment,
            seed=seed,
            chosen={},
            folder=RunFolder(self.folder),
            ground=ThisMachine(Kernel.tried(), self.nurseries),
            progress=lambda _: None,
        )

    def steps(self, rank: int) -> list[dict[str, Any]]:
        lines = (self.folder / "records" / f"rank-{rank}.jsonl").read_text().splitlines()
        return [one for one in map(json.loads, lines) if one["kind"] == "step"]


@pytest.fixture
def runs(tmp_path: Path, nurseries: Nurseries) -> Runs:
    return Runs(tmp_path, nurseries)


def all_valid(result: run.Result) -> dict[str, Any]:
    words = {name: (c.status.word, c.reasons()) for name, c in result.verdict.columns.items() if name != "timing"}
    assert all(word == "valid" for word, _ in words.values()), words
    (row,) = result.watched.rows
    return row


@pytest.mark.parametrize("strategy", ["reliable", "gradient_averaging", "rps", "bounded_drift", "ddp"])
def test_a_strategy_trains_over_links_that_lose_a_tenth(strategy: str, runs: Runs) -> None:
    row = all_valid(runs(strategy=strategy, rto_min_ms=5))
    assert ("TCP" in row["note"]) == (strategy == "reliable")
    if strategy == "reliable":
        assert f"TCP: {OURS}" in row["note"].split("; ")
        assert row["drift_last"] == 0
    else:
        assert row["arrived"] == pytest.approx(0.9, abs=0.02)
        assert row["drift_last"] > 0
    assert row["train_loss"] < 1.8
    numbers = 2 * (3 - 1) * 26_122 * 4 / 1e6  # megabytes of three workers, both halves
    assert numbers < row["mb_step"] < 4 * numbers, "with headers, acknowledgements, what was sent again"


def test_over_tcp_a_row_says_which_congestion_control_its_connections_had(runs: Runs) -> None:
    """Not the machine's: what was asked for, as the connections of a host say it."""
    other = next(one for one in TCPS if one != OURS)
    row = runs(strategy="reliable", tcp=other, steps=2, hosts=2, loss={"model": "iid", "percent": 0.1}).watched.rows[0]
    assert f"TCP: {other}" in row["note"].split("; ")


def test_training_without_a_single_packet_is_not_a_valid_experiment(runs: Runs) -> None:
    """`none` exchanges nothing but the agreement at the start: what it meets is too little to speak of loss, but is
    said."""
    result = runs(strategy="none")
    assert result.verdict.columns["outcome"].status.word == "valid"
    assert result.watched.rows[0]["arrived"] is None


@pytest.mark.parametrize("per", [0, 2])
def test_several_ranks_in_one_process_still_cross_their_own_links(per: int, runs: Runs) -> None:
    row = all_valid(runs(per=per, hosts=4, strategy="bounded_drift"))
    assert row["arrived"] == pytest.approx(0.9, abs=0.02)
    assert row["workers"] == 4
    counted = json.loads((runs.folder / "counters.json").read_text())["hooks"]
    seen = [sum(rule["seen"] for rule in hook.values()) for hook in counted.values()]
    assert len(seen) == 4 and min(seen) > 0.5 * max(seen) > 100


@full
def test_without_a_nursery_ranks_start_too(tmp_path: Path) -> None:
    all_valid(Runs(tmp_path, None)(strategy="rps", steps=5))


# --- loss of every kind reaches the training -------------------------------------------------------------------------


def test_loss_in_one_half_leaves_the_other_alone(runs: Runs) -> None:
    impair = [
        {
            "profile": {
                "why": "t",
                "loss": {"model": "iid", "percent": 20},
                "match": {"datagram": {"halves": ["all_gather"]}},
            }
        }
    ]
    row = all_valid(runs(impair=impair, strategy="bounded_drift"))
    assert row["arrived_1"] == 1
    assert row["arrived_2"] == pytest.approx(0.8, abs=0.03)


def test_loss_in_chosen_steps_leaves_the_others_alone(runs: Runs) -> None:
    impair = [
        {"profile": {"why": "t", "loss": {"model": "iid", "percent": 30}, "match": {"datagram": {"steps": [10, 20]}}}}
    ]
    all_valid(runs(impair=impair, strategy="rps"))
    for step in runs.steps(1):
        assert (step["arrived_1"] < 1) == (10 <= step["step"] < 20), step


def test_block_loss_takes_a_whole_block_or_nothing(runs: Runs) -> None:
    all_valid(runs(loss={"model": "block", "percent": 20}, strategy="rps", steps=60))
    shares = [share for rank in range(3) for step in runs.steps(rank) for share in step["from_1"].values()]
    assert set(shares) == {0.0, 1.0}
    assert np.mean(shares) == pytest.approx(0.8, abs=0.08)


def test_one_bad_sender_is_missed_by_all_and_misses_nothing(runs: Runs) -> None:
    impair = [{"profile": {"why": "t", "loss": {"model": "iid", "percent": 30}}, "hosts": ["h1"]}]
    all_valid(runs(impair=impair, strategy="bounded_drift"))
    for step in runs.steps(0):
        assert step["from_1"]["2"] == 1 and step["from_2"]["2"] == 1
    assert np.mean([step["from_1"]["1"] for step in runs.steps(0)]) == pytest.approx(0.7, abs=0.08)
    assert all(step["arrived_1"] == 1 for step in runs.steps(1))


@pytest.mark.parametrize(
    ("told", "counts"), [({"normaliser": "count"}, (0.0, 0.75)), ({}, (0.9, 1.1))], ids=["mean of arrivals", "unbiased"]
)
def test_the_one_that_is_heard_less_counts_less_unless_it_is_weighed(
    told: dict[str, str], counts: tuple[float, float], runs: Runs
) -> None:
    impair = [{"profile": {"why": "t", "loss": {"model": "iid", "percent": 40}}, "hosts": ["h1"]}]
    keys: dict[str, Any] = {"strategy": "bounded_drift", "bias_every": 1, "steps": 60, "data": "random_walk", **told}
    heard = all_valid(runs(impair=impair, hosts=4, **keys))["heard"]
    low, high = counts
    assert low < heard[1] < high
    assert told == {} or min(heard[0], heard[2], heard[3]) > 1


def test_steps_in_ddps_packets_are_those_of_the_training(runs: Runs) -> None:
    impair = [
        {"profile": {"why": "t", "loss": {"model": "iid", "percent": 40}, "match": {"datagram": {"steps": [10, 20]}}}}
    ]
    all_valid(runs(impair=impair, strategy="ddp"))
    for step in runs.steps(1):
        assert (step["arrived_1"] < 1) == (10 <= step["step"] < 20), step


@pytest.mark.parametrize(
    ("loss", "bursts"),
    [
        ({"model": "iid", "percent": 15}, False),
        ({"model": "gilbert_elliott", "mean_percent": 15, "burst_packets_mean": 6}, True),
    ],
    ids=["iid", "bursty"],
)
def test_simulated_and_genuine_loss_have_the_same_statistics(
    loss: Any, bursts: bool, runs: Runs, tmp_path: Path
) -> None:
    """Two hosts, so that an uplink is one path. The mean, and how unevenly a step's packets are hit."""
    keys = {
        "loss": loss,
        "hosts": 2,
        "strategy": "bounded_drift",
        "data": "random_walk",
        "walk_size": 60_000,
        "steps": 150,
    }
    all_valid(runs(**keys))
    simulated = Runs(tmp_path / "simulated", runs.nurseries)
    result = simulated(**keys, per=0, backend="simulated")
    assert result.verdict.columns["fault"].status.word == result.verdict.status.word == "unknown"
    assert "simulated" in result.watched.rows[0]["strategy"]
    found = {}
    for name, one in (("genuine", runs), ("simulated", simulated)):
        shares = np.array([step[f"arrived_{half}"] for rank in (0, 1) for step in one.steps(rank) for half in (1, 2)])
        found[name] = (shares.mean(), shares.var())
    packets = 60_000 / 2 / 358  # of one block
    spread = np.sqrt(found["simulated"][1] / 600)
    assert abs(found["genuine"][0] - found["simulated"][0]) < 5 * spread * np.sqrt(2)
    assert found["genuine"][1] == pytest.approx(found["simulated"][1], rel=0.4)
    iid = 0.85 * 0.15 / packets
    assert (found["genuine"][1] > 2.5 * iid) == bursts


# --- trouble ---------------------------------------------------------------------------------------------------------


def test_a_worker_killed_in_the_middle_ends_the_run_and_keeps_its_records(runs: Runs) -> None:
    def by_open_file() -> None:
        """After a fork /proc/PID/environ is the parent's: the rank is found by the file it has open. So have we, now
        and then, to read it."""
        path = runs.folder / "records" / "rank-1.jsonl"
        until = time.monotonic() + 60
        while time.monotonic() < until and not (path.exists() and path.read_text().count('"kind":"step"') > 5):
            time.sleep(0.05)
        others = (one for one in Path("/proc").glob("[0-9]*") if int(one.name) != os.getpid())
        for process in others:
            try:
                if any(os.readlink(fd) == str(path) for fd in (process / "fd").iterdir()):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue

    killer = threading.Thread(target=by_open_file)
    killer.start()
    result = runs(strategy="rps", steps=5000)
    killer.join()
    outcome = result.verdict.columns["outcome"]
    assert outcome.status.word == "failed"
    assert "was killed by SIGKILL" in outcome.reasons()[0]
    assert len(runs.steps(0)) > 5


def test_a_loss_that_is_not_a_number_is_the_verdicts_reason(runs: Runs) -> None:
    result = runs(strategy="rps", lr=1e30)
    reasons = " ".join(result.verdict.columns["outcome"].reasons())
    assert "the loss is" in reasons and "a lower lr may help" in reasons


def test_of_a_simulations_rules_the_last_entry_that_matches_wins_as_on_a_network() -> None:
    impair = [{"profile": "loss_1"}, {"profile": "loss_10", "hosts": ["h0"]}]
    experiment = check(Experiment, {"name": "t", "impair": impair}, origin="test")
    uplinks = [Rule(**{**one, "sources": one["sources"] and tuple(one["sources"])}) for one in layers(experiment)[0]]
    for hook, (first, *_) in rules_in_force(experiment, seed=1).items():
        drawn = next(one for one in uplinks if one.takes(hook.rank, 3 - hook.rank, 0, 0, 0))
        assert drawn.chain[0][0][2] == first.profile.mean_loss() == (0.1 if hook.rank == 0 else 0.01)


def test_what_the_simulation_cannot_do_is_refused_before_anything_runs(runs: Runs) -> None:
    with pytest.raises(NotAbleError, match="the simulation has no anything but loss"):
        runs(impair=[{"profile": "wan_40ms"}], backend="simulated", per=0)
    workload = {"name": "training", "ranks_per_process": 0}
    jumbo = {"name": "t", "backend": "simulated", "topology": {"mtu": 9000}, "workload": workload}
    with pytest.raises(NotAbleError, match="an MTU of 1500"):
        choose_backend(check(Experiment, jumbo, origin="test"), Kernel.tried())
    with pytest.raises(NotAbleError, match="all ranks in one process"):
        runs(backend="simulated", per=1)


def test_a_nursery_that_died_is_replaced() -> None:
    several = Nurseries()
    first = several.of(())
    first._process.kill()
    first._process.wait()
    assert several.of(()) is not first and several.of(()).lives()
    several.close()


def test_libraries_are_loaded_while_programs_say_what_is_wrong_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: a training loaded torch twice, one after the other: a third of quickstart's first run."""
    several, open_then = Nurseries(), list[int]()
    monkeypatch.setattr(ground, "prepare", lambda _: open_then.append(len(several._open)))
    here = ThisMachine(Kernel.tried(), several)
    for workload, expected in (("noop", 0), ("training", 1)):
        here.prepare([Program(name=workload), Program(command=("true",))])
        assert open_then.pop() == expected
    (one,) = several._open.values()
    here.close()
    assert not one.lives() and not several._open


def test_children_of_a_nursery_end_with_it_and_report_how_they_ended() -> None:
    one = nursery.Nursery(())
    request = {"environment": {}, "log": "/dev/null", "cwd": "/", "where": "", "host": "h0", "hosts_path": "/dev/null"}
    request |= {"group": "", "held": False}
    for module, code in (("this", 0), ("no_such_module", 1)):
        child = one.fork({**request, "module": module})
        while child.poll() is None:
            time.sleep(0.01)
        assert child.poll() == code
        assert Path(f"/proc/{child.pid}").exists(), "it is not reaped before the last signal"
        child.reap()
    sleeper = one.fork({**request, "module": "lossbench.workloads.noop"})
    assert sleeper.poll() is None
    one.close()
    until = time.monotonic() + 60
    while Path(f"/proc/{sleeper.pid}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{sleeper.pid}").exists()
    assert about("training").preload


def test_what_is_measured_over_the_control_link_is_no_way_around_the_fault_and_what_a_strategy_sends_is(
    runs: Runs,
) -> None:
    """As it was: a terabyte was free to training there, and who of it went around met no fault: valid."""
    measured = runs(strategy="rps", drift_every=1)
    assert measured.met.control_bytes > 3e6 and measured.verdict.columns["fault"].status == 0
    assert measured.met.control_bytes < 1.05 * sum(measured.watched.control.values()) + 1e5, "as it says itself"
    around = runs(strategy="tests.training.around:Around", drift_every=1)
    said = " ".join(around.verdict.columns["fault"].reasons())
    assert "MB went over the control links, around the fault" in said and "its programs say" in said
