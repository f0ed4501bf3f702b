"""The training workload by itself, loss simulated in this process: engines agree, checkpoints resume, mistakes are
one line."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lossbench.contract import Door
from lossbench.workloads.sync.channels.simulated import Simulated
from lossbench.workloads.training.__main__ import Trainer, settled
from lossbench.workloads.training.data.batches import Batches, normalised
from lossbench.workloads.training.data.sets import load
from tests.forked import lossbench_module
from tests.forms import forms, full

pytestmark = pytest.mark.training
ROOT = Path(__file__).resolve().parents[2]
LOSSY = {"simulated": [[{"chain": [[[1.0, 0, 0.2]]]}]]}
QUICK = {"steps": 12, "drift_every": 4, "evaluate_items": 64, "batch": 8}


def trained(tmp_path: Path, world: int = 3, **options: Any) -> Trainer:
    """In this process; records beside each other in tmp_path."""
    given = {**QUICK, **LOSSY, **options}
    (tmp_path / "records").mkdir(exist_ok=True, parents=True)
    doors = [
        Door(
            rank=r, world_size=world, addresses=(), options=given, records_path=str(tmp_path / "records" / f"{r}.jsonl")
        )
        for r in range(world)
    ]
    trainer = Trainer(doors)
    trainer.run()
    return trainer


def records(tmp_path: Path, rank: int, kind: str) -> list[dict[str, Any]]:
    lines = (tmp_path / "records" / f"{rank}.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["kind"] == kind]


def values(trainer: Trainer) -> torch.Tensor:
    return torch.stack([seat.strategy.flat.values for seat in trainer.seats])


@pytest.mark.parametrize(("data", "model"), [("digits", "mlp"), ("pydoc", "llama_200k")])
def test_stacked_workers_train_as_workers_one_by_one(data: str, model: str, tmp_path: Path) -> None:
    keys = {"data": data, "model": model, "steps": 2, "window": 16, "optimizer": "sgd", "lr": 0.1, "evaluate_items": 8}
    loop = trained(tmp_path / "a", engine="loop", **keys)
    stacked = trained(tmp_path / "b", engine="vmap", **keys)
    torch.testing.assert_close(values(loop), values(stacked), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("data", "model", "measure"),
    [
        ("digits", "mlp", "accuracy"),
        pytest.param("digits32", "resnet8", "accuracy", marks=full),  # the test of BatchNorm trains and judges it, too
        ("pydoc", "llama_200k", "perplexity"),
        ("snips_small", "tagger_small", "slot_f1"),
        ("random_walk", "mlp", ""),
    ],
)
def test_every_kind_of_task_trains_and_is_judged(data: str, model: str, measure: str, tmp_path: Path) -> None:
    trained(tmp_path, data=data, model=model, steps=4, window=16, walk_size=2000, evaluate_items=8)
    (row,) = records(tmp_path, 0, "row")
    assert "(simulated)" in row["strategy"] and row["simulated"] is True
    if measure:
        assert row["loss"] > 0 and row["loss_agreed"] > 0
        assert row[measure] >= 0 and row[f"{measure}_agreed"] >= 0  # after four steps a tagger may know no slot yet
        judged = {one["model"] for one in records(tmp_path, 0, "evaluation")}
        assert judged == {"worker", "mean", "owners"}
    steps = records(tmp_path, 1, "step")
    assert [one["step"] for one in steps] == list(range(4))
    assert {"loss", "compute_ms", "half_1_ms", "half_2_ms", "arrived_1", "arrived_2", "from_1", "from_2"} <= set(
        steps[0]
    )


@pytest.mark.parametrize(
    ("strategy", "theirs"),
    [("rps", {"alpha_1", "alpha_2"}), ("bounded_drift", {"over_exact", "over_stated", "over_predicted"})],
)
def test_what_theory_speaks_of_stands_in_the_table_of_those_whom_it_is_about(
    strategy: str, theirs: set[str], tmp_path: Path
) -> None:
    """As it was, estimated and in no table."""
    trained(tmp_path, strategy=strategy, optimizer="sgd", lr=0.1)
    (row,) = records(tmp_path, 0, "row")
    assert theirs == {name for name in row["shown"] if name.startswith(("alpha", "over_"))}
    assert all(row[name] > 0 for name in theirs)


def test_learning_really_happens(tmp_path: Path) -> None:
    trained(tmp_path, steps=50, batch=16, drift_every=0)
    (row,) = records(tmp_path, 0, "row")
    assert row["accuracy"] > 0.9
    losses = [one["loss"] for one in records(tmp_path, 0, "step")]
    assert losses[-1] < losses[0] / 3


@full
def test_the_time_to_a_target_is_that_of_the_first_evaluation_that_has_it(tmp_path: Path) -> None:
    trained(tmp_path / "a", steps=120, batch=32, target=0.8, evaluate_every=10)
    (row,) = records(tmp_path / "a", 0, "row")
    assert row["reached"] == 1.0 and row["target_s"] > 0 and "target_s" in row["shown"]
    found: dict[int, list[float]] = {}
    for rank in range(3):
        for one in records(tmp_path / "a", rank, "evaluation"):
            if one["model"] == "worker":
                found.setdefault(one["step"] + 1, []).append(one["accuracy"])
    assert row["target_steps"] == min(step for step, some in found.items() if sum(some) / 3 >= 0.8) < 120
    steps_ms = [sum(v for k, v in one.items() if k.endswith("_ms")) for one in records(tmp_path / "a", 0, "step")]
    assert row["target_s"] > 0.5 * sum(steps_ms[: row["target_steps"]]) / 1000


def test_a_target_that_was_not_reached_has_no_time(tmp_path: Path) -> None:
    trained(tmp_path, target=1.1)
    (row,) = records(tmp_path, 0, "row")
    assert row["reached"] == 0.0 and row["target_s"] == "not reached" and "target_steps" not in row
    assert len({one["step"] for one in records(tmp_path, 0, "evaluation")}) == 12, "it was looked for"


@full
def test_int8_on_text_costs_at_most_two_percent_of_the_loss(tmp_path: Path) -> None:
    """A quarter of the bytes; of 300 steps the same was measured (results/LOG.md): 1.002 to 1.011."""
    text: dict[str, Any] = {"data": "pydoc", "model": "llama_25k", "batch": 8, "steps": 40, "lr": 3e-3, "simulated": [],
                            "evaluate_items": 100, "drift_every": 0}  # fmt: skip
    losses = []
    for coding in ((), ("int8",)):
        trained(tmp_path / str(len(losses)), world=2, **text, coding=coding)
        (row,) = records(tmp_path / str(len(losses)), 0, "row")
        losses.append((row["loss"], row["train_loss"]))
    plain, narrow = losses
    assert plain != narrow, "it was rounded"
    assert all(b <= 1.02 * a for a, b in zip(plain, narrow, strict=True)), losses
    assert plain[0] < 0.8 * 5.55, "and something was learned: a guess among 256 has ln 256"


def test_noise_has_no_target_to_reach(tmp_path: Path) -> None:
    trained(tmp_path, target=0.9, data="random_walk", walk_size=400)
    (row,) = records(tmp_path, 0, "row")
    assert "reached" not in row and "target_s" not in row


def test_a_resumed_run_knows_that_it_reached_its_target_but_not_when(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"checkpoint_every": 4, "target": 0.0, "evaluate_every": 2}
    trained(tmp_path / "half", **keys, steps=8)
    trained(tmp_path / "rest", **keys, resume=True, checkpoint_dir=str(tmp_path / "half" / "checkpoints"))
    (row,) = records(tmp_path / "rest", 0, "row")
    assert row["reached"] == 1.0 and "target_steps" not in row and "target_s" not in row


def test_the_typical_step_of_workers_that_meet_now_and_then_has_its_share_of_the_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was, the median of steps of which three in four send nothing: the network took no time."""
    gather = Simulated.begin_gather
    monkeypatch.setattr(Simulated, "begin_gather", lambda *given, **how: (time.sleep(0.2), gather(*given, **how))[1])
    trainer = trained(tmp_path, strategy="local_steps", strategy_options={"every": 4}, drift_every=0)
    (row,) = records(tmp_path, 0, "row")
    rounds = sorted(1000 * sum(trainer.step_s[at : at + 4]) / 4 for at in (0, 4, 8))
    assert row["ms_step"] == pytest.approx(rounds[1]) and rounds[0] >= 200 / 4
    assert row["ms_step_mean"] == pytest.approx(1000 * sum(trainer.step_s) / len(trainer.step_s))


