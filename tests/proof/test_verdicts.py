from __future__ import annotations

import bisect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lossbench.errors import NotAbleError
from lossbench.net.conservation import Between, counted_twice
from lossbench.net.counters import LATE_MS, TOTAL, Held, LinkCounts, Position, Queue, Reading, RuleCounters, Sockets
from lossbench.net.impair import registry
from lossbench.proof import judge, judge_fault
from lossbench.proof.covers.rows import covered, not_judged
from lossbench.proof.evidence import FlowSeen, Seen
from lossbench.proof.judge_roles import judge_absent
from lossbench.proof.judge_rules import judge_rules
from lossbench.proof.pace import judge_rates
from lossbench.proof.prove import prove
from lossbench.proof.verdict import Finding, Judgement, Status, Verdict
from lossbench.proof.watched import ROLE, Carried, Quiet, Watched
from lossbench.spec import lossmodel, profile
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import Hook, Rule, rules_in_force
from lossbench.spec.profile import Match, Profile

UP, DOWN = Hook(rank=0, direction="uplink"), Hook(rank=1, direction="downlink")
RULE = Rule(label="0:loss_5", profile=profile.load("loss_5"), match=Match(), seed=77, block_seed=1)
CHAIN = lossmodel.iid(0.05)
START = Position(generator=77, state=0, packets=0)


def proven(missing: Any, counts: Any, *, rules: Any = (RULE,), remarks: Any = (), **more: Any) -> Any:
    flow = FlowSeen(name="h0 to h1", uplink=(UP, RULE), downlink=(DOWN, None), missing=missing)
    return prove(rules={UP: rules}, seen=Seen(flows=[flow], counts=counts, **more), remarks=list(remarks))


def proof(
    missing: Any, *, dropped: int | None = None, start: Position | None = START, supers: int = 0, **more: Any
) -> Any:
    lost = int(missing.sum())
    count = RuleCounters(
        seen=len(missing), dropped=lost if dropped is None else dropped, position=start, super_packets=supers
    )
    return proven(missing, {(UP, RULE.label): count}, read_back={(UP, RULE.label): 0.05}, **more)


def test_the_seeded_pattern_is_proven_packet_by_packet() -> None:
    result = proof(lossmodel.predict(CHAIN, seed=77, count=5000))
    assert result.rows[0].exact is True
    assert result.judgement.status == Status.VALID


def test_one_packet_off_the_pattern_is_no_proof() -> None:
    """Also where as many are missing as should be."""
    predicted = lossmodel.predict(CHAIN, seed=77, count=5000)
    lost, kept = np.flatnonzero(predicted)[0], np.flatnonzero(~predicted)[0]
    for off in ([10, 11], [lost, kept]):
        missing = predicted.copy()
        missing[off] = ~missing[off]
        assert proof(missing).judgement.status == Status.FAILED


def counted(**link: Any) -> Between:
    """What the links of a proof counted."""
    return Between(Reading(links={0: LinkCounts()}), Reading(links={0: LinkCounts(**link)}))


@pytest.mark.parametrize(("overflow", "lost", "status"), [(3, 3, Status.UNKNOWN), (3, 40, Status.FAILED)])
def test_probes_that_overflowed_a_socket_on_a_busy_machine_are_unknown(
    overflow: int, lost: int, status: Status
) -> None:
    """As it was: failed, since what the receiver missed was not the pattern. So it is with those that came when the
    sockets were closed."""
    missing = lossmodel.predict(CHAIN, seed=77, count=5000)
    dropped = int(missing.sum())
    missing[np.flatnonzero(~missing)[:lost]] = True
    assert proof(missing, dropped=dropped, overflow=overflow).judgement.status == status
    none, some = Sockets(), Sockets(unwanted=overflow)
    between = Between(Reading(links={0: LinkCounts(sockets=none)}), Reading(links={0: LinkCounts(sockets=some)}))
    assert proof(missing, dropped=dropped, between=between).judgement.status == status


def test_what_came_to_nobody_and_is_not_missing_is_no_probe() -> None:
    """Duplicates that come when sockets are closed, broadcasts of others: the proof was unknown by them."""
    missing = lossmodel.predict(CHAIN, seed=77, count=5000)
    before, after = (Reading(links={0: LinkCounts(sockets=Sockets(unwanted=n))}) for n in (0, 3))
    assert proof(missing, between=Between(before, after)).judgement.status == Status.VALID


def test_what_a_bystander_lost_excuses_nothing_of_the_probes() -> None:
    """As it was: with other traffic on the wire, packets lost elsewhere put aside all that receivers missed, and the
    proof was valid."""
    missing = lossmodel.predict(CHAIN, seed=77, count=5000)
    dropped = int(missing.sum())
    missing[np.flatnonzero(~missing)[:5]] = True
    found = proof(missing, dropped=dropped, bystanders=True, between=counted(lost_entering=5))
    assert found.judgement.status == Status.UNKNOWN, found.judgement.reasons()


@pytest.mark.parametrize(("no_room", "status"), [(100, Status.UNKNOWN), (99, Status.FAILED)])
def test_probes_that_had_no_room_before_the_rule_are_unknown_and_not_its_failure(no_room: int, status: Status) -> None:
    missing = np.concatenate([lossmodel.predict(CHAIN, seed=77, count=4900), np.ones(100, dtype=bool)])
    count = RuleCounters(seen=4900, dropped=int(missing.sum()) - 100, position=START)
    found = proven(missing, {(UP, RULE.label): count}, between=counted(lost_entering=no_room))
    assert found.judgement.status == status


def test_a_rule_that_saw_no_probe_is_not_proven() -> None:
    result = proven(np.zeros(5000, dtype=bool), {(UP, RULE.label): RuleCounters(position=START)})
    assert result.judgement.status == Status.FAILED


@pytest.mark.parametrize(("seen", "status"), [(0, Status.FAILED), (4000, Status.FAILED), (5000, Status.VALID)])
def test_a_rule_of_a_downlink_must_have_seen_what_came_that_far(seen: int, status: Status) -> None:
    """0 of 0 was valid: a pass-all filter ahead of it was not noticed."""
    hook, predicted = Hook(rank=1, direction="downlink"), lossmodel.predict(CHAIN, seed=77, count=5000)
    missing = predicted if seen == 5000 else np.zeros(5000, dtype=bool)
    flow = FlowSeen(name="h0 to h1", uplink=(UP, None), downlink=(hook, RULE), missing=missing)
    count = RuleCounters(seen=seen, dropped=int(missing.sum()), position=START)
    found = Seen(flows=[flow], counts={(hook, RULE.label): count})
    assert prove(rules={hook: (RULE,)}, seen=found, remarks=[]).judgement.status == status


