"""lossbench from Python: what the command's verbs do, as functions that return values and print nothing.

import lossbench
r = lossbench.run("quickstart", settings=["topology.hosts=8"], seeds=3)
r.findings, r.table("results"), r.plot("drift")
r = lossbench.run(command=["python", "train.py"], hosts=4, loss="3%")
(old,) = lossbench.load("latest")
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lossbench.errors import UsageError

if TYPE_CHECKING:  # each function loads what it needs: results can be read where there is no kernel to speak of
    from pydantic import BaseModel

    from lossbench.net.kernel import Kernel
    from lossbench.report.export.comparison import Comparison
    from lossbench.report.export.handle import Results
    from lossbench.report.groups import Group
    from lossbench.results.index import Suite
    from lossbench.runs.ground import Ground
    from lossbench.runs.many.campaign import Part
    from lossbench.runs.many.suite import Planned, SuiteResult
    from lossbench.spec.asking import adhoc
    from lossbench.spec.lab import Lab

RUNS = Path("results/runs")
BACKLOG, MANY_CORES = 20_000, 4  # measured: 8 TCP senders on 16 cores lost .2 % in a backlog of 1000, none in this


def _silent(*_: Any) -> None:
    """Progress that nobody wants to see."""


def run(
    suite: str | adhoc.Asked = "",
    *,
    command: Sequence[str] | str = (),
    progress: Callable[..., None] | None = None,
    **how: Any,
) -> Results:
    """A suite by name, an experiment's file, or a folder to resume. Or `command`, a program of yours, in a network of
    so many words: hosts=4, loss="3%", burst=8, delay="20ms", rate="1gbit", profile="bursty_5", time_limit="20m",
    sweep={"loss": [0, 1, 5]}. `how` as for `made`: settings, seeds, ... Its results: `r.findings`, `r.plot("drift")`,
    `r.table("results")`. In a notebook there is a line of progress."""
    from lossbench.net.host.loops import out_of_sight
    from lossbench.report.export.handle import Progress, Results
    from lossbench.spec.asking.in_python import known_to, said_of_arguments, taken

    known_to(made, how)
    what = taken(suite, command, how)
    shown = progress or (Progress() if "ipykernel" in sys.modules else _silent)
    with out_of_sight(), said_of_arguments() if command else nullcontext():
        return Results.at(made(what, progress=shown, **how).folder)


def made(
    suite: str | adhoc.Asked,
    *,
    settings: Sequence[str] | str = (),
    seeds: int | None = None,
    full: bool = False,
    out: Path | str = RUNS,
    resume: bool = False,
    until: str = "",
    lab: Lab | Path | str | None = None,
    these_nics: bool = False,
    progress: Callable[..., None] = _silent,
) -> SuiteResult:
    """Runs it. `settings` are KEY=VALUE, as for --set; `until`: p99=5%, for programs that can end when a number is
    known well enough. `lab`: on its machines, not in namespaces."""
    from lossbench.net.host import rootless

    if lab is None:
        rootless.with_rights()  # before anything starts a thread
    from lossbench.runs.many import planning
    from lossbench.runs.many import suite as suites

    asked: dict[str, Any] = {"full": full, "out": Path(out), "resume": resume, "until": until}
    settings = [settings] if isinstance(settings, str) else settings
    if lab is None:
        ground, (folder, run_id, plan) = None, planning.planned(suite, list(settings), seeds, **asked)
    else:
        if not resume:  # what is wrong with the suite is said before anybody is connected
            planning.planned(suite, list(settings), seeds, **asked)
        ground = _lab_ground(lab, these_nics=these_nics)
        try:
            folder, run_id, plan = planning.planned(suite, list(settings), seeds, **asked, ground=ground)
        except BaseException:
            ground.close()
            raise
    return suites.run_suite(plan, out=Path(out), run_id=run_id, progress=progress, resumed=folder, ground=ground)


def _lab_ground(lab: Lab | Path | str, *, these_nics: bool) -> Ground:
    from lossbench.net import journal
    from lossbench.runs.lab.ground import LabGround
    from lossbench.spec import lab as labs

    if os.geteuid():
        journal.in_own_folder()
    if isinstance(lab, labs.Lab):
        return LabGround(lab, these_nics=these_nics)
    return LabGround(labs.load(Path(lab)), these_nics=these_nics, again=f"--lab {shlex.quote(str(lab))}")


def planned(
    suite: str | adhoc.Asked,
    *,
    settings: Sequence[str] = (),
    seeds: int | None = None,
    full: bool = False,
    until: str = "",
    out: Path | str = RUNS,
    resume: bool = False,
    machines: int = 0,
) -> list[Planned]:
    """What `run` would do, run by run; of one that is gone on with, what is left. `machines`: of a lab, so many."""
    from lossbench.runs.lab.ground import OnPaper
    from lossbench.runs.many import planning
    from lossbench.runs.many.suite import unfinished

    asked: dict[str, Any] = {"full": full, "out": Path(out), "resume": resume, "until": until}
    ground = OnPaper(machines) if machines else None
    folder, _, plan = planning.planned(suite, list(settings), seeds, **asked, ground=ground)
    return plan if folder is None else unfinished(folder, plan)


def campaign(
    file: Path | str, *, minutes: float, out: Path | str = RUNS, progress: Callable[..., None] = _silent
) -> list[Part]:
    """Suites in order of importance until time is up; the same call goes on with what is not done."""
    from lossbench.net.host import rootless

    rootless.with_rights()
    from lossbench.runs.many import campaign as campaigns
    from lossbench.runs.many import planning

    parts = planning.parts_of(Path(file))
    campaigns.run_campaign(parts, seconds=60 * minutes, out=Path(out), progress=progress)
    return parts


def load(*which: str, where: Path | str = RUNS) -> list[Results]:
    """Results: by folder, id, suite name (its latest), commit, or `latest`; without any, all."""
    from lossbench.report.export.handle import Results
    from lossbench.results import index

    found, problems = index.pick(list(which), Path(where)) if which else index.scan(Path(where))
    for text in problems:
        warnings.warn(text, stacklevel=2)
    return [Results.of(one) for one in found]


def compare(a: str | Suite, b: str | Suite, *, where: Path | str = RUNS, with_simulated: bool = False) -> Comparison:
    """What differs between two results (or their names), number by number, with significance: a list of lines, which
    shows itself as the command's tables (in a notebook, or by rich's print)."""
    from lossbench.report.export.comparison import Comparison

    sides = [load(one, where=where) if isinstance(one, str) else [one] for one in (a, b)]
    for word, found in zip((a, b), sides, strict=True):
        if len(found) != 1:
            raise UsageError(f"{word} names {len(found)} results", next_step="give a folder or an id")
    return Comparison(sides[0][0], sides[1][0], with_simulated=with_simulated)


def replay(
    old: Suite,
    lines: list[Group],
    *,
    out: Path | None = None,
    lab: Lab | Path | str | None = None,
    these_nics: bool = False,
    progress: Callable[..., None] = _silent,
) -> Suite:
    """Every seed that was planned for the point of these lines, run again under new numbers; what ran in a lab, in that
    lab."""
    from lossbench.results import index
    from lossbench.results.naming import key_of
    from lossbench.runs.many import suite as suites

    planned = [one for one in suites.planned(old.plan, old.folder) if key_of(one.chosen) == key_of(lines[0].point)]
    result = suites.run_suite(
        [replace(one, number=number) for number, one in enumerate(planned)],
        out=out or old.folder.parent,
        run_id=secrets.token_hex(3),
        progress=progress,
        name=old.name.removesuffix(index.REPLAYED) + index.REPLAYED,
        ground=None if lab is None else _lab_ground(lab, these_nics=these_nics),
    )
    return index.read_suite(result.folder)


# --- this machine --------------------------------------------------------------------------------------------------


def doctor() -> dict[str, Any]:
    """What this machine can do, found by trying; which backend a run gets and why; what is missing, how to fix it."""
    from lossbench.net.host import rootless
    from lossbench.net.host.loops import out_of_sight
    from lossbench.net.impair import registry
    from lossbench.net.kernel import Kernel, user_namespaces
    from lossbench.results import machine
    from lossbench.runs.launch.program import unreachable_interpreter

    allowed, entered = user_namespaces(), ""
    if rootless.needed():
        try:
            rootless.enter()
            entered = "entered a user namespace"
        except Exception as error:  # noqa: BLE001 - said in the report
            entered = str(error)
    with out_of_sight():
        kernel, facts = Kernel.tried(), machine.facts()
    able = registry.able(kernel)
    usable = [name for name in registry.KINDS if able[name] is None]
    why = "; ".join(f"{n}: {able[n]}" for n in list(registry.KINDS) if able[n] is not None) or "first choice"
    return {
        "backend": {"name": usable[0] if usable else None, "why": why, "able": able},
        "namespaces": kernel.namespaces,
        "qdiscs": kernel.qdiscs,
        "classifiers": kernel.classifiers,
        "mirred": kernel.mirred,
        "ifb": kernel.ifb,
        "bpf": kernel.bpf,
        "offload_control": kernel.offloads,
        "user_namespaces": allowed,
        "rootless": entered,
        "capabilities": rootless.capabilities(),
        "gpus": machine.gpus(),
        "tools": machine.tools(),
        **facts,
        "advice": [*_advice(kernel, able, allowed, facts), *filter(None, [str(unreachable_interpreter() or "")])],
    }


def _advice(kernel: Kernel, able: dict[str, str | None], allowed: str | None, facts: dict[str, Any]) -> list[str]:
    out = []
    if kernel.namespaces is not None:
        out.append("no network namespaces: run with sudo")
    if able["netem"] is not None:
        out.append(f"netem ({able['netem']}): delay, jitter, reordering need a stock kernel: lossbench vm run -- ...")
    if kernel.qdiscs and not kernel.qdiscs.get("prio"):
        out.append("prio: not in this kernel; classes use htb, which serves by priority too")
    if able["ebpf"] is not None:
        out.append(f"ebpf ({able['ebpf']}): bursty, seeded and header-matched loss need root: sudo")
    if allowed is not None:
        out.append(f"user namespaces: {allowed}: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0")
    backlog = str(facts.get("netdev_max_backlog", ""))
    if backlog.isdigit() and int(backlog) < BACKLOG and int(facts.get("cpus") or 1) > MANY_CORES:
        out.append(
            f"input backlog of {backlog} packets: many cores overrun it, which voids a run's fault: "
            f"sudo sysctl net.core.netdev_max_backlog={BACKLOG}"
        )
    return out


# --- schemas -------------------------------------------------------------------------------------------------------

DIALECT = "https://json-schema.org/draft/2020-12/schema"


KINDS = ("profile", "experiment", "campaign", "lab", "suite", "run", "result")


def schema(kind: str) -> dict[str, Any]:
    """Of what users write (profile, experiment, campaign, lab) and of what runs leave (suite, run, result)."""
    from lossbench.results.models import RunSummary, SuitePlan, SuiteSummary
    from lossbench.spec.asking.campaign import Campaign
    from lossbench.spec.asking.reference import as_written, described
    from lossbench.spec.experiment import Experiment
    from lossbench.spec.lab import Lab
    from lossbench.spec.profile import Profile

    of_kind: tuple[type[BaseModel], ...] = (Profile, Experiment, Campaign, Lab, SuitePlan, RunSummary, SuiteSummary)
    models = dict(zip(KINDS, of_kind, strict=True))
    found = described(models[kind])
    return {"$schema": DIALECT, "title": f"lossbench {kind}", **(as_written(found) if kind == "experiment" else found)}
