"""Several programs on the same links: does each miss what the queues of its own traffic class lost? Pure."""

from __future__ import annotations

from typing import Any

from lossbench.net import conservation
from lossbench.net.conservation import Between
from lossbench.proof.verdict import Finding, Status
from lossbench.proof.watched import Watched
from lossbench.spec.experiment import Experiment, Program
from lossbench.spec.shaping import SHARED


def judge_roles(experiment: Experiment, watched: Watched, between: Between) -> list[Finding]:
    """Of every role that counts its datagrams."""
    programs: dict[str, Program] = {"": experiment.workload, **{one.role: one for one in experiment.beside}}
    return [
        _judge(role or "the workload", records, _ranks(experiment, role), _class_of(programs, role), watched, between)
        for role, records in watched.traffic.items()
        if records
    ]


def _ranks(experiment: Experiment, role: str) -> int:
    hosts = next((one.hosts for one in experiment.beside if one.role == role), "all")
    return experiment.topology.hosts if hosts == "all" else len(hosts)


def _class_of(programs: dict[str, Program], role: str) -> str:
    """The class that it has for itself; empty if others use it too."""
    mine = programs[role].traffic_class
    return mine if mine and sum(one.traffic_class == mine for one in programs.values()) == 1 else ""


def _judge(
    who: str, records: dict[int, dict[str, Any]], ranks: int, own: str, watched: Watched, between: Between
) -> Finding:
    if len(records) < ranks:
        return Finding(status=Status.UNKNOWN, text=f"only {len(records)} of {ranks} ranks of {who} said their traffic")
    sent, received = (sum(sum(one[key]) for one in records.values()) for key in ("sent", "received"))
    met, missing = conservation.met(between), sent - received
    text = f"{who} misses {missing} of {sent} datagrams"
    others = met.rule + met.damaged + met.elsewhere + met.observed + met.for_nobody
    if own in watched.classes and not others:
        lost = watched.classes[own]
        whole = all(one.get("complete") for one in records.values())
        fits = missing == lost if whole else 0 <= missing <= lost
        said = f"{text}, the queues of class '{own}' lost {lost}" + (
            "" if whole else " (of this and what it did not count)"
        )
        return Finding(status=Status.VALID if fits else Status.UNKNOWN, text=said)
    counted = met.queue + others
    shared = " in a queue that it shares" if SHARED in watched.classes else ""
    said = f"{text}{shared}, kernel counters say {counted} for all programs together"
    return Finding(status=Status.VALID if 0 <= missing <= counted else Status.UNKNOWN, text=said)
