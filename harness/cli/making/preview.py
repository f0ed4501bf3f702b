"""`lossbench run --dry-run`: the points, what would be put in force, how long it takes; nothing is changed."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from lossbench.cli.console import say
from lossbench.results.naming import counted

if TYPE_CHECKING:
    from lossbench.runs.many.suite import Planned


def show(suite: Any, *, out: Path, machines: int = 0, **chosen: Any) -> None:
    """`machines`: of a lab, of which none is asked. What `run` would refuse is refused: a program that is not there at
    once, a network that this machine can't make once the plan has been read."""
    from lossbench import api
    from lossbench.results.naming import point_name
    from lossbench.runs.many.suite import seed_by_seed

    plan = api.planned(suite, out=out, machines=machines, **chosen)
    if not plan:
        say(f"{suite}: every run of it has ended")
        return
    if not machines:
        _there(plan)
    backends = "backend: whatever the machines can do; they are not asked" if machines else _backends(plan)
    first = plan[0].experiment
    say(f"{first.name}: {counted(len(plan), 'run')}")
    for line in _program(first.workload):
        say(f"  {line}")
    for one in seed_by_seed(plan):
        say(f"  {one.number:3}  {point_name(one.chosen)}, seed {one.seed}: {_network(one.experiment)}")
    say(f"  {_estimate(plan, out)}")
    say(f"  {_bound([one.experiment.workload.limit_s() for one in plan])}; building and proving take seconds a run")
    say(f"  {backends}")


def _bound(limits: list[float]) -> str:
    """By the time limits alone."""
    if max(limits) == math.inf:
        return "no time limit"
    alike = len(set(limits)) == 1
    each = f"{counted(len(limits), 'run')} x a time limit of {_minutes(limits[0])}" if alike else "its time limits"
    return f"at most {_minutes(sum(limits))} of workload ({each})"


def _there(plan: list[Planned]) -> None:
    """Are its programs?"""
    from lossbench.runs.launch.program import command_of

    for one in plan:
        for program in one.programs():
            command_of(program)


def _backends(plan: list[Planned]) -> str:
    from lossbench.net.kernel import Kernel
    from lossbench.runs.ground import ThisMachine

    kernel = Kernel.tried()
    if kernel.namespaces is not None:
        return f"not on this machine: {kernel.namespaces}"
    here = ThisMachine(kernel)
    names = dict.fromkeys(here.backend(here.placed(one.experiment))[0] for one in plan)
    return f"backend: {', '.join(names)}"


def _estimate(plan: list[Any], out: Path) -> str:
    """By what the same points took before; a point that was never run takes what the others took."""
    from lossbench.results.index import scan
    from lossbench.results.naming import key_of

    names = {one.experiment.name for one in plan}
    known: dict[str, list[float]] = {}
    for suite in scan(out)[0] if out.is_dir() else []:
        for run in suite.runs if suite.name in names else []:
            known.setdefault(key_of(run.summary.point), []).append(run.summary.duration_s)
    if not known:
        return f"how long it takes is not known: {out} has no earlier run of it"
    each = {key: median(found) for key, found in known.items()}
    seconds = sum(each.get(key_of(one.chosen), mean(each.values())) for one in plan)
    count = sum(map(len, known.values()))
    return f"about {_minutes(seconds)} of workload, by {counted(count, 'earlier run')} in {out}"


def _network(experiment: Any) -> str:
    topology = experiment.topology
    rate = topology.uplink_mbit()
    down = topology.downlink_mbit()
    rates = [f"{rate:g} Mbit/s" if rate else "no rate limit"]
    rates += [f"{f'{down:g} Mbit/s' if down else 'no rate limit'} down"] if down != rate else []
    classes = experiment.shaping.classes
    rates += [f"{counted(len(classes), 'class', 'classes')} of traffic in their queues"] if classes else []
    lost = "; and ".join(_in_force(entry) for entry in experiment.impair) or "nothing lost"
    lost += " (at each place a packet meets the last that is about it)" if experiment.impair[1:] else ""
    return ", ".join([f"{topology.hosts} hosts", *rates, f"MTU {topology.mtu}", lost])


def _in_force(entry: Any) -> str:
    """What will be done to packets, and not only what that is called; of a part of the links, or of the run, which."""
    where = [entry.direction]
    where += [", ".join(f"{a} to {b}" for a, b in entry.pairs)] if entry.pairs else []
    where += [", ".join(entry.hosts)] if entry.hosts != "all" else []
    for unit, first, last in ((" s", entry.from_s, entry.to_s), ("", entry.from_step, entry.to_step)):
        where += [f"from {'' if unit else 'step '}{first:g}{unit}"] if first is not None else []
        where += [f"until {'' if unit else 'step '}{last:g}{unit}"] if last is not None else []
    return f"{entry.profile.name or 'a profile'} ({', '.join(where)}): {entry.profile.in_words()}"


def _program(workload: Any) -> list[str]:
    out = [f"every host runs: {' '.join(workload.command) if workload.command else f'workload {workload.name}'}"]
    from lossbench.runs.launch.program import interpreter

    return [*out, *filter(None, [interpreter(workload)])]


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