def test_an_unseeded_network_is_judged_by_its_rate() -> None:
    honest = lossmodel.predict(CHAIN, seed=5, count=20_000)
    assert proof(honest, start=None).judgement.status == Status.VALID
    wrong = lossmodel.predict(lossmodel.iid(0.07), seed=5, count=20_000)
    assert proof(wrong, start=None).judgement.status == Status.FAILED


def test_right_rate_in_wrong_bursts_fails() -> None:
    bursty = lossmodel.predict(lossmodel.gilbert_from_means(mean=0.05, burst_packets_mean=64), seed=3, count=20_000)
    result = proof(bursty, start=None)
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


def crowded(*, dropped: int, asked: bool) -> Between:
    down = Queue(dropped=dropped, asked=asked)
    return Between(Reading(links={1: LinkCounts()}), Reading(links={1: LinkCounts(down=down)}))


@pytest.mark.parametrize("asked", [True, False])
def test_a_queue_that_overflowed_is_accounted_for_apart(asked: bool) -> None:
    missing = lossmodel.predict(CHAIN, seed=77, count=5000)
    lost = int(missing.sum())
    missing_more = missing.copy()
    missing_more[np.flatnonzero(~missing)[:5]] = True
    result = proof(missing_more, dropped=lost, start=None, between=crowded(dropped=5, asked=asked))
    assert any("kernel counters say" in f.text and f.status == Status.VALID for f in result.judgement.findings)
    assert any("no rate" in f.text for f in result.judgement.findings) == (not asked)


def experiment(**keys: Any) -> Experiment:
    return Experiment.model_validate({"name": "t", **keys})


def test_without_a_probe_the_fault_is_unknown() -> None:
    verdict = judge.judge(experiment=experiment(), backend="ebpf", proof=None, watched=Watched())
    assert verdict.columns["fault"].status == Status.UNKNOWN


BASE = proof(lossmodel.predict(CHAIN, seed=77, count=5000))
TWO = {"topology": {"hosts": 2}, "workload": {"name": "chatter"}, "impair": [{"profile": "loss_5"}]}


def run_of(
    seen: int, dropped: int, *, entered: int | None = None, more_lost: int = 0, rules: bool = True, **more: Any
) -> Watched:
    """h0 sends to h1 through RULE; `more_lost` vanish between the ports."""
    position = Position(generator=lossmodel.advanced(77, seen), state=0, packets=seen)
    hooks = {UP: {RULE.label: RuleCounters(seen=seen, dropped=dropped, position=position)}}
    h0 = LinkCounts(entered=seen if entered is None else entered, sockets=Sockets())
    h1 = LinkCounts(left=(seen if entered is None else entered) - dropped - more_lost, sockets=Sockets())
    links = {0: replace(h0, **more.pop("h0", {})), 1: replace(h1, **more.pop("h1", {}))}
    return Watched(
        before=Reading(links={0: LinkCounts(sockets=Sockets()), 1: LinkCounts(sockets=Sockets())}),
        after=Reading(links=links, hooks=hooks),
        rules={UP: {RULE.label: RULE}} if rules else {},
        **more,
    )


def fault_of(watched: Watched, **keys: Any) -> tuple[Status, str]:
    judgement = judge_fault.judge_fault(experiment(**keys), BASE, watched)
    return judgement.status, " ".join(judgement.reasons())


LOST = int(lossmodel.predict(CHAIN, seed=77, count=10_000).sum())


def test_during_the_run_a_seeded_counter_must_be_exact() -> None:
    assert fault_of(run_of(10_000, LOST), **TWO)[0] == Status.VALID
    assert fault_of(run_of(10_000, LOST + 1), **TWO)[0] == Status.FAILED


def test_packets_that_went_past_the_rules_are_found_by_their_number() -> None:
    """A pass-all filter ahead of ours for a moment: the rules' own counts stay as asked."""
    status, said = fault_of(run_of(10_000, LOST, entered=25_600), **TWO)
    assert status == Status.UNKNOWN and "h0 uplink: past the rules: 15600 of 25600 packets" in said


def test_who_failed_before_it_sent_anything_is_not_asked_which_link_it_used() -> None:
    """As it was: "did it use the control link?", of a program that could not import its module."""
    asks = "did it use the control link"
    assert asks in fault_of(run_of(0, 0), **TWO)[1]
    status, said = fault_of(run_of(0, 0, problem="rank 0 on h0 ended with exit status 1"), **TWO)
    assert status == Status.UNKNOWN and "passed the data links before it failed" in said and asks not in said


def test_counters_that_ran_backwards_are_said_and_end_no_verdict() -> None:
    status, said = fault_of(run_of(-300, -20, entered=500), **TWO)
    assert status == Status.UNKNOWN and "ran backwards" in said


def test_packets_that_vanish_between_ports_are_found() -> None:
    status, said = fault_of(run_of(10_000, LOST, more_lost=3), **TWO)
    assert status == Status.UNKNOWN and "between the switch's ports: 3 of" in said


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"h0": {"lost_entering": 4}}, "4 packets were lost at the switch's input from h0: raise sysctl"),
        ({"h1": {"lost_leaving": 4}}, "in the ring between switch and h1"),
        ({"h1": {"lost_arriving": 4}}, "by h1's own interface"),
        ({"h1": {"sockets": Sockets(overflowed=4)}}, "in h1's sockets: they were full"),
        ({"h1": {"down": Queue(dropped=4)}}, "in the queue of h1's port, which has no rate"),
    ],
)
def test_packets_lost_where_nothing_was_asked_void_the_fault(place: Any, words: str) -> None:
    status, said = fault_of(run_of(10_000, LOST, **place), **TWO)
    assert status == Status.UNKNOWN and words in said


def test_packets_lost_in_a_queue_under_an_asked_rate_are_part_of_the_condition() -> None:
    down = {"down": Queue(dropped=40, asked=True), "left": 10_000 - LOST - 40}
    watched = run_of(10_000, LOST, h1=down)
    keys = {**TWO, "topology": {"hosts": 2, "downlink_rate_mbit": 10}}
    assert fault_of(watched, **keys)[0] == Status.VALID
    met = judge_fault.met_by_workload(watched)
    assert (met.packets, met.rule, met.queue, met.elsewhere) == (10_000, LOST, 40, 0)


def test_a_network_that_never_came_to_rest_excuses_no_leak() -> None:
    status, said = fault_of(run_of(10_000, LOST, more_lost=3, moving=2000), **TWO)
    assert status == Status.UNKNOWN and "2000 packets still moved" in said


def test_on_a_port_that_counts_for_all_rules_only_a_loss_shows_that_one_was_met() -> None:
    """cbpf, 30 % asked of tcp/8080 and UDP alone: the port's count of packets stood in for the rule's."""

    def judged(dropped: int) -> Status:
        watched = run_of(5000, dropped)
        watched.after.hooks[UP] = {"total": RuleCounters(seen=5000, dropped=dropped)}
        watched.rules = {UP: {"0:loss_5": replace(RULE, match=Match(protocol="tcp"))}}
        return fault_of(watched, **TWO)[0]

    assert [judged(0), judged(60), judged(4000)] == [Status.UNKNOWN, Status.VALID, Status.FAILED]


