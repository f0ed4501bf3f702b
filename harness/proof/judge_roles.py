"""Several programs on the same links: was each there, and does it miss what the queues of its own traffic class lost?
Pure."""

from __future__ import annotations

from typing import Any

from lossbench.net import conservation
from lossbench.net.conservation import Between
from lossbench.proof.verdict import Finding, Status
from lossbench.proof.watched import Watched
from lossbench.spec.experiment import Beside, Experiment, Program
from lossbench.spec.shaping import SHARED

TO_SEND_S = 1.0  # that a program has, once it began, to send something


def judge_roles(experiment: Experiment, watched: Watched, between: Between) -> list[Finding]:
    """Of every role that counts its datagrams."""
    programs = _programs(experiment)
    return [
        _judge(role or "the workload", records, _ranks(experiment, role), _class_of(programs, role), watched, between)
        for role, records in watched.traffic.items()
        if records
    ]


def judge_absent(experiment: Experiment, watched: Watched, between: Between) -> list[Finding]:
    """Who was not there, while others sent: by its own counts, by the queues of a class that is its own, or by the
    links of hosts that no other program sends from. Elsewhere nobody can tell (`not_judged` says so). One that began
    shortly before the run's end, or not at all (a warning says so), had no time to."""
    programs = {role: one for role, one in _programs(experiment).items() if not one.is_silent()}
    out = []
    for role, one in programs.items():
        begins = one.from_s or (None if one.barrier else 0.0) if isinstance(one, Beside) else None
        if begins is not None and begins + TO_SEND_S > watched.duration_s:
            continue
        who, own, records = role or "the workload", _class_of(programs, role), watched.traffic.get(role, {})
        counts = [sum(said["sent"]) + sum(said["received"]) for said in records.values()]
        if counts and len(counts) >= _ranks(experiment, role) and not sum(counts):
            out.append(f"{who} says itself that it sent nothing and got nothing")
        elif own and watched.came.get(own, 1) == 0:
            out.append(f"no packet of {who} came to the queues of its class '{own}'")
        elif _idle(experiment, role, programs, between):
            out.append(f"no packet of {who} passed the data links of its hosts, which no other program sends from")
    return [Finding(status=Status.UNKNOWN, text=f"{text} (silent = true, if that is meant)") for text in out]


def _programs(experiment: Experiment) -> dict[str, Program]:
    return {"": experiment.workload, **{one.role: one for one in experiment.beside}}


def _idle(experiment: Experiment, role: str, programs: dict[str, Program], between: Between) -> bool:
    """All its hosts are its own, and nothing passed their links but what others sent to everybody."""
    mine = _hosts(experiment, role)
    shared = any(mine & _hosts(experiment, other) for other in programs if other != role)
    links = [link for rank, link in between.links.items() if rank in mine]
    for_all = between.after.for_all - between.before.for_all
    return not shared and not any(
        link.entered + link.lost_entering + link.up.dropped or link.left > for_all for link in links
    )


def _hosts(experiment: Experiment, role: str) -> set[int]:
    """By rank."""
    topology = experiment.topology
    hosts = next((one.hosts for one in experiment.beside if one.role == role), "all")
    return set(range(topology.hosts)) if hosts == "all" else {topology.host(name).rank for name in hosts}


def _ranks(experiment: Experiment, role: str) -> int:
    return len(_hosts(experiment, role)) * max(1, _programs(experiment)[role].torchrun)


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
