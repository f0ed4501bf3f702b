"""What a match must not take is probed too."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lossbench.net.conservation import Between
from lossbench.net.counters import UNMATCHED, LinkCounts, Reading, RuleCounters
from lossbench.net.star.network import StarNetwork
from lossbench.net.tc.hook import PARENT
from lossbench.proof.probe.afterwards import changed_meanwhile, foils_alone, in_words
from lossbench.proof.probe.exchange import CHUNK_AT
from lossbench.proof.probe.flows import Flow, plan, taken_by
from lossbench.proof.probe.foils import FEW, foils, rounds
from lossbench.proof.verdict import Status
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import Hook, Rules, rules_in_force
from lossbench.spec.profile import Match
from lossbench.spec.topology import Topology
from lossbench.spec.userfile import check
from tests.forms import forms
from tests.networks import Build, prove

IID = {"model": "iid", "percent": 5}
OURS = {"datagram": {"halves": ["reduce_scatter"], "steps": [0, 8]}}
MATCHES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "ports": (
        {"protocol": "udp", "destination_ports": [7000], "source_ports": [40000]},
        ["protocol", "ports", "ports"],
    ),
    "a class": ({"protocol": "tcp", "dscp": 46}, ["protocol", "dscp"]),
    "a host": ({"destinations": ["h2"]}, ["ends"]),
    "a header": (OURS, ["kind", "half", "step"]),
}


def entry(match: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"profile": {"name": "x", "why": "t", "loss": IID, "match": match}, **keys}


def planned(
    *entries: dict[str, Any], **topology: Any
) -> tuple[Rules, list[Flow], list[Flow], tuple[tuple[str, str], ...]]:
    keys = {"name": "t", "topology": {"hosts": 3, **topology}, "impair": list(entries)}
    experiment = check(Experiment, keys, origin="test")
    rules = rules_in_force(experiment, seed=1)
    flows, remarks = plan(rules, experiment.topology)
    assert remarks == []
    return rules, flows, *foils(rules, flows, experiment.topology)


def differs(one: Flow, other: Flow) -> str:
    found = {
        "protocol": one.protocol != other.protocol,
        "ports": (one.source_port, one.destination_port) != (other.source_port, other.destination_port),
        "dscp": one.dscp != other.dscp,
        "ends": (one.source, one.destination) != (other.source, other.destination),
        "kind": one.kind != other.kind,
        "half": one.half != other.half,
        "step": one.step != other.step,
    }
    (name,) = [name for name, so in found.items() if so]
    return name


@pytest.mark.parametrize("family", ["ipv4", "both"])
@pytest.mark.parametrize("name", MATCHES)
def test_a_foil_differs_from_what_a_rule_takes_in_one_thing_and_no_rule_takes_it(name: str, family: str) -> None:
    match, fields = MATCHES[name]
    rules, flows, found, untold = planned(entry(match, hosts=["h0"]), family=family)
    (own,) = [flow for flow in flows if taken_by(rules[flow.hooks()[0]], flow)]
    assert [differs(own, one) for one in found if one.source.rank == 0] == fields and untold == ()
    assert not any(taken_by(rules.get(hook, ()), one) for one in found for hook in one.hooks())
    assert all(FEW <= one.at_most <= 200 for one in found), "few, and enough that a rule would lose some"
    for turn in {one.turn for one in found}:
        ends = [one.source.rank for one in found if one.turn == turn]
        assert turn > 0 and len(ends) == len(set(ends)), "one at a link at a time"


def test_what_takes_all_needs_no_foil_and_pairs_are_foils_of_each_other() -> None:
    assert planned(entry({}))[2:] == ([], ())
    *_, found, untold = planned(entry({}, pairs=[["h0", "h1"], ["h0", "h2"]]))
    assert (found, untold) == ([], ())
    *_, found, _ = planned(entry({}, pairs=[["h0", "h1"]]))
    assert [(one.source.name, one.destination.name) for one in found] == [("h0", "h2")]
    assert planned(entry({}, pairs=[["h0", "h1"]]), hosts=2)[2:] == ([], ()), "there is no other"


def test_where_another_entry_takes_it_that_is_said() -> None:
    *_, found, untold = planned(entry({}), entry({"protocol": "tcp", "destination_ports": [7000]}))
    assert found == []
    assert [condition for condition, _ in untold] == ["matches"] and "impair.1 (x)" in untold[0][1]
    *_, found, untold = planned(entry({}), entry({"destination_ports": [7000]}))
    assert (found, untold) == ([], ()), "the probe of the entry behind it is one"


def test_foils_go_when_the_others_are_through() -> None:
    _, flows, found, _ = planned(entry({"destination_ports": [7000]}))
    every = dict(enumerate([*flows, *found]))
    sent = list(rounds(every, packets=1000, batch=64))
    counts = {number: sum(n for here in sent for one, _, n in here if one == number) for number in every}
    assert counts == {n: 1000 if not one.turn else min(1000, one.at_most) for n, one in every.items()}
    turns = [{every[number].turn for number, _, _ in here} for here in sent]
    assert turns == sorted(turns, key=min) and all(len(one) == 1 for one in turns)
    assert list(rounds({}, packets=10, batch=4)) == []


NETEM = pytest.param("netem", marks=pytest.mark.guest)


@pytest.mark.netns
@pytest.mark.parametrize("backend", ["ebpf", "cbpf", NETEM])
def test_a_rule_that_takes_every_packet_where_one_port_was_asked_is_found(build: Build, backend: str) -> None:
    """As it was: its own probes were all that was sent, and it was proven."""
    network = build(backend=backend, topology={"hosts": 3}, impair=[entry({"destination_ports": [7000]})])
    honest = prove(network, packets=1200).judgement
    assert honest.status != Status.FAILED, honest.findings
    asked = dict(network.rules)
    network.put({hook: tuple(replace(rule, match=Match()) for rule in here) for hook, here in asked.items()})
    network.rules = asked
    found = prove(network, packets=1200).judgement
    assert found.status == Status.FAILED, found.findings
    if backend == "ebpf":
        assert any("took 160 of 160 probe packets that it is not about" in text for text in found.reasons())


@pytest.mark.netns
@pytest.mark.parametrize("name", MATCHES)
def test_foils_of_every_kind_pass_by_a_rule_as_asked(build: Build, name: str) -> None:
    found = build(topology={"hosts": 3, "family": "both"}, impair=[entry(MATCHES[name][0], direction="both")])
    judgement = prove(found, packets=1200).judgement
    assert judgement.status != Status.FAILED, judgement.findings


# --- once more, when the workload has ended --------------------------------------------------------------------------

PAIRS = {"pairs": [["h0", "h1"], ["h1", "h2"]]}


def again(network: StarNetwork) -> list[str]:
    return changed_meanwhile(network, payload_bytes=64, token=1 << 40)


@pytest.mark.netns
@forms("backend", ["ebpf", "cbpf", "relay", NETEM], keep=2)
def test_a_match_that_was_widened_during_the_run_is_found_when_it_has_ended(build: Build, backend: str) -> None:
    """As it was: packets that a rule must not take were sent before the run only."""
    network = build(
        backend=backend, topology={"hosts": 3, "rate_mbit": 50}, impair=[entry({"destination_ports": [7000]})]
    )
    assert again(network) == []
    asked = dict(network.rules)
    network.put({hook: tuple(replace(rule, match=Match()) for rule in here) for hook, here in asked.items()})
    network.rules = asked
    said = "took 300 of" if backend != "cbpf" else "packets were lost that no rule is about"
    assert any(said in text for text in again(network)), again(network)


DROP = struct.pack("<HBBI", 0x06, 0, 0, 2)  # classic BPF: TC_ACT_SHOT


@pytest.mark.netns
@forms("backend", ["ebpf", "cbpf", "relay", NETEM])
def test_a_filter_that_loses_what_no_rule_is_about_is_found_when_the_run_has_ended(build: Build, backend: str) -> None:
    network = build(backend=backend, topology={"hosts": 3, "rate_mbit": 50}, impair=[entry({}) | PAIRS])
    assert again(network) == []
    with network.place("h0").netlink() as inside:
        index = inside.link_lookup(ifname="eth0")[0]
        inside.tc("add", "clsact", index)
        inside.tc("add-filter", "bpf", index, handle=1, parent=PARENT["ingress"], prio=1, ops=DROP, direct_action=True)
    assert "packets were lost that no rule is about" in " ".join(again(network))


ONE_OF_64 = b"".join(  # by the number that each of our packets carries
    struct.pack("<HBBI", *one)
    for one in ((0x30, 0, 0, 42 + CHUNK_AT), (0x54, 0, 0, 63), (0x15, 0, 1, 63), (6, 0, 0, 2), (6, 0, 0, 0xFFFFFFFF))
)


@pytest.mark.netns
def test_a_filter_that_loses_one_of_sixty_four_of_others_is_found_when_the_run_has_ended(build: Build) -> None:
    """As it was: 32 were sent, of which it lost none."""
    network = build(topology={"hosts": 2}, impair=[entry({"destination_ports": [7000]})])
    port, there = network.star.ports[0], {"parent": PARENT["ingress"], "prio": 1, "handle": 7}
    network.star.switch.tc("add-filter", "bpf", port, ops=ONE_OF_64, direct_action=True, **there)
    assert "packets were lost that no rule is about" in " ".join(again(network))


@pytest.mark.parametrize("rate_mbit", [None, 50, 0.1])
@pytest.mark.parametrize("name", MATCHES)
def test_each_port_that_is_looked_at_again_meets_enough_to_tell_one_percent(name: str, rate_mbit: float | None) -> None:
    """But for links so slow that these alone would take a second."""
    rules, _, _, _ = planned(entry(MATCHES[name][0], direction="both"), rate_mbit=rate_mbit)
    keys = {"name": "t", "topology": {"hosts": 3, "rate_mbit": rate_mbit}, "impair": []}
    counters = {hook: {UNMATCHED: RuleCounters()} for hook in rules}
    network = SimpleNamespace(experiment=check(Experiment, keys, origin="test"), counters=lambda: counters, rules=rules)
    flows = foils_alone(rules, network, payload_bytes=64)  # type: ignore[arg-type]
    each = {hook: sum(one.at_most for one in flows if hook in one.hooks()) for one in flows for hook in one.hooks()}
    assert flows and all(one.at_most >= FEW for one in flows)
    assert min(each.values()) >= (300 if rate_mbit != 0.1 else FEW) and (rate_mbit != 0.1 or max(each.values()) < 300)


def test_what_is_sent_once_more_is_what_no_rule_takes_and_what_takes_all_needs_none() -> None:
    for name, (asked, _) in MATCHES.items():
        rules, flows, found, _ = planned(entry(asked, direction="both"))
        alone, _ = foils(rules, flows, Topology(hosts=3), alone=True)
        assert len(alone) >= len(found) and alone, name
        assert not any(taken_by(rules.get(hook, ()), one) for one in alone for hook in one.hooks())
    rules, flows, found, _ = planned(entry({}))
    assert foils(rules, flows, Topology(hosts=3), alone=True)[0] == []


@pytest.mark.parametrize(
    ("missing", "rest", "taken", "lost", "said"),
    [
        (0, 32, 0, 0, ""),
        (0, 32, 9, 0, ""),  # what a program's end still sends
        (4, 0, 32, 0, "h0 uplink: after the run 0:asked took 32 of 32 packets that it is not about"),
        (4, 32, 0, 0, "after the run 4 of 32 packets were lost that no rule is about"),
        (4, 32, 0, 4, ""),  # and the machine had no room for them
    ],
)
def test_what_others_lost_or_rules_took_is_told_apart(
    missing: int, rest: int, taken: int, lost: int, said: str
) -> None:
    rules, _, found, _ = planned(entry({"destination_ports": [7000]}))
    hook = Hook(rank=0, direction="uplink")
    (flow,) = [replace(one, at_most=32) for one in found if hook in one.hooks()][:1]
    label = rules[hook][0].label
    counted = {hook: {label: RuleCounters(seen=taken), UNMATCHED: RuleCounters(seen=rest)}}
    before = {hook: {label: RuleCounters(), UNMATCHED: RuleCounters()}}
    links = {0: LinkCounts(entered=rest + taken)}, {0: LinkCounts(entered=rest + taken, lost_leaving=lost)}
    between = Between(Reading(hooks=before, links=links[0]), Reading(hooks=counted, links=links[1]))
    (text,) = in_words(rules, {flow: missing}, between) or ("",)
    assert text.replace(label, "0:asked") == said