def test_a_packet_in_two_counters_is_no_leak_but_only_where_it_can_be() -> None:
    """Damaged on its way up and lost on its way down."""
    down = Hook(rank=1, direction="downlink")
    hooks = {UP: {"a": RuleCounters(seen=100, corrupted=10)}, down: {"b": RuleCounters(seen=100, dropped=5)}}
    assert counted_twice(Between(Reading(), Reading(hooks=hooks))) == 10
    assert counted_twice(Between(Reading(), Reading(hooks={UP: hooks[UP]}))) == 0


def test_a_packet_that_was_damaged_and_duplicated_is_thrown_away_twice_and_missed_once() -> None:
    odd = {UP: {"a": RuleCounters(seen=100, corrupted=3, duplicated=2)}}
    sockets = {0: LinkCounts(), 1: LinkCounts(sockets=Sockets(damaged=4))}
    before = Reading(links={0: LinkCounts(), 1: LinkCounts(sockets=Sockets())})
    assert counted_twice(Between(before, Reading(hooks=odd, links=sockets))) == 2
    plain = {UP: {"a": RuleCounters(seen=100, corrupted=3)}}
    assert counted_twice(Between(before, Reading(hooks=plain, links=sockets))) == 0


def test_a_second_copy_that_found_nobody_is_not_missed() -> None:
    """As it was: false *unknown*, where a program had closed its port while copies were on their way."""
    odd = {UP: {"a": RuleCounters(seen=100, duplicated=20)}}
    before = Reading(links={1: LinkCounts(sockets=Sockets())})
    assert counted_twice(Between(before, Reading(hooks=odd, links={1: LinkCounts(sockets=Sockets(unwanted=3))}))) == 3


@pytest.mark.parametrize(("answered", "status"), [(12, Status.VALID), (11, Status.UNKNOWN)])
def test_what_a_host_answered_to_what_found_no_port_is_nothing_its_program_sent(answered: int, status: Status) -> None:
    """As it was: "h0 says that it sent 9988 datagrams, its link was given 10000", of one that had ended early."""
    said = {0: {"sent": [0, 9988], "received": [0, 0]}, 1: {"sent": [0, 0], "received": [9988 - LOST, 0]}}
    traffic = {"": {rank: {**one, "complete": True} for rank, one in said.items()}}
    watched = run_of(10_000, LOST, traffic=traffic, h0={"sockets": Sockets(answered=answered)})
    assert fault_of(watched, **TWO)[0] == status


def test_a_wire_that_has_let_nothing_go_yet_was_not_late() -> None:
    assert Held(packets=3, overtook=0, late=[0] * (len(LATE_MS) + 1)).late_ms(0.5) == 0


def test_what_programs_count_of_packets_for_all_is_not_compared_and_that_is_said() -> None:
    """One that was sent arrives at each of the others."""
    three = {**TWO, "topology": {"hosts": 3}}
    watched = run_of(10_000, LOST, traffic={"": {0: {"sent": [0, 1], "received": [0, 900], "complete": True}}})
    links = {**watched.after.links, 2: LinkCounts(sockets=Sockets(), left=5)}
    watched.before = replace(watched.before, links={**watched.before.links, 2: LinkCounts(sockets=Sockets())})
    watched.after = replace(watched.after, links=links, for_all=5)
    assert "misses" not in fault_of(watched, **three)[1]
    assert any("were for all hosts" in text for text in not_judged(covered(experiment(**three), "ebpf", watched.after)))


def test_block_loss_that_begins_after_the_probes_is_not_proven() -> None:
    profile_ = {"why": "t", "name": "blocks", "loss": {"model": "block", "percent": 10}}
    keys = {**TWO, "impair": [{"profile": profile_, "from_s": 1.0}]}
    rule = replace(RULE, label="0:blocks", profile=experiment(**keys).impair[0].profile)
    watched = run_of(5000, 0)
    watched.after.hooks[UP] = {"0:blocks": RuleCounters(seen=5000)}
    watched.rules = {UP: {"0:blocks": rule}}
    status, said = fault_of(watched, **keys)
    assert status == Status.UNKNOWN and "began later" in said


@pytest.mark.parametrize(
    ("complete", "sent", "missing", "status"),
    [
        (True, 10_000, LOST, Status.VALID),
        (True, 10_000, LOST + 2, Status.UNKNOWN),
        (False, 9_990, 300, Status.VALID),
        (False, 10_000, 10_000, Status.UNKNOWN),
        (True, 9_999, LOST, Status.UNKNOWN),
        (False, 10_001, 5, Status.UNKNOWN),
    ],
)
def test_the_workloads_own_numbers_must_fit_the_kernels(
    complete: bool, sent: int, missing: int, status: Status
) -> None:
    traffic = {
        0: {"sent": [0, sent], "received": [0, 0], "complete": complete},
        1: {"sent": [0, 0], "received": [sent - missing, 0], "complete": complete},
    }
    assert fault_of(run_of(10_000, LOST, traffic={"": traffic}), **TWO)[0] == status


def test_a_fault_that_lapsed_or_never_came_is_unknown() -> None:
    assert fault_of(run_of(10_000, LOST, lapses=["h0 uplink: rule is not attached"]), **TWO) == (
        Status.UNKNOWN,
        "h0 uplink: rule is not attached",
    )
    assert fault_of(run_of(10_000, LOST, never=["impair.0 was never in force"]), **TWO)[0] == Status.UNKNOWN
    unread = run_of(10_000, LOST)
    unread.after = None
    assert fault_of(unread, **TWO)[0] == Status.UNKNOWN


def test_a_workload_that_goes_round_the_fault_is_unknown() -> None:
    status, said = fault_of(run_of(0, 0), **TWO)
    assert status == Status.UNKNOWN and "control link" in said
    assert fault_of(run_of(0, 0), impair=[{"profile": "loss_5"}])[0] == Status.VALID, "noop sends nothing by design"


def test_a_rule_that_no_packet_met_is_unknown_although_others_passed() -> None:
    """30 % asked of tcp/8080 and a workload of UDP alone was valid."""
    asked = {
        "why": "t",
        "name": "web",
        "loss": {"model": "iid", "percent": 30},
        "match": {"protocol": "tcp", "destination_ports": [8080]},
    }
    entry = {"profile": asked}
    keys = {**TWO, "impair": [entry]}
    rule = Rule(label="0:web", profile=experiment(**keys).impair[0].profile, match=Match(), seed=1, block_seed=1)
    watched = run_of(5000, 0, rules=False)
    watched.after.hooks[UP] = {"unmatched": RuleCounters(seen=5000), "0:web": RuleCounters()}
    watched.rules = {UP: {"0:web": rule}}
    status, said = fault_of(watched, **keys)
    assert status == Status.UNKNOWN and "30 % was asked of tcp/8080" in said and "nothing there" in said


