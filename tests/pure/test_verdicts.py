from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness import judge, lossmodel, profile
from harness.errors import NotAbleError
from harness.evidence import Count, FlowSeen
from harness.experiment import Experiment
from harness.net.impair import registry
from harness.net.impair.base import Position, RuleCounters
from harness.placement import Hook, Rule
from harness.profile import Match
from harness.proof import prove
from harness.verdict import Finding, Judgement, Status, Verdict, judge_timing
from harness.watch import Segment, Watched

UP, DOWN = Hook(rank=0, direction="uplink"), Hook(rank=1, direction="downlink")
RULE = Rule(label="0:loss_5", profile=profile.load("loss_5"), match=Match(), seed=77, block_seed=1)
CHAIN = lossmodel.iid(0.05)


def proof(missing: Any, *, dropped: int | None = None, generator: int | None = 77, supers: int = 0, **more: Any) -> Any:
    lost = int(missing.sum())
    count = Count(
        seen=len(missing), dropped=lost if dropped is None else dropped, generator=generator, super_packets=supers
    )
    options: dict[str, Any] = {"overflow": 0, "queue_drops": 0, "bystanders": False, "remarks": [], **more}
    flow = FlowSeen(name="h0 to h1", uplink=(UP, RULE), downlink=(DOWN, None), missing=missing)
    return prove(
        rules={UP: (RULE,)},
        flows=[flow],
        counts={(UP, RULE.label): count},
        read_back={(UP, RULE.label): 0.05},
        **options,
    )


def test_the_seeded_pattern_is_proven_packet_by_packet() -> None:
    result = proof(lossmodel.predict(CHAIN, seed=77, count=5000))
    assert result.rows[0].exact is True
    assert result.judgement.status == Status.VALID


def test_one_packet_off_the_pattern_is_no_proof() -> None:
    missing = lossmodel.predict(CHAIN, seed=77, count=5000)
    missing[[10, 11]] = ~missing[[10, 11]]
    assert proof(missing).judgement.status == Status.FAILED


def test_a_rule_that_saw_no_probe_is_not_proven() -> None:
    nothing = np.zeros(5000, dtype=bool)
    count = Count(seen=0, dropped=0, generator=77)
    flow = FlowSeen(name="h0 to h1", uplink=(UP, RULE), downlink=(DOWN, None), missing=nothing)
    result = prove(
        rules={UP: (RULE,)}, flows=[flow], counts={(UP, RULE.label): count}, read_back={}, overflow=0, queue_drops=0,
        bystanders=False, remarks=[],
    )  # fmt: skip
    assert result.judgement.status == Status.FAILED


def test_an_unseeded_network_is_judged_by_its_rate() -> None:
    honest = lossmodel.predict(CHAIN, seed=5, count=20_000)
    assert proof(honest, generator=None).judgement.status == Status.VALID
    wrong = lossmodel.predict(lossmodel.iid(0.07), seed=5, count=20_000)
    assert proof(wrong, generator=None).judgement.status == Status.FAILED


def test_right_rate_in_wrong_bursts_fails() -> None:
    bursty = lossmodel.predict(lossmodel.gilbert_from_means(mean=0.05, burst_packets_mean=64), seed=3, count=20_000)
    result = proof(bursty, generator=None)
    assert any("burst" in reason for reason in result.judgement.reasons())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"supers": 3}, "3 super-packets passed the loss point"),
        ({"overflow": 2}, "2 probe packets overflowed"),
        ({"dropped": 1}, "receivers miss"),
        ({"remarks": ["offloads are not as they must be"]}, "offloads"),
    ],
)
def test_what_can_not_be_established_is_unknown_never_valid(changes: dict[str, Any], words: str) -> None:
    missing = lossmodel.predict(CHAIN, seed=77, count=5000)
    result = proof(missing, **changes)
    assert result.judgement.status == Status.UNKNOWN
    assert any(words in reason for reason in result.judgement.reasons())


def test_a_queue_that_overflowed_is_accounted_for_apart() -> None:
    missing = lossmodel.predict(CHAIN, seed=77, count=5000)
    lost = int(missing.sum())
    missing_more = missing.copy()
    missing_more[np.flatnonzero(~missing)[:5]] = True
    result = proof(missing_more, dropped=lost, generator=None, queue_drops=5)
    assert result.judgement.status == Status.VALID


def experiment(**keys: Any) -> Experiment:
    return Experiment.model_validate({"name": "t", **keys})


