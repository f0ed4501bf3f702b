"""What ranks say of themselves at the end, from their files to the numbers of a run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lossbench.proof import judge
from lossbench.proof.verdict import Status
from lossbench.proof.watched import Watched
from lossbench.runs import summary
from lossbench.runs.launch.member import Member
from lossbench.runs.watch import Watch
from lossbench.spec.experiment import Experiment
from lossbench.spec.topology import Topology


def heard(folder: Path, lines: dict[int, list[dict[str, Any]]], experiment: Experiment, role: str = "") -> Watched:
    """By number of the file: what stands in it."""
    watch = Watch.__new__(Watch)
    watch.experiment, watch.seen, watch._now = experiment, Watched(), {}
    watch.schedule = SimpleNamespace(stepped=lambda record: None)  # type: ignore[assignment]
    for number, said in lines.items():
        path = folder / f"rank-{number}.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in said))
        member = Member(number=number, process=None, records=path, log=path)  # type: ignore[arg-type]
        watch._take([(role, record) for record in member.new_records()[0]])
    return watch.seen


def asked(**workload: Any) -> Experiment:
    expect = [{"field": "accuracy", "min": 0.9}]
    return Experiment(name="x", topology={"hosts": 2}, workload=workload, expect=expect)  # type: ignore[arg-type]


def said(rank: int, **numbers: float) -> dict[str, Any]:
    return {"kind": "summary", "rank": rank, **numbers}


def test_a_number_that_a_rank_says_again_is_the_last_one(tmp_path: Path) -> None:
    """As it was: `summary` after every epoch gave the mean over epochs, and the expectation was judged by that."""
    lines = {n: [said(n, accuracy=0.1, loss=3.0), said(n, accuracy=0.9 + 0.02 * n)] for n in range(2)}
    for role, name in (("", "accuracy"), ("web", "web.accuracy")):
        found = summary._means(heard(tmp_path, lines, asked(), role).summaries)
        assert found[name] == pytest.approx(0.91) and found[name.replace("accuracy", "loss")] == 3.0
    assert judge.judge_outcome(asked(), heard(tmp_path, lines, asked())).status == Status.VALID


def test_a_rank_that_has_no_number_leaves_no_mean_of_the_others(tmp_path: Path) -> None:
    """NaN and infinity are kept as nothing; a rank that does not speak of it is another thing."""
    lines = {0: [said(0, loss=3.0, accuracy=0.9)], 1: [said(1, loss=float("nan"))]}
    assert summary._means(heard(tmp_path, lines, asked()).summaries) == {"loss": None, "accuracy": 0.9}


def test_a_mean_of_some_ranks_says_so(tmp_path: Path) -> None:
    """As it was: the mean of one rank of four stood in the table as everybody's. Rank 0 may record alone."""
    lines = {0: [said(0, wall=1.0, best=2.0)], 1: [said(1, loss=3.0)], 2: [said(2, loss=3.0, lr=1.0)]}
    experiment = asked().model_copy(update={"topology": Topology(hosts=4)})
    assert summary._of_some(experiment, heard(tmp_path, lines, experiment)) == [
        "only 2 of 4 ranks reported loss: of these alone",
        "only 1 of 4 ranks (rank 2) reported lr: of these alone",
    ]


def test_a_rank_that_speaks_in_anothers_name_counts_once_and_as_itself(tmp_path: Path) -> None:
    """As it was: rank 0, saying 1 once, counted twice in the mean."""
    lines = {0: [said(0, accuracy=0.5), said(1, accuracy=0.9)], 1: [said(1, accuracy=0.9)]}
    watched = heard(tmp_path, lines, asked())
    assert [(one["rank"], one["accuracy"]) for one in watched.summaries] == [(0, 0.9), (1, 0.9)]


def test_ranks_that_share_a_host_under_torchrun_are_told_apart(tmp_path: Path) -> None:
    """As it was: "only 2 of 4 ranks reported", whoever had."""
    experiment = asked(command=["python", "train.py"], torchrun=2)
    lines = {n: [said(2 * n + here, accuracy=0.9 + 0.01 * here) for here in range(2)] for n in range(2)}
    watched = heard(tmp_path, lines, experiment)
    assert summary._means(watched.summaries)["accuracy"] == pytest.approx(0.905)
    assert judge.judge_outcome(experiment, watched).status == Status.VALID
    some = heard(tmp_path, {n: lines[n][: 1 + n] for n in range(2)}, experiment)
    assert judge.judge_outcome(experiment, some).reasons() == ["only 3 of 4 ranks reported 'accuracy'"]


def test_what_is_known_of_a_program_is_known_once_a_host(tmp_path: Path) -> None:
    """As it was: "only 2 of 4 ranks reported 'wall_s'" where torchrun starts two on each host."""
    workload = {"command": ["python", "train.py"], "torchrun": 2}
    expect = [{"field": "wall_s", "max": 9.0}]
    experiment = Experiment(name="x", topology={"hosts": 2}, workload=workload, expect=expect)  # type: ignore[arg-type]
    watched = heard(tmp_path, {n: [{"kind": "program", "rank": n, "wall_s": 3.0}] for n in range(2)}, experiment)
    assert judge.judge_outcome(experiment, watched).status == Status.VALID