def test_a_host_that_is_named_must_have_met_its_rule_but_of_all_hosts_some_may_be_silent() -> None:
    def judged(named: bool) -> Status:
        silent = Rule(label="0:loss_5", profile=RULE.profile, match=Match(), seed=2, block_seed=1, named=named)
        watched = run_of(10_000, LOST)
        other = Hook(rank=1, direction="uplink")
        watched.after.hooks[other] = {silent.label: RuleCounters(position=Position(generator=0, state=0, packets=0))}
        watched.rules[other] = {silent.label: silent}
        return fault_of(watched, **TWO)[0]

    assert (judged(False), judged(True)) == (Status.VALID, Status.UNKNOWN)


def test_traffic_that_was_not_reported_by_all_ranks_proves_nothing() -> None:
    traffic = {0: {"sent": [5], "received": [5], "complete": True}}
    status, said = fault_of(run_of(10_000, LOST, traffic={"": traffic}), **TWO)
    assert status == Status.UNKNOWN and "only 1 of 2 ranks" in said


def test_super_packets_are_seen_whatever_label_they_are_counted_under() -> None:
    missing = lossmodel.predict(CHAIN, seed=77, count=5000)
    counts = {
        (UP, RULE.label): RuleCounters(seen=5000, dropped=int(missing.sum()), position=START),
        (UP, "none"): RuleCounters(super_packets=9),
    }
    assert proven(missing, counts).judgement.status == Status.UNKNOWN


def without_counters(missing: Any) -> Status:
    lost = RuleCounters(seen=len(missing), dropped=int(missing.sum()))
    return proven(missing, {(UP, "total"): lost}).judgement.status


def test_a_rule_the_kernel_can_not_count_apart_is_judged_by_its_receivers() -> None:
    assert without_counters(lossmodel.predict(CHAIN, seed=3, count=5000)) == Status.VALID
    assert without_counters(lossmodel.predict(lossmodel.iid(0.6), seed=3, count=5000)) == Status.FAILED


def test_a_rule_that_was_not_probed_is_unknown() -> None:
    other = Rule(label="1:x", profile=RULE.profile, match=Match(dscp=9), seed=1, block_seed=1)
    missing = lossmodel.predict(CHAIN, seed=77, count=5000)
    count = RuleCounters(seen=5000, dropped=int(missing.sum()), position=START)
    result = proven(missing, {(UP, RULE.label): count}, rules=(other, RULE))
    assert result.judgement.status == Status.UNKNOWN and "no probe met rule 1:x" in result.judgement.reasons()[0]


def test_hosts_that_lose_too_little_together_fail_although_none_does_alone() -> None:
    """64 hosts without a seed, 0.1 % asked, not one of 120,000 probes lost: valid, once."""
    rule = Rule(label="0:loss_0p1", profile=profile.load("loss_0p1"), match=Match(), seed=1, block_seed=1)
    hooks = [Hook(rank=rank, direction="uplink") for rank in range(64)]
    flows = [
        FlowSeen(name="x", uplink=(hook, rule), downlink=(DOWN, None), missing=np.zeros(1875, dtype=bool))
        for hook in hooks
    ]
    counts = {(hook, rule.label): RuleCounters(seen=1875) for hook in hooks}
    found = prove(rules=dict.fromkeys(hooks, (rule,)), seen=Seen(flows=flows, counts=counts), remarks=[]).judgement
    assert found.status == Status.FAILED and "all 64 hooks of loss_0p1: 0 of 120000 lost" in found.reasons()[0]


def test_expectations_decide_the_outcome() -> None:
    watched = Watched(summaries=[{"accuracy": 0.8}, {"accuracy": 0.9}])
    assert judge.judge_outcome(experiment(expect=[{"field": "accuracy", "min": 0.84}]), watched).status == Status.VALID
    assert judge.judge_outcome(experiment(expect=[{"field": "accuracy", "min": 0.86}]), watched).status == Status.FAILED
    assert judge.judge_outcome(experiment(expect=[{"field": "loss", "min": 0}]), watched).status == Status.FAILED


@pytest.mark.parametrize(
    "values, said",
    [
        ([0.95, None, None, None], "3 of 4 values of 'accuracy' are no finite numbers"),
        ([0.95, float("inf"), 0.9, 0.9], "1 of 4 values"),
        ([0.95, 0.95, 0.95], "only 3 of 4 ranks reported 'accuracy'"),
        ([0.95, 0.95, 0.95, 0.95], ""),
        ([0.95], ""),
    ],
)
def test_a_rank_without_a_number_fails_what_is_expected_of_all(values: list[Any], said: str) -> None:
    """As it was: ranks that reported NaN vanished from the mean, and the outcome was valid."""
    watched = Watched(summaries=[{"rank": rank, "accuracy": value} for rank, value in enumerate(values)])
    asked = experiment(topology={"hosts": 4}, expect=[{"field": "accuracy", "min": 0.9}])
    found = judge.judge_outcome(asked, watched)
    assert found.status == (Status.FAILED if said else Status.VALID) and said in found.reasons()[0]


@pytest.mark.parametrize(
    "spoke, said",
    [
        ([0], ""),
        ([3], ""),
        ([1], "only 1 of 4 ranks (rank 1) reported 'accuracy'"),
        ([0, 3], "only 2 of 4 ranks reported 'accuracy'"),
        ([0, 1, 2, 3], ""),
    ],
)
def test_alone_speaks_the_first_rank_for_all_or_the_last(spoke: list[int], said: str) -> None:
    """As it was: any of them, so whoever reported only finite numbers had one speaker where three of four diverged."""
    watched = Watched(summaries=[{"rank": rank, "accuracy": 0.95} for rank in spoke])
    asked = experiment(topology={"hosts": 4}, expect=[{"field": "accuracy", "min": 0.9}])
    found = judge.judge_outcome(asked, watched)
    assert found.status == (Status.FAILED if said else Status.VALID) and said in found.reasons()[0]


@pytest.mark.parametrize(
    "spoke, said",
    [
        ([1], "only 1 of 3 ranks of clients (rank 1) reported 'clients.ok'"),
        ([0, 2], "only 2 of 3 ranks of clients"),
        ([0], ""),
        ([0, 1, 2], ""),
    ],
)
def test_of_programs_beside_the_workload_each_has_to_say_what_is_expected_of_them(spoke: list[int], said: str) -> None:
    """As it was: nobody kept who had spoken, and one of them did for all that were silent. The first may."""
    clients = {"role": "clients", "hosts": ["h1", "h2", "h3"], "command": ["true"]}
    asked = experiment(topology={"hosts": 4}, beside=[clients], expect=[{"field": "clients.ok", "min": 1}])
    watched = Watched(summaries=[{"rank": rank, "clients.ok": 1, ROLE: "clients"} for rank in spoke])
    found = judge.judge_outcome(asked, watched)
    assert found.status == (Status.FAILED if said else Status.VALID) and said in found.reasons()[0]