def test_without_a_probe_the_fault_is_unknown() -> None:
    verdict = judge.judge(experiment=experiment(), proof=None, watched=Watched(), missing_counted=0)
    assert verdict.columns["fault"].status == Status.UNKNOWN


def segment(seen: int, dropped: int) -> Segment:
    position = Position(generator=0, state=0, packets=seen)
    return Segment(hook=UP, rule=RULE, counters=RuleCounters(seen=seen, dropped=dropped, position=position))


def test_during_the_run_a_seeded_counter_must_be_exact() -> None:
    expected = int(lossmodel.predict(CHAIN, seed=77, count=10_000).sum())
    base = proof(lossmodel.predict(CHAIN, seed=77, count=5000))
    good = judge.judge_fault(experiment(), base, Watched(segments=[segment(10_000, expected)]), 0)
    bad = judge.judge_fault(experiment(), base, Watched(segments=[segment(10_000, expected + 1)]), 0)
    assert (good.status, bad.status) == (Status.VALID, Status.FAILED)


@pytest.mark.parametrize(
    ("complete", "counted", "status"),
    [(True, 7, Status.VALID), (True, 9, Status.UNKNOWN), (False, 9, Status.VALID), (False, 5, Status.UNKNOWN)],
)
def test_the_workloads_own_numbers_must_fit_the_kernels(complete: bool, counted: int, status: Status) -> None:
    base = proof(lossmodel.predict(CHAIN, seed=77, count=5000))
    traffic = {
        0: {"sent": [0, 50], "received": [0, 50], "complete": complete},
        1: {"sent": [50, 0], "received": [43, 0], "complete": complete},
    }
    assert (
        judge.judge_fault(experiment(topology={"hosts": 2}), base, Watched(traffic=traffic), counted).status == status
    )


def fault_of(watched: Watched, **keys: Any) -> tuple[Status, str]:
    base = proof(lossmodel.predict(CHAIN, seed=77, count=5000))
    judgement = judge.judge_fault(experiment(**keys), base, watched, 0)
    return judgement.status, " ".join(judgement.reasons())


def test_a_fault_that_lapsed_or_never_came_is_unknown() -> None:
    assert fault_of(Watched(lapses=["h0 uplink: rule is not attached"])) == (
        Status.UNKNOWN, "h0 uplink: rule is not attached",
    )  # fmt: skip
    assert fault_of(Watched(never=["impair.0 was never in force"]))[0] == Status.UNKNOWN


def test_a_workload_that_goes_round_the_fault_is_unknown() -> None:
    idle = Watched(segments=[segment(0, 0)])
    status, said = fault_of(idle, impair=[{"profile": "loss_5"}], workload={"name": "chatter"})
    assert status == Status.UNKNOWN and "control link" in said
    assert fault_of(idle, impair=[{"profile": "loss_5"}])[0] == Status.VALID, "noop sends nothing by design"


def test_traffic_that_was_not_reported_by_all_ranks_proves_nothing() -> None:
    status, said = fault_of(Watched(traffic={0: {"sent": [5], "received": [5], "complete": True}}))
    assert status == Status.UNKNOWN and "only 1 ranks" in said


def test_super_packets_are_seen_whatever_label_they_are_counted_under() -> None:
    missing = lossmodel.predict(CHAIN, seed=77, count=5000)
    flow = FlowSeen(name="h0 to h1", uplink=(UP, RULE), downlink=(DOWN, None), missing=missing)
    counts = {
        (UP, RULE.label): Count(seen=5000, dropped=int(missing.sum()), generator=77),
        (UP, "none"): Count(seen=0, dropped=0, super_packets=9),
    }
    result = prove(
        rules={UP: (RULE,)}, flows=[flow], counts=counts, read_back={}, overflow=0, queue_drops=0, bystanders=False,
        remarks=[],
    )  # fmt: skip
    assert result.judgement.status == Status.UNKNOWN


def without_counters(missing: Any) -> Status:
    flow = FlowSeen(name="h0 to h1", uplink=(UP, RULE), downlink=(DOWN, None), missing=missing)
    lost = Count(seen=len(missing), dropped=int(missing.sum()))
    return prove(
        rules={UP: (RULE,)}, flows=[flow], counts={(UP, "total"): lost}, read_back={}, overflow=0, queue_drops=0,
        bystanders=False, remarks=[],
    ).judgement.status  # fmt: skip


