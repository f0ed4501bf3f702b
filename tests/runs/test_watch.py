"""What programs say of themselves, as a watch takes it, down to the numbers that may not be believed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lossbench.net.conservation import Between
from lossbench.net.counters import LinkCounts, Reading
from lossbench.proof.judge import judge
from lossbench.proof.judge_roles import judge_roles
from lossbench.proof.verdict import Status
from lossbench.proof.watched import Quiet, Watched
from lossbench.results.measures import Standing
from lossbench.runs import watch as watching
from lossbench.runs.launch.member import SAID_BY
from lossbench.runs.watch import Watch
from lossbench.spec.experiment import Expect, Experiment

BESIDE = Experiment.model_validate(
    {
        "name": "t",
        "workload": {"name": "replay"},
        "beside": [{"role": "web", "name": "web", "foreground": True}],
        "impair": [{"profile": "clean"}],
    }
)


def taken(*records: tuple[str, dict[str, Any]], experiment: Experiment = BESIDE) -> Watched:
    watch = Watch.__new__(Watch)
    watch.experiment = experiment
    watch.seen = Watched(quiet=Quiet(cpu_busy=[0.1] * 10, late_ms=[0.1] * 10))
    watch._now = {}
    watch._take([(role, {"rank": 0, **record}) for role, record in records])
    return watch.seen


@pytest.mark.parametrize(
    ("role", "load", "unknown"),
    [("", True, {"", "web"}), ("web", True, {"", "web"}), ("", False, {""}), ("web", False, {"web"})],
)
def test_load_that_was_not_offered_voids_the_times_of_all_programs(role: str, load: bool, unknown: set[str]) -> None:
    """As it was: a replay that had sent half of its bursts left the service's times believed."""
    watched = taken((role, {"kind": "doubt", "text": "half was sent", **({"load": True} if load else {})}))
    verdict = judge(experiment=BESIDE, backend="ebpf", proof=None, watched=watched)
    assert {who for who, here in verdict.roles.items() if here["timing"].status != Status.VALID} == unknown
    assert verdict.columns["timing"].reasons() == ["half was sent"]


@pytest.mark.parametrize(
    ("said", "failed"),
    [
        (("web", {"kind": "error", "message": "nothing was ever sent"}), {"", "web"}),  # learning was alone
        (("web", {"kind": "summary", "ok": 0.5}), {"web"}),
        (("", {"kind": "error", "message": "diverged"}), {"", "web"}),
        (("", {"kind": "summary", "accuracy": 0.1}), {""}),
        (("", {"kind": "summary", "accuracy": 0.9}), set()),
    ],
)
def test_what_was_expected_otherwise_voids_its_own_programs_numbers_and_the_times_of_all(
    said: tuple[str, dict[str, Any]], failed: set[str]
) -> None:
    """As it was: a service that kept no promise voided what training had learned beside it."""
    good = [("", {"kind": "summary", "accuracy": 0.9}), ("web", {"kind": "summary", "ok": 1.0})]
    asked = BESIDE.model_copy(update={"expect": (Expect(field="accuracy", min=0.8), Expect(field="web.ok", min=0.9))})
    verdict = judge(experiment=asked, backend="ebpf", proof=None, watched=taken(*good, said))
    assert {who for who, here in verdict.roles.items() if here["outcome"].status == Status.FAILED} == failed
    assert verdict.columns["outcome"].status == (Status.FAILED if failed else Status.VALID)
    words = {name: one.status.word for name, one in verdict.columns.items()} | {"fault": "valid", "timing": "valid"}
    standing = Standing(columns=words, roles=verdict.words_by_role())
    void = {name for name in ("accuracy", "wall_s", "web.accuracy", "web.wall_s") if standing.void(name)}
    times = {"wall_s", "web.wall_s"} if failed else set()
    assert void == times | {f"{role}.accuracy".strip(".") for role in failed}


def test_what_ends_a_run_is_the_outcome_of_all_its_programs() -> None:
    watched = taken()
    watched.problem = "rank 1 ended with status 7"
    verdict = judge(experiment=BESIDE, backend="ebpf", proof=None, watched=watched)
    assert {here["outcome"].status for here in verdict.roles.values()} == {Status.FAILED}


@pytest.mark.parametrize("role", ["", "noise"])
def test_a_rows_doubt_voids_its_times_and_what_it_names_beside_them(role: str) -> None:
    row = {"what": "learning", "learning_loss": 0.1, "packets": 9, "took_ms": 5.0, "shown": ["what", "learning_loss"]}
    watched = taken((role, {"kind": "row", **row, "doubt": "half was sent", "doubted": ["learning_loss"]}))
    (kept,) = watched.rows
    dot = f"{role}." if role else ""
    standing = Standing(columns=dict.fromkeys(("fault", "timing", "outcome"), "valid"))
    void = {name for name in ("learning_loss", "packets", "took_ms") if standing.void(f"{dot}{name}", kept)}
    assert void == {"learning_loss", "took_ms"} and kept["shown"] == [f"{dot}what", f"{dot}learning_loss"]