def around(
    control: float, *, data: float = 1e6, said: float = 0.0, store: float = 0.0, each: float = 190, **more: Any
) -> bool:
    """Do so many bytes over the control links doubt the fault, of which some were for the store?"""
    links = {0: LinkCounts(entered_bytes=round(data), control_bytes=round(control))}
    watched = Watched(control={("", 0, ""): said} if said else {})
    after = Reading(links=links, store_bytes=round(store), store_packets=round(store / each))
    between = Between(Reading(links={0: LinkCounts()}), after)
    return judge_fault.went_around(experiment(**more), watched, between)


def test_the_first_megabyte_over_the_control_links_is_free_once_and_not_for_each_program() -> None:
    """As it was: with four programs beside the workload five megabytes of nobody's went around the fault, valid."""
    beside = [{"role": f"beside{n}", "command": ["true"]} for n in range(4)]
    assert not around(0.9e6, beside=beside) and around(1.1e6, beside=beside)
    declared = [{**one, "control_mb": 2} for one in beside]
    assert not around(7.9e6, beside=declared) and around(8.1e6, beside=declared)
    assert not around(1.9e6, data=2e8) and around(2.1e6, data=2e8), "one percent"


def overruled(*entries: dict[str, Any], never: tuple[str, ...] = ()) -> list[str]:
    """What is said of entries that no packet can meet, in a run whose packets met all others."""
    asked = experiment(impair=[*entries], workload={"name": "chatter"})
    rules = {h: {one.label: one for one in here} for h, here in rules_in_force(asked, seed=1).items()}
    many = RuleCounters(seen=1000, dropped=10)
    links = {hook.rank: LinkCounts(entered=1000) for hook in rules}
    counted = {hook: dict.fromkeys(here, many) for hook, here in rules.items()}
    between = Between(Reading(links=dict.fromkeys(links, LinkCounts())), Reading(links=links, hooks=counted))
    watched = Watched(rules=rules, never=list(never))
    return [one.text for one in judge_fault.judge_presence(asked, watched, between)]


def test_an_entry_that_later_ones_overrule_wherever_it_is_asked_for_is_not_as_asked() -> None:
    """As it was: loss in one entry and delay in the next, of the same packets: no packet was lost, valid."""
    delay = {"profile": {"name": "slow", "why": "t", "delay": {"mean_ms": 20}}}
    (said,) = overruled({"profile": "loss_10"}, delay)
    assert said.startswith("impair.0 (loss_10): later entries take every packet") and "into one profile" in said
    assert overruled({"profile": "loss_10"}, {**delay, "hosts": ["h0"]}) == [], "an exception"
    assert overruled({"profile": "clean"}, delay) == [], "which asks for nothing"
    assert overruled({"profile": "loss_10"}, delay, never=("impair.0 (loss_10) was never in force: ...",)) == []


def test_what_a_program_says_that_it_sent_itself_is_no_way_around_and_the_rest_is() -> None:
    """As it was: training had a terabyte free, and a strategy that talked over MASTER_ADDR met no fault, valid."""
    training = {"workload": {"name": "training"}}
    assert around(3e8, **training)
    assert not around(3.15e8, said=3e8, **training), "headers and acknowledgements are counted too"
    assert around(3.2e8, said=3e8, **training)


