"""lossbench from Python: what the command's verbs do, as functions that return values and print nothing.

import lossbench
result = lossbench.run("quickstart", settings=["topology.hosts=8"], seeds=3)
for suite in lossbench.load("latest"):
    for group in lossbench.report.groups.groups_of(suite): ...
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lossbench.errors import UsageError

if TYPE_CHECKING:  # each function loads what it needs: results can be read where there is no kernel to speak of
    from pydantic import BaseModel

    from lossbench.net.kernel import Kernel
    from lossbench.report.compare import Line
    from lossbench.report.groups import Group
    from lossbench.results.folders import SuiteFolder
    from lossbench.results.index import Suite
    from lossbench.runs.suite import Planned, SuiteResult

RUNS = Path("results/runs")
BACKLOG, MANY_CORES = 20_000, 4  # measured: 8 TCP senders on 16 cores lost .2 % in a backlog of 1000, none in this


def _silent(*_: Any) -> None:
    """Progress that nobody wants to see."""


def run(
    suite: str,
    *,
    settings: Sequence[str] = (),
    seeds: int | None = None,
    full: bool = False,
    out: Path | str = RUNS,
    resume: bool = False,
    progress: Callable[..., None] = _silent,
) -> SuiteResult:
    """A suite by name, an experiment's file, or a folder to resume. `settings` are KEY=VALUE, as for --set."""
    from lossbench.net.host import rootless

    if rootless.needed():  # before anything starts a thread
        rootless.enter()
    from lossbench.runs import suite as suites

    folder, run_id, plan = _planned(suite, list(settings), seeds, full=full, out=Path(out), resume=resume)
    return suites.run_suite(plan, out=Path(out), run_id=run_id, progress=progress, resumed=folder)


def _planned(
    suite: str, settings: list[str], seeds: int | None, *, full: bool, out: Path, resume: bool
) -> tuple[SuiteFolder | None, str, list[Planned]]:
    """(the folder to go on with, the run's id, all runs)."""
    from lossbench.runs import suite as suites
    from lossbench.spec import points

    if suite not in points.suite_names() and Path(suite).is_dir():
        if not resume:
            raise UsageError(f"{suite} is a folder", next_step="to go on with a run that was ended add --resume")
        if settings or full or seeds:
            step = "drop --set, --seeds, --full, --backend"
            raise UsageError("a folder is resumed as it was planned", next_step=step)
        return suites.resume(Path(suite))
    plan = suites.plan_of(points.points(points.find(suite), settings=settings, full=full), seeds=seeds)
    if resume:
        return suites.resume(suites.newest_unfinished(out, plan))
    return None, secrets.token_hex(3), plan


def load(*which: str, where: Path | str = RUNS) -> list[Suite]:
    """Results: by folder, id, suite name (its latest), commit, or `latest`; without any, all."""
    from lossbench.results import index

    found, problems = index.pick(list(which), Path(where)) if which else index.scan(Path(where))
    for text in problems:
        warnings.warn(text, stacklevel=2)
    return found


def compare(a: str, b: str, *, where: Path | str = RUNS, with_simulated: bool = False) -> list[Line]:
    """What differs between two results, number by number, with significance."""
    from lossbench.report.compare import result_lines

    sides = [load(word, where=where) for word in (a, b)]
    for word, found in zip((a, b), sides, strict=True):
        if len(found) != 1:
            raise UsageError(f"{word} names {len(found)} results", next_step="give a folder or an id")
    return result_lines(sides[0][0], sides[1][0], with_simulated=with_simulated)


def replay(
    old: Suite, lines: list[Group], *, out: Path | None = None, progress: Callable[..., None] = _silent
) -> Suite:
    """Every seed that was planned for the point of these lines, run again under new numbers."""
    from lossbench.results import index
    from lossbench.results.naming import key_of
    from lossbench.runs import suite as suites

    planned = [one for one in suites.planned(old.plan, old.folder) if key_of(one.chosen) == key_of(lines[0].point)]
    result = suites.run_suite(
        [replace(one, number=number) for number, one in enumerate(planned)],
        out=out or old.folder.parent,
        run_id=secrets.token_hex(3),
        progress=progress,
        name=old.name.removesuffix(index.REPLAYED) + index.REPLAYED,
    )
    return index.read_suite(result.folder)


def lines_of_point(suite: Suite, wanted: str, *, number: int | None = None) -> list[Group]:
    """All lines of the table that the runs of one point made: by a line's name or a part of it, or a run's number."""
    from lossbench.report.groups import groups_of
    from lossbench.results.naming import key_of

    groups = groups_of(suite, with_simulated=True)
    if number is not None:
        groups = [group for group in groups if any(one.number == number for one in group.runs)]
    found = [group for group in groups if group.name == wanted] or [group for group in groups if wanted in group.name]
    chosen = {key_of(group.point) for group in found}
    if len(chosen) != 1:
        known = ", ".join(f"'{group.name}'" for group in found or groups) or "none that ended"
        raise UsageError(f"{'no line' if not found else 'several lines'} '{wanted}'", next_step=f"known: {known}")
    return [group for group in groups if key_of(group.point) in chosen]


# --- this machine --------------------------------------------------------------------------------------------------


def doctor() -> dict[str, Any]:
    """What this machine can do, found by trying; which backend a run gets and why; what is missing, how to fix it."""
    from lossbench.net.host import rootless
    from lossbench.net.impair import registry
    from lossbench.net.kernel import Kernel, user_namespaces
    from lossbench.results import machine

    allowed, entered = user_namespaces(), ""
    if rootless.needed():
        try:
            rootless.enter()
            entered = "entered a user namespace"
        except Exception as error:  # noqa: BLE001 - said in the report
            entered = str(error)
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
        "advice": _advice(kernel, able, allowed, facts),
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


KINDS = ("profile", "experiment", "suite", "run", "result")


def schema(kind: str) -> dict[str, Any]:
    """Of what users write (profile, experiment) and of what runs leave (suite, run, result)."""
    from lossbench.results.models import RunSummary, SuitePlan, SuiteSummary
    from lossbench.spec.experiment import Experiment
    from lossbench.spec.profile import Profile
    from lossbench.spec.reference import described

    of_kind: tuple[type[BaseModel], ...] = (Profile, Experiment, SuitePlan, RunSummary, SuiteSummary)
    models = dict(zip(KINDS, of_kind, strict=True))
    found = described(models[kind])
    return {"$schema": DIALECT, "title": f"lossbench {kind}", **(_as_written(found) if kind == "experiment" else found)}


def _as_written(out: dict[str, Any]) -> dict[str, Any]:
    """As a file is written: profiles also by name or path, the name from the file, a sweep, a full form."""
    out["required"] = [name for name in out.get("required", []) if name != "name"]
    dotted = {"type": "object", "title": "Full", "description": "Changes for --full, and its own sweep."}
    out["properties"]["full"] = dotted
    entry = out["$defs"]["Impair"]["properties"]
    named = {"type": "string", "description": "A profile that comes along, or the path of a TOML file."}
    about = entry["profile"].pop("description", "")
    entry["profile"] = {"description": about, "anyOf": [named, entry["profile"]]}
    return out
