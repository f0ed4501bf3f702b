"""One machine's ends of the probes, as its agent answers for them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from lossbench.proof.probe.flows import plan
from lossbench.proof.probe.foils import foils
from lossbench.runs.lab.exchange import LabExchange
from lossbench.runs.lab.probes import FLOWS, Probes
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import rules_in_force
from lossbench.spec.userfile import check


class Waiting:
    """An exchange in whose sockets more waits than one look takes."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def drain(self, heard: list[Any]) -> int:
        del heard
        self.looks -= self.looks > 0
        return self.looks


def test_all_that_waits_is_taken_by_one_question() -> None:
    """As it was: a thousand packets of each socket a question, and forty questions of every machine after a round."""
    probes, waiting = Probes(), Waiting(looks=40)
    probes._exchange, probes._rank = waiting, 0  # type: ignore[assignment]
    assert probes.drain() == 0 and waiting.looks == 0


def test_of_a_foil_a_lab_misses_nothing_that_was_never_sent() -> None:
    """It is of fewer packets than the others, and known as that at both ends."""
    profile = {"name": "x", "why": "t", "match": {"destination_ports": [7000]}}
    experiment = check(Experiment, {"name": "t", "impair": [{"profile": profile}]}, origin="test")
    rules = rules_in_force(experiment, seed=1)
    flows, _ = plan(rules, experiment.topology)
    flows += foils(rules, flows, experiment.topology)[0]
    assert FLOWS.validate_python(FLOWS.dump_python(flows, mode="json")) == flows and flows[-1].turn
    exchange = LabExchange.__new__(LabExchange)
    exchange._flows = flows
    said = {
        str(number): {
            "order": base64.b64encode(np.arange(flow.count(500), dtype="<u4").tobytes()).decode(),
            "delays_ms": [],
            "wrong_headers": 0,
        }
        for number, flow in enumerate(flows)
    }
    late = dict.fromkeys(said, [])
    hosts = range(experiment.topology.hosts)
    exchange._all = lambda _: {rank: {"flows": said, "late_ms": late, "overflow": 0} for rank in hosts}  # type: ignore[method-assign,assignment]
    heard = exchange._put_together(500)
    assert [one.sent for one in heard] == [flow.count(500) for flow in flows]
    assert not any(one.missing().any() for one in heard)