@pytest.mark.parametrize(
    ("hosts", "control", "doubted"),
    [(40, 1.62e6, False), (64, 4.2e6, False), (40, 3.3e6, True), (64, 8.3e6, True), (8, 4e6, True), (16, 1.1e6, True)],
)
def test_a_rendezvous_of_many_hosts_is_no_way_around_the_fault_and_four_megabytes_of_eight_are(
    hosts: int, control: float, doubted: bool
) -> None:
    """As it was: a megabyte was free whatever the number of hosts, and everybody tells everybody where he is."""
    met = {"store": control, "control": control}
    assert around(**met, topology={"hosts": hosts}) is doubted
    script = {"command": ["python", "x.py"], "torchrun": 4}
    assert around(**met, topology={"hosts": hosts // 4}, workload=script) is doubted


def test_what_ranks_need_to_meet_is_free_at_their_store_alone() -> None:
    """As it was: with 64 hosts eight megabytes were free, to whatever port; with 250, a hundred and twenty-five."""
    many = {"topology": {"hosts": 64}}
    assert not around(7.6e6, store=7.6e6, **many) and around(4e6, **many), "of the rest there is one megabyte, as ever"
    assert around(5.3e6, store=4.2e6, **many) and not around(5.1e6, store=4.2e6, **many)
    assert around(8.3e6, store=8.3e6, **many), "the store is no way around the fault either"
    assert around(8.3e6, store=8.3e6, said=8e6, **many), "what was said to be sent elsewhere was not sent to it"
    assert not around(2e6, store=1e3, workload={"name": "chatter", "control_mb": 3}, topology={"hosts": 64})


# Hosts, bytes and packets to and from the store of a rendezvous that was measured (torch 2.13, gloo).
MEETINGS = [(8, 65302, 603), (24, 550157, 4031), (40, 1706257, 10887), (64, 5060893, 26683)]


@pytest.mark.parametrize(("hosts", "size", "packets"), MEETINGS)
def test_a_rendezvous_that_was_measured_is_free_and_what_is_sent_through_its_store_is_not(
    hosts: int, size: int, packets: int
) -> None:
    """As it was: any eight megabytes of 64 ranks were free there, of the store's or of who took its port afterwards."""
    topology = {"hosts": hosts}
    assert not around(size, store=size, each=size / packets, topology=topology)
    assert around(1.1e6, store=1.1e6, each=780, topology=topology), "whole packets, and their acknowledgements"
    more = 2.9e6
    assert around(size + more, store=size + more, each=(size + more) / (packets + more / 1448), topology=topology)


def test_two_hundred_and_fifty_hosts_may_meet() -> None:
    """As it was: of what a rendezvous sends there only four fifths were free."""
    size = (790 + 7 * 250) * 250**2
    assert not around(size, store=size, each=93 + 1.5 * 250, topology={"hosts": 250})


def test_each_program_meets_at_a_store_of_its_own() -> None:
    asked = experiment(
        topology={"hosts": 4},
        workload={"command": ["python", "x.py"], "torchrun": 2},
        beside=[{"role": "web", "hosts": ["h2", "h3"], "command": ["true"]}, {"role": "noise", "command": ["true"]}],
    )
    found = {(host.name, port): ranks for (host, port), ranks in asked.stores().items()}
    assert found == {("h0", 29500): 8, ("h2", 29501): 2, ("h0", 29502): 4}


NOISE = {"role": "noise", "command": ["true"]}
WEB = {"role": "web", "hosts": ["h0", "h1"], "command": ["true"], "foreground": True}
CLASSES = {"classes": [{"name": "web", "dscp": 10}, {"name": "mine", "dscp": 20}]}
NOTHING = {rank: {"sent": [0] * 4, "received": [0] * 4, "complete": True} for rank in range(4)}


def absent(*, entered: tuple[int, ...] = (9, 9, 9, 9), left: tuple[int, ...] = (9,) * 4, **keys: Any) -> list[str]:
    """Who was not there, on links that carried so many packets each, nine of them for all."""
    seen = {name: keys.pop(name) for name in ("traffic", "came", "duration_s") if name in keys}
    links = {rank: LinkCounts(entered=one, left=two) for rank, (one, two) in enumerate(zip(entered, left, strict=True))}
    between = Between(Reading(links=dict.fromkeys(links, LinkCounts())), Reading(links=links, for_all=9))
    asked = experiment(**{"topology": {"hosts": 4, "rate_mbit": 50}, "workload": {"name": "chatter"}, **keys})
    found = judge_absent(asked, Watched(**seen), between)
    return [one.text.removesuffix(" (silent = true, if that is meant)") for one in found]


def test_a_replay_that_was_told_to_send_nothing_is_not_missed() -> None:
    """As it was: the arm without learning of every suite of the web service had an unknown fault."""
    for mbit, missed in ((0, False), (0.0, False), (48, True)):
        replay = {"name": "replay", "options": {"mbit": mbit}}
        assert bool(absent(workload=replay, beside=[WEB], traffic={"": NOTHING})) is missed, mbit


def test_a_program_that_was_not_there_is_missed_although_others_sent() -> None:
    """As it was: packets of anybody were taken for the workload's, and one that sent nothing was valid."""
    said = "the workload says itself that it sent nothing and got nothing"
    assert absent(traffic={"": NOTHING}, beside=[NOISE]) == [said]
    some = NOTHING | {0: {"sent": [0, 1, 0, 0], "received": [0] * 4}}
    assert absent(traffic={"": some}, beside=[NOISE]) == []
    assert absent(traffic={"": {0: NOTHING[0]}}, beside=[NOISE]) == [], "three have not said anything"
    mine = {"workload": {"name": "chatter", "traffic_class": "mine"}, "shaping": CLASSES, "beside": [NOISE]}
    assert absent(came={"mine": 0, "web": 90}, **mine) == [
        "no packet of the workload came to the queues of its class 'mine'"
    ]
    assert absent(came={"mine": 1, "web": 90}, **mine) == absent(came={}, **mine) == []


def test_on_hosts_of_its_own_a_programs_links_say_whether_it_was_there() -> None:
    """What others send to all comes there too; who only listens is there."""
    keys: dict[str, Any] = {"workload": {"name": "noop"}, "beside": [WEB, {**NOISE, "hosts": ["h2", "h3"]}]}
    said = "no packet of web passed the data links of its hosts, which no other program sends from"
    assert absent(entered=(0, 0, 9, 0), **keys) == [said]
    assert absent(entered=(0, 1, 9, 0), **keys) == absent(entered=(0, 0, 9, 0), left=(9, 12, 9, 9), **keys) == []
    assert absent(entered=(9, 9, 0, 0), **keys) == [said.replace("web", "noise")], "as it was: asked of web alone"
    for begins, ends, missed in ((2.0, 9.0, True), (2.0, 2.5, False), (2.0, 1.5, False), (0.0, 0.5, True)):
        late = {**keys, "beside": [WEB, {**NOISE, "hosts": ["h2", "h3"], "from_s": begins}], "duration_s": ends}
        assert bool(absent(entered=(9, 9, 0, 0), **late)) is missed, "as it was: one that began later was not asked"
    slow = {**NOISE, "hosts": ["h2", "h3"], "barrier": False}  # nobody waits until it is there
    assert absent(entered=(9, 9, 0, 0), **{**keys, "beside": [WEB, slow], "duration_s": 0.5}) == []
    keys["workload"] = {"name": "chatter"}
    assert absent(entered=(0, 0, 9, 0), **keys) == [], "the workload has these hosts, too"


def few(*counts: RuleCounters, labels: tuple[str, ...] = ("0", "1"), percent: float = 30.0) -> list[str]:
    """What is said of a pair's rule beside one for all hosts."""
    asked = Profile.model_validate({"name": "x", "why": "t", "loss": {"model": "iid", "percent": percent}})
    rules = [
        Rule(label=str(n), profile=one, match=Match(), seed=n, block_seed=1, entry=n)
        for n, one in enumerate((profile.load("loss_1"), asked))
    ]
    here = dict(zip(labels, counts, strict=False))
    between = Between(
        Reading(hooks={UP: {}}, links={0: LinkCounts()}), Reading(hooks={UP: here}, links={0: LinkCounts()})
    )
    watched = Watched(rules={UP: {one.label: one for one in rules}})
    return [one.text for one in judge_rules(watched, between) if "too few" in one.text]


def test_each_entry_has_to_meet_enough_packets_to_show_something() -> None:
    """As it was: all were asked together, and three packets of a pair at 30 %, none lost, were "as asked"."""
    many = RuleCounters(seen=10_000, dropped=100)
    assert few(many, RuleCounters(seen=3)) == ["impair.1 (x) met 3 packets in the run: too few to show anything"]
    assert few(many, RuleCounters(seen=40, dropped=12)) == []
    assert few(many, RuleCounters(seen=3, dropped=3), percent=100) == [], "every packet"
    assert few(many, RuleCounters()) == [], "it was not met at all, which is said elsewhere"


def none_lost(seen: int, percent: float, *, seeded: bool) -> tuple[list[Status], str]:
    """What is said of so many packets of which none was lost; `seeded`: the kernel says where its generator stands."""
    loss = {"model": "iid", "percent": percent}
    asked = Profile.model_validate({"name": "x", "why": "t", "loss": loss})
    chain = lossmodel.iid(percent / 100)
    seed = next(n for n in range(9999) if not lossmodel.predict(chain, seed=n, count=seen).any()) if seeded else 1
    rule = Rule(label="0:x", profile=asked, match=Match(), seed=seed, block_seed=1)
    at = Position(generator=lossmodel.advanced(seed, seen), state=0, packets=seen) if seeded else None
    links = {0: LinkCounts()}
    after = Reading(hooks={UP: {"0:x": RuleCounters(seen=seen, position=at)}}, links=links)
    found = judge_rules(Watched(rules={UP: {"0:x": rule}}), Between(Reading(hooks={UP: {}}, links=links), after))
    return [one.status for one in found], "; ".join(one.text for one in found)


@pytest.mark.parametrize(("seen", "percent", "chance"), [(40, 1.0, 67), (500, 0.1, 61), (250, 1.0, 8)])
def test_that_none_was_lost_shows_nothing_where_it_was_likely(seen: int, percent: float, chance: int) -> None:
    """As it was: 30 packets were enough for any share, and "0 of 40 lost, as asked" was all that was said."""
    status, said = none_lost(seen, percent, seeded=False)
    assert status == [Status.UNKNOWN] and said.endswith("too few to show anything")
    assert f"met {seen} packets and lost none of them ({percent:.3g} % of so few is none in {chance}% of cases)" in said
    status, said = none_lost(seen, percent, seeded=True)
    assert status == [Status.VALID, Status.VALID] and said.endswith("packet by packet, and the workload met no loss")


def test_that_none_was_lost_of_enough_is_no_handful() -> None:
    assert (
        "too few" not in none_lost(310, 1.0, seeded=False)[1]
        and "met no loss" not in none_lost(40, 0.0, seeded=True)[1]
    )


def met_by(*met: tuple[Hook, dict[str, Any], int], counted: Any = (), **asked: Any) -> list[str]:
    """What is said of one entry whose rules met so many packets each, all of them as asked."""
    wanted = Profile.model_validate({"name": "x", "why": "t", **asked})
    hooks: dict[Hook, dict[str, RuleCounters]] = {}
    rules: dict[Hook, dict[str, Rule]] = {}
    for hook, keys, seen in met:
        label = f"0:x {keys.get('pair', '')}".strip()
        rules.setdefault(hook, {})[label] = Rule(
            label=label, profile=wanted, match=Match(), seed=1, block_seed=1, **keys
        )
        share = wanted.mean_loss()
        more = {"damageable": seen, "dropped": round(share * seen), **dict(counted)}
        hooks.setdefault(hook, {})[label] = RuleCounters(seen=seen, **more)
    links = {0: LinkCounts(), 1: LinkCounts()}
    between = Between(Reading(hooks={one: {} for one in hooks}, links=links), Reading(hooks=hooks, links=links))
    return [one.text for one in judge_rules(Watched(rules=rules), between) if one.status != Status.VALID]


IID_10 = {"model": "iid", "percent": 10}


@pytest.mark.parametrize("asked", [{"duplicate_percent": 30}, {"corrupt_percent": 10}])
def test_a_handful_of_packets_shows_nothing_of_duplicates_and_damage(asked: dict[str, Any]) -> None:
    """As it was: of these nobody asked; none of four packets, as asked."""
    few_, enough = (met_by((UP, {}, seen), **asked) for seen in (4, 30))
    assert few_ == ["impair.0 (x) met 4 packets in the run: too few to show anything"]
    assert not any("too few" in text for text in enough)
    assert met_by((UP, {}, 4), counted={"duplicated": 4}, duplicate_percent=100) == [], "every packet"


def test_packets_that_are_too_short_to_be_damaged_show_nothing_of_damage() -> None:
    said = met_by((UP, {}, 400), counted={"damageable": 5}, corrupt_percent=10)
    assert said == ["impair.0 (x) met 5 packets that could be damaged in the run: too few to show anything"]
    assert met_by((UP, {}, 400), counted={"damageable": 0, "damage_counted": False}, corrupt_percent=10) == []


def test_a_packet_that_passes_both_directions_counts_in_each_by_itself() -> None:
    """As it was: 16 datagrams and what was left of them downlink were "5 of 31, as asked"."""
    said = met_by((UP, {}, 16), (DOWN, {}, 15), loss=IID_10)
    assert [text.partition(" in the run")[0] for text in said] == [
        "impair.0 (x) at uplinks met 16 packets",
        "impair.0 (x) at downlinks met 15 packets",
    ]
    assert met_by((UP, {}, 40), (DOWN, {}, 36), loss=IID_10) == []
    (said_,) = met_by((UP, {}, 400), (DOWN, {}, 0), loss=IID_10)
    assert "at downlinks met 0 packets" in said_


def test_each_named_host_and_pair_has_to_meet_enough_packets_itself() -> None:
    """As it was: two packets of h0 to h2, both lost, and 400 to h1 were "35 of 402, as asked"."""
    pairs = [(UP, {"pair": other, "named": True}, seen) for other, seen in (("h1", 400), ("h2", 2))]
    said = met_by(*pairs, loss=IID_10)
    assert said == ["impair.0 (x) at h0 uplink (h2) met 2 packets in the run: too few to show anything"]
    other = Hook(rank=1, direction="uplink")
    assert met_by((UP, {}, 29), (other, {}, 2), loss=IID_10) == [], "all hosts together"
    (host,) = met_by((UP, {"named": True}, 400), (other, {"named": True}, 2), loss=IID_10)
    assert "at h1 uplink met 2 packets" in host


def test_a_short_outage_is_shown_by_the_few_packets_that_met_it() -> None:
    """As it was: "1 of 1 matching packets were lost (100.000%): too few to show anything", of a ping-pong over TCP."""
    assert met_by((UP, {}, 1), loss={"model": "iid", "percent": 100}) == []


def test_of_rules_that_are_counted_together_what_their_port_met_is_asked() -> None:
    """As it was: under the sum's own name nobody looked."""
    assert len(few(RuleCounters(seen=5), labels=(TOTAL,))) == 2
    assert few(RuleCounters(seen=500, dropped=20), labels=(TOTAL,)) == []


@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("off", [0, 1, -1])
def test_a_trace_is_judged_to_the_packet_however_many_met_it(loop: bool, off: int) -> None:
    """As it was: beyond 20 million at a hook nobody judged it, nobody said so, and any number was valid."""
    trace = Profile(name="x", why="t", loss={"model": "trace", "bits": "1101000", "loop": loop})
    rule, seen = replace(RULE, profile=trace), 50_000_003  # 7 142 857 rounds, and four packets
    lost = (7_142_857 * 3 + 3 if loop else 3) + off
    count = RuleCounters(seen=seen, dropped=lost, position=replace(START, packets=seen))
    between = Between(Reading(hooks={UP: {}}), Reading(hooks={UP: {RULE.label: count}}))
    found = judge_rules(Watched(rules={UP: {RULE.label: rule}}), between)
    assert max(one.status for one in found) == (Status.FAILED if off else Status.VALID), found


def timing(*, interleaved: bool = False, late: Any = (), **more: Any) -> tuple[Status, Any]:
    quiet = Quiet(**{"cpu_busy": [0.5] * 10, "late_ms": [0.1] * 10, **more})
    found, marks = judge.judge_timing(quiet, late=list(late), interleaved=interleaved)
    return found.status, marks


def test_a_busy_machine_voids_latencies_unless_sides_were_interleaved() -> None:
    assert timing()[0] == Status.VALID
    assert timing(cpu_busy=[1.0] * 10)[0] == Status.UNKNOWN
    assert timing(cpu_busy=[1.0] * 10, interleaved=True) == (Status.VALID, ("timing: ratios only",))


def test_a_core_that_the_workload_fills_voids_nothing_and_one_that_it_waits_for_does() -> None:
    """As it was: ping-pong and hogs on one core, 8 ms instead of .017, the other core idle: valid."""
    full = {"busiest": [1.0] * 10}
    assert timing(**full, waited=[0.02] * 10)[0] == Status.VALID
    for waiting in ({"waited": [0.5] * 10}, {"waited": [0.02] * 10, "each_ms": 4.0}):
        assert timing(**full, **waiting)[0] == Status.UNKNOWN
        assert timing(**full, **waiting, interleaved=True) == (Status.VALID, ("timing: ratios only",))
    assert timing(**full)[0] == Status.UNKNOWN, "a kernel that does not tell who waits"
    assert timing(stolen=[0.3] * 10)[0] == timing(late_ms=[20.0] * 10)[0] == Status.UNKNOWN
    assert timing(waited=[0.5, *[0.0] * 9])[0] == Status.VALID, "now and then"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (1.8, "of 2 cores the run's programs kept 1.8 busy, all else 0.2: fewer hosts help"),
        (0.5, "of 2 cores the run's programs kept 0.5 busy, all else 1.5: ending other programs helps"),
        (0.0, ""),
    ],
)
def test_of_a_busy_machine_is_said_whose_load_it_was(own: float, said: str) -> None:
    """As it was: "CPU saturated", whoever did it."""
    quiet = Quiet(cpu_busy=[1.0] * 10, late_ms=[0.1] * 10, own_cores=own, cores=2)
    found, _ = judge.judge_timing(quiet, late=[], interleaved=False)
    text = found.reasons()[0]
    assert found.status == Status.UNKNOWN and said in text and ("cores" in text) is bool(said)
    calm, _ = judge.judge_timing(replace(quiet, cpu_busy=[0.5] * 10), late=[], interleaved=False)
    assert calm.status == Status.VALID, "whose load it is voids nothing by itself"


