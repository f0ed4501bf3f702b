"""The table of what a verdict covers, walked: each judged cell is made false on purpose, and the fault is not valid.

On paper every cell (tests/proof/paper.py: a network that does other than it was asked); in a kernel what the adversary
does (tests/bench/adversary.py), by condition."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from lossbench.net.bpf.classic import classifier
from lossbench.net.counters import Reading
from lossbench.net.impair import cbpf, registry
from lossbench.net.impair.netem.options import differences, options_of
from lossbench.proof.covers.conditions import BACKENDS, CONDITIONS, NOT_JUDGED, REFUSED
from lossbench.proof.covers.limit import Asked
from lossbench.proof.covers.limits import LIMITS
from lossbench.proof.covers.rows import covered, not_judged
from lossbench.proof.verdict import Status
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import Rules, rules_in_force
from lossbench.spec.userfile import check
from tests.bench import adversary
from tests.proof.paper import Paper

CELLS = [(one.name, backend, one.cells[backend]) for one in CONDITIONS for backend in BACKENDS]
JUDGED = [(condition, backend) for condition, backend, words in CELLS if words not in (REFUSED, NOT_JUDGED)]
IID, BURSTS = ({"model": "iid", "percent": 5}, {"model": "gilbert_elliott", "mean_percent": 5, "burst_packets_mean": 8})
SLOW = {"mean_ms": 20}
SPREAD, PAIR = {**SLOW, "jitter_ms": 12}, {"pairs": [["h0", "h1"]]}


@dataclass(frozen=True)
class Falsified:
    """How a condition is asked for, and how it is not as it was asked: other keys of its profile, its entry or its
    topology, or another thing that happens to its packets."""

    profile: dict[str, Any]
    entry: dict[str, Any] = field(default_factory=dict)
    topology: dict[str, Any] = field(default_factory=dict)
    wrong_profile: dict[str, Any] = field(default_factory=dict)
    wrong_entry: dict[str, Any] = field(default_factory=dict)
    wrong_topology: dict[str, Any] = field(default_factory=dict)
    happens: dict[str, Any] = field(default_factory=dict)

    def asked(self) -> Experiment:
        return self._experiment(self.profile, self.entry, self.topology)

    def really(self) -> Experiment:
        return self._experiment(
            self.profile | self.wrong_profile, self.entry | self.wrong_entry, self.topology | self.wrong_topology
        )

    def _experiment(self, profile: dict[str, Any], entry: dict[str, Any], topology: dict[str, Any]) -> Experiment:
        named = {"name": "x", "why": "t", **profile}
        keys = {"topology": {"hosts": 3, **topology}, "impair": [{"profile": named, **entry}]}
        return check(Experiment, {"name": "t", "workload": {"name": "chatter"}, **keys}, origin="test")


TIMED, STEPPED = {"from_s": 1.0, "to_s": 2.0}, {"from_step": 20, "to_step": 40}
PORT = {"destination_ports": [7000]}
FALSE = {
    "loss": {
        "more": Falsified({"loss": IID}, wrong_profile={"loss": {"model": "iid", "percent": 9}}),
        "less": Falsified({"loss": IID}, wrong_profile={"loss": {"model": "iid", "percent": 3}}),
    },
    "bursts": {
        "none": Falsified({"loss": BURSTS}, wrong_profile={"loss": IID}),
        "shorter": Falsified({"loss": BURSTS}, wrong_profile={"loss": {**BURSTS, "burst_packets_mean": 3}}),
    },
    "delay": {
        "more": Falsified({"delay": SLOW}, wrong_profile={"delay": {"mean_ms": 30}}),
        "less": Falsified({"delay": SLOW}, wrong_profile={"delay": {"mean_ms": 10}}),
    },
    "jitter": {
        "none": Falsified({"delay": SPREAD}, wrong_profile={"delay": SLOW}),
        "more": Falsified({"delay": SPREAD}, wrong_profile={"delay": {**SLOW, "jitter_ms": 18}}),
        "less": Falsified({"delay": SPREAD}, wrong_profile={"delay": {**SLOW, "jitter_ms": 7}}),
    },
    "reordering": {
        "none": Falsified({"delay": SLOW, "reorder": {"percent": 25}}, wrong_profile={"reorder": None}),
        "more": Falsified({"delay": SLOW, "reorder": {"percent": 25}}, wrong_profile={"reorder": {"percent": 50}}),
    },
    "duplicates": {
        "fewer": Falsified({"duplicate_percent": 5}, wrong_profile={"duplicate_percent": 1}),
        "more": Falsified({"duplicate_percent": 5}, wrong_profile={"duplicate_percent": 9}),
    },
    "damage": {
        "none": Falsified({"corrupt_percent": 5}, wrong_profile={"corrupt_percent": 0}),
        "more": Falsified({"corrupt_percent": 5}, wrong_profile={"corrupt_percent": 9}),
    },
    "rate and queue": {
        "faster": Falsified({"loss": IID}, topology={"rate_mbit": 10}, wrong_topology={"rate_mbit": 12})
    },
    "windows in time": {
        "late": Falsified({"loss": IID}, TIMED, wrong_entry={"from_s": 1.3, "to_s": 2.3}),
        "early": Falsified({"loss": IID}, TIMED, wrong_entry={"from_s": 0.7, "to_s": 1.7}),
        "told late": Falsified({"loss": IID}, TIMED, wrong_entry={"from_s": 1.4, "to_s": 2.0}, happens={"told_s": 1.4}),
    },
    "windows in steps": {
        "late": Falsified({"loss": IID}, STEPPED, wrong_entry={"from_step": 24, "to_step": 44}),
        "early": Falsified({"loss": IID}, STEPPED, wrong_entry={"from_step": 17, "to_step": 37}),
    },
    "matches": {
        "another port": Falsified({"loss": IID, "match": PORT}, wrong_profile={"match": {"destination_ports": [7001]}}),
        "every packet": Falsified({"loss": IID, "match": PORT}, wrong_profile={"match": {}}),
        "too few": Falsified({"loss": IID, "match": PORT}, wrong_profile={"match": {**PORT, "protocol": "tcp"}}),
        "another field of two": Falsified(
            {"loss": IID, "match": {**PORT, "dscp": 46}}, wrong_profile={"match": {"dscp": 46}}
        ),
    },
    "directions": {
        "the other": Falsified({"loss": IID}, {"direction": "uplink"}, wrong_entry={"direction": "downlink"}),
        "both": Falsified({"loss": IID}, {"direction": "uplink"}, wrong_entry={"direction": "both"}),
        "one of both": Falsified({"loss": IID}, {"direction": "both"}, wrong_entry={"direction": "uplink"}),
    },
    "pairs": {
        "another": Falsified({"loss": IID}, PAIR, wrong_entry={"pairs": [["h0", "h2"]]}),
        "two": Falsified({"loss": IID}, PAIR, wrong_entry={"pairs": [["h0", "h1"], ["h0", "h2"]]}),
        "all of its host": Falsified({"loss": IID}, PAIR, wrong_entry={"pairs": [], "hosts": ["h0"]}),
    },
    "MTU": {"larger packets": Falsified({"loss": IID}, happens={"larger": 3})},
    "presence": {"silent": Falsified({"loss": IID}, happens={"silent": True})},
}
ASKED = {condition: next(iter(ways.values())) for condition, ways in FALSE.items()}
WAYS = [(condition, backend, way) for condition, backend in JUDGED for way in FALSE[condition]]


@pytest.mark.parametrize(("condition", "backend"), JUDGED)
def test_a_judged_cell_that_is_as_asked_is_valid(condition: str, backend: str) -> None:
    for false in {str(one.asked()): one for one in FALSE[condition].values()}.values():
        honest = Paper(false.asked(), false.asked(), backend).verdict()
        assert honest.columns["fault"].status == Status.VALID, honest.columns["fault"].reasons()
        (row,) = [row for row in honest.covers if row.condition == condition]
        assert row.judged_by not in (REFUSED, NOT_JUDGED)


@pytest.mark.parametrize(("condition", "backend", "way"), WAYS)
def test_a_judged_cell_that_is_made_false_is_not_valid(condition: str, backend: str, way: str) -> None:
    """In every direction. As it was: in one, and what took too much, came early or was spread too far was valid."""
    false = FALSE[condition][way]
    wrong = Paper(false.asked(), false.really(), backend, **false.happens).verdict().columns["fault"]
    assert wrong.status != Status.VALID, wrong.findings


@pytest.mark.parametrize(("condition", "backend"), JUDGED)
def test_what_becomes_false_after_the_probes_is_found_or_said_to_be_not_judged(condition: str, backend: str) -> None:
    found = set()
    for false in FALSE[condition].values():
        verdict = Paper(false.asked(), false.really(), backend, **false.happens, after_probes=True).verdict()
        rows = [row for row in verdict.covers if row.condition in (condition, "delay")]
        said = any("during the run" in text or "does not count" in text for row in rows for text in row.not_judged)
        found.add(verdict.columns["fault"].status != Status.VALID)
    assert (found == {True}) is not said, "what is always found is judged"


def put_there(backend: str, rules: Rules) -> Any:
    """What the kernel is given, and tells when it is asked."""
    if backend == "netem":
        return {hook: [(classifier(r.match), options_of(r)) for r in here] for hook, here in rules.items()}
    return {hook: cbpf.program(here) for hook, here in rules.items()}


@pytest.mark.parametrize(
    ("condition", "backend"),
    [
        (condition, backend)
        for condition, backend, words in CELLS
        if "fields read back" in words or "instructions read back" in words
    ],
)
def test_what_is_judged_by_reading_back_is_in_what_the_kernel_tells(condition: str, backend: str) -> None:
    asked, really = (rules_in_force(one, seed=1) for one in (ASKED[condition].asked(), ASKED[condition].really()))
    one, other = (put_there(backend, rules) for rules in (asked, really))
    assert one != other
    if backend == "netem":
        ((_, wanted),), ((_, found),) = next(iter(one.values())), next(iter(other.values()))
        assert differences(wanted, found), "and it is one of the fields that are compared"


def test_every_backend_has_its_column() -> None:
    assert set(BACKENDS) == set(registry.KINDS)
    assert {tuple(one.cells) for one in CONDITIONS} == {BACKENDS}


REFUSES = {**{name: one.profile for name, one in ASKED.items()}, "slots, marks, a profile's own rate": {"ecn": True}}


@pytest.mark.parametrize(("condition", "backend", "words"), CELLS)
def test_what_the_table_calls_refused_is_refused_and_nothing_else(condition: str, backend: str, words: str) -> None:
    (entry,) = Falsified(REFUSES[condition]).asked().impair
    assert (registry.find(backend).refusal(entry.profile) is not None) is (words == REFUSED)


@pytest.mark.parametrize("condition", [one.name for one in CONDITIONS])
def test_what_is_asked_is_told_from_what_is_not(condition: str) -> None:
    """A row stands in a verdict where its condition was asked for."""
    (one,) = [one for one in CONDITIONS if one.name == condition]
    asked = ASKED[condition].asked() if condition in ASKED else Falsified({"ecn": True}).asked()
    assert one.asked(asked)
    plain = check(Experiment, {"name": "t"}, origin="test")
    assert one.asked(plain) is (condition in ("loss", "MTU", "presence"))


CBPF_TWO = {"impair": [{"profile": "loss_1"}, {"profile": "loss_5", "hosts": ["h0"]}]}


@pytest.mark.parametrize(
    ("keys", "backend", "condition", "said"),
    [
        ({}, "mine:KIND", "loss", "a backend of one's own"),
        (CBPF_TWO, "cbpf", "loss", "single rules"),
        (CBPF_TWO, "cbpf", "presence", "that each rule was met"),
        ({"impair": [{"profile": "loss_5", "pairs": [["h0", "h1"]]}]}, "cbpf", "presence", "that each rule was met"),
        ({"impair": [{"profile": "loss_1", "from_step": 5}]}, "ebpf", "windows in steps", "ranks behind the first"),
        ({"impair": [{"profile": "loss_1", "to_s": 5}]}, "cbpf", "loss", "whose rules changed under traffic"),
        ({"impair": [{"profile": "loss_1", "direction": "both"}]}, "cbpf", "directions", "counts both sides together"),
        (
            {"impair": [{"profile": {"name": "x", "why": "t", "delay": {"mean_ms": 2}}}]},
            "relay",
            "delay",
            "late by up to 2 ms",
        ),
        ({"topology": {"rate_mbit": 5}}, "netem", "rate and queue", "whether links reach their rate"),
        (
            {"workload": {"name": "noop"}, "impair": [{"profile": "loss_1"}]},
            "ebpf",
            "presence",
            "whether any packet met",
        ),
        ({"workload": {"command": ["python", "t.py"]}}, "ebpf", "presence", "through this machine's memory"),
        ({"workload": {"command": ["python", "t.py"], "torchrun": 2}}, "ebpf", "presence", "several ranks speak"),
    ],
)
def test_what_is_not_judged_stands_in_the_row_of_its_condition(
    keys: dict[str, Any], backend: str, condition: str, said: str
) -> None:
    rows = covered(check(Experiment, {"name": "t", **keys}, origin="test"), backend)
    (row,) = [row for row in rows if row.condition == condition]
    assert any(said in text for text in row.not_judged)
    assert any(said in text for text in not_judged(rows))


def test_a_pair_is_not_judged_by_what_is_for_all_and_that_is_said_where_some_was() -> None:
    """100 % from h0 to h1 asked, and what h0 told everybody came to h1."""
    asked = check(Experiment, {"name": "t", "impair": [{"profile": "loss_5", "pairs": [["h0", "h1"]]}]}, origin="test")
    said = [[t for t in not_judged(covered(asked, "ebpf", Reading(for_all=n))) if "for all hosts" in t] for n in (0, 3)]
    assert [len(one) for one in said] == [0, 1]


def test_limits_speak_of_conditions_and_hold_only_where_they_are_asked() -> None:
    known, plain = {one.name for one in CONDITIONS}, check(Experiment, {"name": "t"}, origin="test")
    assert {limit.of for limit in LIMITS} <= known
    for backend in BACKENDS:
        assert [limit.text for limit in LIMITS if limit.holds(Asked(experiment=plain, backend=backend))] == []


def test_a_verdict_carries_the_rows_of_what_was_asked_and_none_where_nothing_is_proven() -> None:
    false = ASKED["bursts"]
    stored = Paper(false.asked(), false.asked(), "ebpf").verdict().as_json()
    assert {row["condition"] for row in stored["covers"]} == {"loss", "bursts", "directions", "MTU", "presence"}
    assert all(row["judged_by"] for row in stored["covers"])
    assert stored["not_judged"] == [text for row in stored["covers"] for text in row["not_judged"]]
    assert covered(false.asked(), "simulated") == ()


@pytest.mark.parametrize("judging", ["ebpf", "netem", "cbpf", "relay"])
def test_every_condition_that_is_judged_is_made_false_in_a_kernel_too(judging: str) -> None:
    """As it was: on ebpf alone. netem had no deed for nine conditions, relay none for jitter and reordering."""
    done = {deed.of for deed in adversary.DEEDS.values() if judging in deed.backends and deed.voids == "fault"}
    assert {condition for condition, backend in JUDGED if backend == judging} <= done


def test_every_condition_that_is_judged_is_drawn_and_left_alone_too() -> None:
    """As it was: nobody asked for jitter and reordering."""
    judged = {condition for condition, _ in JUDGED}
    assert set(adversary.ASKS) == judged and {deed.of for deed in adversary.DEEDS.values()} == judged