def test_workers_that_meet_now_and_then_are_looked_at_when_they_have_met(tmp_path: Path) -> None:
    """As it was, every ten steps of rounds of eight: what is apart between two meetings was called drift."""
    keys: dict[str, Any] = {"strategy": "local_steps", "drift_every": 5, "evaluate_every": 3, "simulated": [[]]}
    trained(tmp_path, **keys, strategy_options={"every": 4})
    drifts = records(tmp_path, 0, "drift")
    assert [one["step"] + 1 for one in drifts] == [8, 12] and not any(one["pair"] for one in drifts)
    assert sorted({one["step"] + 1 for one in records(tmp_path, 0, "evaluation")}) == [4, 8, 12]
    assert "after the last exchange" not in records(tmp_path, 0, "row")[0]["note"]
    trained(tmp_path / "uneven", **keys, strategy_options={"every": 7})
    assert "judged 5 steps after the last exchange" in records(tmp_path / "uneven", 0, "row")[0]["note"]


def test_a_row_says_which_engine_made_its_steps(tmp_path: Path) -> None:
    for engine in ("loop", "vmap"):
        trained(tmp_path / engine, engine=engine)
        assert f"engine {engine}" in records(tmp_path / engine, 0, "row")[0]["note"]


def test_speeds_are_those_of_all_steps_and_not_of_the_typical_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was, at the median step: one step in ten that waits ten times as long cost nothing."""
    gather, waits = Simulated.begin_gather, iter([0.5] + [0.0] * 1000)
    monkeypatch.setattr(
        Simulated, "begin_gather", lambda *given, **how: (time.sleep(next(waits)), gather(*given, **how))[1]
    )
    trainer = trained(tmp_path, strategy="rps", drift_every=0)
    (row,) = records(tmp_path, 0, "row")
    took, steps = sum(trainer.step_s), len(trainer.step_s)
    assert row["ms_step_mean"] == pytest.approx(1000 * took / steps) and row["ms_step_mean"] > 500 / steps
    assert row["samples_s"] == pytest.approx(3 * QUICK["batch"] * steps / took)
    assert {"ms_step", "ms_step_mean"} <= set(row["shown"])


def test_the_mean_squared_gradient_is_of_all_steps_the_first_ones_too(tmp_path: Path) -> None:
    """As it was, of the ends of intervals: the start, where it is largest, was left out and the end counted."""
    trained(
        tmp_path, model="linear", optimizer="sgd", lr=0.1, gradient_square=True, evaluate_every=3, evaluate_items=2000
    )
    (row,) = records(tmp_path, 0, "row")
    seen = [one["gradient_square"] for one in records(tmp_path, 0, "evaluation") if one["model"] == "mean"]
    assert len(seen) == 4, "after 3, 6, 9 and 12 steps"
    pixels, labels = load("digits").train
    inputs = normalised(pixels).flatten(1)
    errors = 0.1 - torch.nn.functional.one_hot(labels, 10).float()  # of softmax regression from zero
    weights, biases = errors.t() @ inputs / len(labels), errors.mean(0)
    start = float(weights.square().sum() + biases.square().sum())
    assert start != pytest.approx(seen[-1], rel=0.1)
    assert row["gradient_square"] == pytest.approx((start + sum(seen[:3])) / 4, rel=1e-4)


def test_workers_with_other_labels_more_often(tmp_path: Path) -> None:
    """By a Dirichlet: few labels each at .1, all alike at 1000; the same whoever shares a process."""

    def labels(skew: float, ranks: list[int]) -> torch.Tensor:
        data = load("digits", "")
        batches = Batches(data, ranks=ranks, world=4, items=64, seed=1, device=torch.device("cpu"), skew=skew)
        return torch.stack([batches.at(step)[1] for step in range(20)])

    few, alike = labels(0.1, [0, 1, 2, 3]), labels(1000.0, [0, 1, 2, 3])
    assert torch.equal(few[:, 2:3], labels(0.1, [2]))
    for rank in range(4):
        share = torch.bincount(few[:, rank].flatten(), minlength=10) / few[:, rank].numel()
        even = torch.bincount(alike[:, rank].flatten(), minlength=10) / alike[:, rank].numel()
        assert float(share.sort().values[-3:].sum()) > 0.75 and float(even.max()) < 0.2
    trained(tmp_path, skew=0.1)


def test_models_are_judged_as_they_are_used_and_go_on_learning(tmp_path: Path) -> None:
    """What is drawn while a model learns (dropout) is no part of it when it is judged."""
    from lossbench.workloads.training.evaluate import judge

    job = trained(tmp_path, steps=1).job
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 10))
    assert judge(model, job.task, job.batches, 64) == judge(model, job.task, job.batches, 64)
    assert model.training


@full
def test_statistics_of_batchnorm_are_those_of_the_model_that_is_judged(tmp_path: Path) -> None:
    """Running statistics spoiled on purpose do not change the judgement."""
    from lossbench.workloads.training.evaluate import judge

    trainer = trained(tmp_path, data="digits32", model="resnet8", steps=3)
    seat, job = trainer.seats[0], trainer.job
    before = judge(seat.model, job.task, job.batches, 64)
    for module in seat.model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.fill_(100.0)
    assert judge(seat.model, job.task, job.batches, 64) == pytest.approx(before)


@forms("strategy", ["bounded_drift", "rps", "gradient_averaging", "reliable"], keep=2)
def test_a_run_resumed_from_a_checkpoint_ends_as_one_that_was_not_interrupted(strategy: str, tmp_path: Path) -> None:
    keys = {"strategy": strategy, "optimizer": "adamw", "simulated": [[]], "checkpoint_every": 4}
    whole = trained(tmp_path / "whole", **keys)
    half = tmp_path / "half"
    trained(half, **keys, steps=8)
    resumed = trained(tmp_path / "rest", **keys, resume=True, checkpoint_dir=str(half / "checkpoints"))
    assert records(tmp_path / "rest", 0, "begin")[0]["first_step"] == 8
    torch.testing.assert_close(values(whole), values(resumed))


def test_a_rank_that_fails_ends_the_others_of_its_process_at_once(tmp_path: Path) -> None:
    trainer = trained(tmp_path)

    def work(number: int) -> None:
        if number == 1:
            raise RuntimeError("this one")
        trainer.seats[number].control.gather(torch.zeros(1))

    with pytest.raises(RuntimeError, match="this one"):
        trainer.crew.each(work)


def test_the_latest_checkpoint_that_all_ranks_have_is_taken(tmp_path: Path) -> None:
    trained(tmp_path, checkpoint_every=4)
    folder = tmp_path / "checkpoints"
    assert sorted(p.name for p in folder.glob("*rank-1*")) == ["step-00000008.rank-1.pt", "step-00000012.rank-1.pt"]
    (folder / "step-00000012.rank-1.pt").unlink()
    trained(tmp_path / "again", resume=True, checkpoint_dir=str(folder))
    assert records(tmp_path / "again", 0, "begin")[0]["first_step"] == 8


# --- trouble, seen from outside --------------------------------------------------------------------------------------


def outside(tmp_path: Path, world: int = 2, records_path: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    (tmp_path / "records").mkdir(exist_ok=True, parents=True)
    (tmp_path / "options.json").write_text(json.dumps({**QUICK, **LOSSY, **options}))
    seats = [
        {"rank": r, "records": records_path or str(tmp_path / "records" / f"{r}.jsonl"), "namespace": ""}
        for r in range(world)
    ]
    (tmp_path / "seats.json").write_text(json.dumps(seats))
    variables = {"LOSSBENCH_SPEC": str(tmp_path / "options.json"), "LOSSBENCH_SEATS": str(tmp_path / "seats.json")}
    environment = {**os.environ, **variables, "RANK": "0", "WORLD_SIZE": str(world)}
    return lossbench_module("lossbench.workloads.training", environment)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_a_loss_that_is_not_a_number_ends_the_run_and_keeps_what_was_learned(tmp_path: Path) -> None:
    said = last_line(outside(tmp_path, optimizer="sgd", lr=1e30, strategy="none"))
    assert "the loss is nan" in said or "the loss is inf" in said
    assert "a lower lr may help" in said
    assert records(tmp_path, 0, "step"), "results so far are kept"
    assert "the loss is" in records(tmp_path, 0, "error")[0]["message"]


def test_an_unreadable_checkpoint_is_named(tmp_path: Path) -> None:
    trained(tmp_path, world=2, checkpoint_every=12)
    damaged = tmp_path / "checkpoints" / "step-00000012.rank-1.pt"
    damaged.write_bytes(damaged.read_bytes()[:100])
    said = last_line(outside(tmp_path / "again", resume=True, checkpoint_dir=str(tmp_path / "checkpoints")))
    assert str(damaged) in said and "delete it to go on from an earlier one" in said


def test_a_checkpoint_of_another_strategy_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, world=2, checkpoint_every=12)
    folder = str(tmp_path / "checkpoints")
    said = last_line(outside(tmp_path / "again", resume=True, strategy="rps", checkpoint_dir=folder))
    assert "was made with strategy bounded_drift, this run has rps" in said
    said = last_line(outside(tmp_path / "third", resume=True, lr=0.5, checkpoint_dir=folder))
    assert "was made with options" in said, "another learning rate is another experiment"


def test_a_checkpoint_holds_one_rank_not_all_of_its_process(tmp_path: Path) -> None:
    trained(tmp_path, world=8, checkpoint_every=12, optimizer="sgd")
    sizes = [path.stat().st_size for path in (tmp_path / "checkpoints").iterdir()]
    assert max(sizes) < 2 * 26_122 * 4


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    said = last_line(outside(tmp_path, records_path="/dev/full"))
    assert "No space left on device" in said


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stepz": 3}, "workload.options.stepz: no such option; did you mean steps? known are strategy,"),
        ({"steps": 0}, "workload.options.steps: Input should be greater than or equal to 1"),
        ({"strategy": "rsp"}, "no strategy 'rsp'; did you mean rps? known are none, reliable"),
        ({"data": "cifar"}, "no data set 'cifar': known are digits"),
        ({"model": "resnet20", "data": "pydoc"}, "model 'resnet20' is for images, this data is text"),
        ({"strategy": "ddp"}, "strategy ddp needs one process per rank"),
        ({"engine": "graph", "device": "cpu"}, "engine graph needs a GPU"),
        ({"batch": 5000}, "too few for 2 ranks"),
        ({"resume": True}, "give checkpoint_dir, the folder to resume from"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert expected in last_line(outside(tmp_path, **options))


def test_packets_that_still_wait_in_a_queue_are_awaited_before_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: after .3 s what stood behind a service that goes first was missing, and no queue had lost it."""
    received = iter([[3, 0], [5, 1], [6, 1], [6, 1], [9, 9]])
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert settled(lambda: [{"received": next(received)}]) == [{"received": [6, 1]}]
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    endless = itertools.count()
    assert settled(lambda: [{"received": [next(endless)]}]), "at most for a while"


def test_a_workload_that_is_alone_waits_for_no_queue_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: every run of training was .9 s longer for it."""
    said: list[dict[str, Any]] = []
    waits: list[int] = []
    seat = SimpleNamespace(
        strategy=SimpleNamespace(channel=SimpleNamespace(counters=lambda: {"sent": [1], "received": [2]})),
        door=SimpleNamespace(record=lambda _, **keys: said.append(keys)),
    )
    trainer = SimpleNamespace(seats=[seat])
    monkeypatch.setattr(time, "sleep", lambda _: waits.append(1))
    for beside in ("", "web"):
        monkeypatch.setenv("LOSSBENCH_BESIDE", beside)
        Trainer._say_traffic(trainer)  # type: ignore[arg-type]
        assert bool(waits) is bool(beside)
    assert said == [{"sent": [1], "received": [2], "complete": False}] * 2