@pytest.mark.parametrize(
    "more",
    [
        {"longest_gap_s": 8.0},
        {"throttled": 0.2},
        {"late": ["impair.0 came 0.5 s late"]},
        {"late_ms": [60.0] * 10},
        {"cpu_busy": [1.0] * 10, "throttled": 0.9},
    ],
)
def test_lateness_and_a_throttled_group_void_latencies_also_of_sides_in_turn(more: Any) -> None:
    """As it was: `interleaved` hid 90 % throttling."""
    assert timing(**more)[0] == Status.UNKNOWN
    assert timing(**more, interleaved=True) == (Status.UNKNOWN, ())


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
    assert registry.choose("auto", profiles=[profile.load("loss_5")], rules={}, can=ALL)[0] == "netem"
    assert registry.choose("auto", profiles=[profile.load(str(path))], rules={}, can=ALL)[0] == "ebpf"
    neither = {**ALL, "netem": "no", "ebpf": "no"}
    assert registry.choose("auto", profiles=[profile.load("loss_5")], rules={}, can=neither)[0] == "cbpf"


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
        registry.choose(asked, profiles=[profile.load(name)], rules={}, can=able)
    assert words in str(caught.value) and caught.value.exit_code == 4


def test_one_reason_for_several_backends_is_said_once() -> None:
    able = {**dict.fromkeys(ALL, "not permitted, needs root"), "netem": "this kernel has no sch_netem"}
    with pytest.raises(NotAbleError) as caught:
        registry.choose("auto", profiles=[profile.load("loss_5")], rules={}, can=able)
    assert str(caught.value).count("needs root") == 1 and "ebpf, cbpf, edt, relay: not permitted" in str(caught.value)