def test_a_rule_the_kernel_can_not_count_apart_is_judged_by_its_receivers() -> None:
    assert without_counters(lossmodel.predict(CHAIN, seed=3, count=5000)) == Status.VALID
    assert without_counters(lossmodel.predict(lossmodel.iid(0.6), seed=3, count=5000)) == Status.FAILED


def test_a_rule_that_was_not_probed_is_unknown() -> None:
    other = Rule(label="1:x", profile=RULE.profile, match=Match(dscp=9), seed=1, block_seed=1)
    missing = lossmodel.predict(CHAIN, seed=77, count=5000)
    flow = FlowSeen(name="h0 to h1", uplink=(UP, RULE), downlink=(DOWN, None), missing=missing)
    count = Count(seen=5000, dropped=int(missing.sum()), generator=77)
    result = prove(
        rules={UP: (other, RULE)}, flows=[flow], counts={(UP, RULE.label): count}, read_back={}, overflow=0,
        queue_drops=0, bystanders=False, remarks=[],
    )  # fmt: skip
    assert result.judgement.status == Status.UNKNOWN and "no probe met rule 1:x" in result.judgement.reasons()[0]


def test_expectations_decide_the_outcome() -> None:
    watched = Watched(summaries=[{"accuracy": 0.8}, {"accuracy": 0.9}])
    assert judge.judge_outcome(experiment(expect=[{"field": "accuracy", "min": 0.84}]), watched).status == Status.VALID
    assert judge.judge_outcome(experiment(expect=[{"field": "accuracy", "min": 0.86}]), watched).status == Status.FAILED
    assert judge.judge_outcome(experiment(expect=[{"field": "loss", "min": 0}]), watched).status == Status.FAILED


def test_a_busy_machine_voids_latencies_unless_sides_were_interleaved() -> None:
    quiet, _ = judge_timing(cpu_busy=[0.5] * 10, late_ms=[0.1] * 10, interleaved=False)
    busy, _ = judge_timing(cpu_busy=[1.0] * 10, late_ms=[0.1] * 10, interleaved=False)
    ratio, marks = judge_timing(cpu_busy=[1.0] * 10, late_ms=[0.1] * 10, interleaved=True)
    assert (quiet.status, busy.status, ratio.status) == (Status.VALID, Status.UNKNOWN, Status.VALID)
    assert marks == ("timing: ratios only",)


def test_a_verdict_is_the_worst_of_its_essential_columns() -> None:
    def column(status: Status) -> Judgement:
        return Judgement(findings=(Finding(status=status, text="x"),))

    columns = {"fault": column(Status.VALID), "timing": column(Status.UNKNOWN), "outcome": column(Status.VALID)}
    assert Verdict(columns=columns, essential=("fault", "outcome")).status == Status.VALID
    assert Verdict(columns=columns, essential=("fault", "timing")).status == Status.UNKNOWN


ALL = {"netem": None, "ebpf": None, "cbpf": None, "edt": "no fq", "relay": "no tun"}


def test_netem_is_the_first_choice_unless_the_profile_needs_what_it_lacks(tmp_path: Any) -> None:
    path = tmp_path / "b.toml"
    path.write_text('why="x"\n[loss]\nmodel="block"\npercent=10')
    assert registry.choose("auto", profiles=[profile.load("loss_5")], able=ALL)[0] == "netem"
    assert registry.choose("auto", profiles=[profile.load(str(path))], able=ALL)[0] == "ebpf"
    assert (
        registry.choose("auto", profiles=[profile.load("loss_5")], able={**ALL, "netem": "no", "ebpf": "no"})[0]
        == "cbpf"
    )


@pytest.mark.parametrize(
    ("asked", "name", "able", "words"),
    [
        ("cbpf", "bursty_1", ALL, "cbpf can't do loss other than iid (profile bursty_1); backend netem can, here"),
        (
            "netem",
            "loss_5",
            {**ALL, "netem": "this kernel has no sch_netem"},
            "no sch_netem; on a stock kernel, here: lossbench vm run",
        ),
        ("auto", "wan_40ms", {**ALL, "netem": "no"}, "backend netem could"),
        ("auto", "bursty_1", {**ALL, "netem": "n", "ebpf": "e"}, "no backend of this machine"),
    ],
)
def test_what_can_not_be_done_is_refused_and_says_who_could(asked: str, name: str, able: Any, words: str) -> None:
    with pytest.raises(NotAbleError) as caught:
        registry.choose(asked, profiles=[profile.load(name)], able=able)
    assert words in str(caught.value) and caught.value.exit_code == 4
