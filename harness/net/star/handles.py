"""File handles: sockets and files into every host, maps for every hook, a socket for every flow of the proof."""

from __future__ import annotations

import resource

from lossbench.errors import NotAbleError
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import rules_ever

ALWAYS, EACH_HOST, EACH_RULE = 512, 15, 3


def wanted(experiment: Experiment) -> int:
    rules = sum(len(here) for here in rules_ever(experiment, seed=0).values())
    return ALWAYS + EACH_HOST * experiment.topology.hosts + EACH_RULE * rules


def refuse(experiment: Experiment) -> None:
    """Before anything is built: more than this process may ever have?"""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < wanted(experiment):
        raise NotAbleError(
            f"{experiment.topology.hosts} hosts with these rules need {wanted(experiment)} file handles, {hard} are "
            "allowed here",
            next_step=f"ulimit -n {wanted(experiment)}, or fewer hosts or pairs",
        )


def raise_limit(experiment: Experiment) -> None:
    """More than a shell usually gives, where we may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted(experiment):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted(experiment), hard))