# --- what is held back, what is carried ------------------------------------------------------------------------------


def late_by(**late_ms: float) -> Watched:
    """1000 packets of each rule, all late by so much; rules are called by the delay they ask for."""
    watched = run_of(10_000, LOST)
    for name, late in late_ms.items():
        label, delay = f"0:{name}", {"mean_ms": float(name.removeprefix("ms"))}
        slow = profile.Profile.model_validate({"why": "t", "name": name, "delay": delay})
        watched.rules[UP][label] = replace(RULE, label=label, profile=slow)
        counts = [0] * (len(LATE_MS) + 1)
        counts[bisect.bisect_left(LATE_MS, late)] = 1000
        watched.held.setdefault(UP, {})[label] = Held(packets=1000, overtook=0, late=counts)
    return watched


@pytest.mark.parametrize(
    ("late", "status"),
    [
        ({"ms10": 2.0}, Status.VALID),
        ({"ms10": 4.9}, Status.UNKNOWN),
        ({"ms10": 5000.0}, Status.UNKNOWN),
        ({"ms200": 4.9}, Status.VALID),
        ({"ms10": 4.9, "ms200": 1.0}, Status.UNKNOWN),
    ],
)
def test_a_wire_that_is_later_than_its_rule_allows_is_unknown(late: dict[str, float], status: Status) -> None:
    """10 ms asked and every packet 4.9 late (2.5 allowed): counts were taken for their lower ends, and the longest
    delay of any rule stood for all."""
    found, said = fault_of(late_by(**late), **TWO)
    assert found == status, said
    assert status == Status.VALID or "10 ms were asked" in said


@pytest.mark.parametrize(("late", "status"), [(100.0, Status.VALID), (500.0, Status.UNKNOWN)])
def test_a_wire_that_stood_still_is_unknown_however_few_packets_came_meanwhile(late: float, status: Status) -> None:
    """Half a second, 10 ms asked: TCP waits when nothing comes back, and fewer than one packet in twenty was late."""
    watched = late_by(ms10=1.0)
    watched.held[UP]["0:ms10"].late[bisect.bisect_left(LATE_MS, late)] += 20
    found, said = fault_of(watched, **TWO)
    assert found == status, said
    assert status == Status.VALID or "the latest of" in said


@pytest.mark.parametrize(
    ("rate", "reached", "too_fast"), [(0.5, 0.73, True), (0.5, 0.52, False), (1000, 1040, False), (1000, 1100, True)]
)
def test_a_slow_link_is_held_to_its_rate_as_a_fast_one_is(rate: float, reached: float, too_fast: bool) -> None:
    """.73 Mbit/s in two seconds of .5: 128 KB were free at any rate."""
    carried = [Carried(from_s=at, to_s=at, up={0: round(reached * 1e6 / 8 * at)}) for at in (0.0, 1.0, 2.0)]
    found = judge_rates(experiment(topology={"hosts": 2, "uplink_rate_mbit": rate}), carried)
    assert [one.status for one in found] == [Status.FAILED] * too_fast, found


@pytest.mark.parametrize(("backend", "said"), [("relay", True), ("edt", True), ("netem", False)])
def test_that_duplicates_do_not_wait_is_said(backend: str, said: bool) -> None:
    slow = {"why": "t", "name": "slow", "delay": {"mean_ms": 50}, "duplicate_percent": 20}
    texts = not_judged(covered(experiment(impair=[{"profile": slow}]), backend))
    assert any("they do not wait" in text for text in texts) is said
