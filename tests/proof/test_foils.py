"""What a match must not take is probed too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lossbench.proof.probe.flows import Flow, plan, taken_by
from lossbench.proof.probe.foils import FEW, foils, rounds
from lossbench.proof.verdict import Status
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import Rules, rules_in_force
from lossbench.spec.profile import Match
from lossbench.spec.userfile import check
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


@pytest.mark.netns
@pytest.mark.parametrize("backend", ["ebpf", "cbpf"])
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