def by_torchrun(**more: Any) -> Experiment:
    script = {"command": ["python", "train.py"], "torchrun": 2}
    text = {"name": "t", "topology": {"hosts": 2}, "workload": script, "impair": [{"profile": "clean"}], **more}
    return Experiment.model_validate(text)


def of_each_rank(kind: str, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """As files of two hosts with two ranks each are read."""
    ranks = [(0, 0), (0, 1), (1, 2), (1, 3)]
    return [("", {"kind": kind, **fields, "rank": host, SAID_BY: rank}) for host, rank in ranks]


def test_what_ranks_of_one_host_sent_to_measure_adds_up() -> None:
    """As it was: the last rank of a host spoke for it, and what the other had declared had gone around the fault."""
    said = of_each_rank("control", sent_bytes=1_000_000) + of_each_rank("control", sent_bytes=2_000_000)
    assert sum(taken(*said, experiment=by_torchrun()).control.values()) == 8_000_000


@pytest.mark.parametrize(("silent", "status"), [(0, Status.VALID), (1, Status.UNKNOWN)])
def test_datagrams_of_every_rank_of_a_host_count(silent: int, status: Status) -> None:
    """As it was: half of them, whatever the other half missed."""
    asked = by_torchrun(beside=[{"role": "noise", "command": ["sleep", "9"], "silent": True}])
    said = of_each_rank("traffic", sent=[5, 5], received=[5, 5])
    watched = taken(*said[silent:], experiment=asked)
    links = {rank: LinkCounts() for rank in range(2)}
    (found,) = judge_roles(asked, watched, Between(Reading(links=links), Reading(links=links)))
    assert found.status == status, found
    assert found.text.startswith("the workload misses 0 of 40 datagrams" if not silent else "only 3 of 4 ranks")


@pytest.mark.parametrize(("stood_s", "gap_s", "samples"), [(5.0, 5.0, 2), (0.1, 0.0, 1)])
def test_a_watch_that_stood_still_as_programs_ended_says_so(
    stood_s: float, gap_s: float, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: the last of its gaps, and what programs had waited meanwhile, were left out."""
    watch, clock, sampled, nothing = Watch.__new__(Watch), [0.0], list[float](), lambda *_: None
    watch.experiment, watch.seen, watch.network = BESIDE, Watched(), SimpleNamespace(genuine=True)  # type: ignore[assignment]
    parts = {
        "ranks": SimpleNamespace(
            running=lambda: [] if clock[0] else ["rank-0"], read=list, check_alive=nothing, come_and_go=nothing
        ),
        "schedule": SimpleNamespace(keep=nothing, nap_s=lambda _: stood_s),
        "_load": SimpleNamespace(sample=lambda: sampled.append(clock[0])),
        "_tell": nothing,
        "_look": nothing,
        "_start": 0.0,
        "_looked": 0.0,
    }
    for name, part in parts.items():
        setattr(watch, name, part)
    fake = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: clock.__setitem__(0, seconds))
    monkeypatch.setattr(watching, "time", fake)
    watch._watch()
    assert (watch.seen.quiet.longest_gap_s, len(sampled)) == (gap_s, samples)


def test_a_look_that_would_make_a_change_late_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: looks of 60 ms, the third of them 20 ms before a window's end, which came 57 ms late (50 allowed)."""
    watch, clock, late, nothing = Watch.__new__(Watch), [0.0], list[float](), lambda *_: None
    watch.experiment, watch.seen = BESIDE, Watched()
    due = [0.56, 2.0]

    def keep(elapsed: float) -> None:
        while due and elapsed >= due[0]:
            late.append(elapsed - due.pop(0))

    def passes(seconds: float) -> None:
        clock[0] += seconds

    looks = list[float]()
    parts = {
        "ranks": SimpleNamespace(
            running=lambda: ["rank-0"] if clock[0] < 1.5 else [], read=list, check_alive=nothing, come_and_go=nothing
        ),
        "schedule": SimpleNamespace(keep=keep, nap_s=lambda longest_s: min(max(due[0] - clock[0], 0.0), longest_s)),
        "_sample": lambda elapsed: (looks.append(elapsed), passes(0.06)),
        "_count": nothing,
        "_start": 0.0,
    }
    for name, part in parts.items():
        setattr(watch, name, part)
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=passes))
    watch._watch()
    assert late == pytest.approx([0.0], abs=1e-6) and len(looks) == 6 and max(np.diff(looks)) < 0.35
