"""A run in one record: what was asked, what the network did, what the workload said, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lossbench.contract import SEEDS_VERSION
from lossbench.net.conservation import Met
from lossbench.proof.evidence import Row, foils_among
from lossbench.proof.judge import said_by_some
from lossbench.proof.watched import Watched
from lossbench.results.measures import EXIT
from lossbench.results.models import Counted, MetCounts, RunSummary
from lossbench.runs.launch import capture
from lossbench.runs.run import Result
from lossbench.runs.watch import named
from lossbench.spec.about import Measure, about
from lossbench.spec.experiment import Experiment

# Of any program that a user starts: what its companion and the links know.
MEASURES = {
    "wall_s": Measure(better="low", meaning="from the start of your program to its end, mean over ranks"),
    "sent_mb": Measure(meaning="megabytes that all ranks gave to their links, headers included"),
    "packets": Measure(meaning="packets that all ranks gave to their links"),
    "lost_percent": Measure(meaning="of these packets, by whatever cause"),
    "tcp_resent_percent": Measure(better="low", meaning="of its TCP segments, sent again by the kernel"),
    "rtt_ms": Measure(
        better="low",
        meaning="a TCP packet and its answer, queues included: a rank's median of what the kernel saw, mean over ranks",
    ),
    "cpu_s": Measure(better="low", meaning="processor time of a rank, mean over ranks"),
    "memory_mb": Measure(better="low", meaning="the most memory that a rank's largest process had, mean over ranks"),
    EXIT: Measure(
        meaning="the status with which your program ended, of the ranks that furthest from 0; -9: by signal 9"
    ),
}
UNITS = {
    "wall_s": "s",
    "sent_mb": "MB",
    "packets": "",
    "lost_percent": "%",
    "tcp_resent_percent": "%",
    "rtt_ms": "ms",
    "cpu_s": "s",
    "memory_mb": "MB",
    EXIT: "",
}


def summary(chosen: dict[str, Any], experiment: Experiment, result: Result) -> RunSummary:
    rows, verdict, watched = result.proof.rows if result.proof else (), result.verdict, result.watched
    foils = foils_among(rows)
    asked = [row for row in rows if row not in foils]
    seen, dropped = sum(r.kernel_seen or 0 for r in asked), sum(r.kernel_dropped or 0 for r in asked)
    sent, missing = _distinct_flows(asked)
    programs = [("", experiment.workload), *((one.role, one) for one in experiment.beside)]
    return RunSummary(
        point=chosen,
        seed=result.seed,
        dir=str(result.folder),
        backend=result.backend,
        hosts=experiment.topology.hosts,
        profiles=[entry.profile.name for entry in experiment.impair],
        asked_loss=sorted({r.asked for r in asked}),
        met=MetCounts.model_validate(result.met.as_json()),
        kernel=Counted(seen=seen, dropped=dropped, loss=dropped / seen if seen else None),
        receiver=Counted(sent=sent, missing=missing, loss=missing / sent if sent else None),
        verdict=verdict.status.word,
        columns={name: column.status.word for name, column in verdict.columns.items()},
        reasons={name: column.reasons() for name, column in verdict.columns.items()},
        roles=verdict.words_by_role(),
        marks=list(verdict.marks),
        not_judged=list(verdict.not_judged),
        seeds_version=SEEDS_VERSION,
        measures={
            named(role, name): measure
            for role, program in programs
            for name, measure in (MEASURES if program.command else about(program.name).measures).items()
        },
        units=watched.units | (UNITS if experiment.workload.command else {}),
        warnings=[
            *(text for e in experiment.impair for text in e.profile.warnings()),
            *(f"{name}: not a finite number" for name in watched.not_numbers),
            *_of_some(experiment, watched),
            *_gone(watched.gone),
            *capture.faults(result.folder),
            *(f"{role} never began: its time lay behind the run's end" for role in watched.never_came),
        ],
        own_program=bool(experiment.workload.command),
        workload=_numbers(experiment, watched, result.met),
        rows=watched.rows,
        duration_s=watched.duration_s,
    )


def _numbers(experiment: Experiment, watched: Watched, met: Met) -> dict[str, float | None]:
    return _of_command(experiment, watched, met) if experiment.workload.command else _means(watched.summaries)


def _of_command(experiment: Experiment, watched: Watched, met: Met) -> dict[str, float | None]:
    """Of a program that may count nothing itself: first what is known of any, then its own numbers. The links count
    all who send on them: with programs beside it theirs are not its own."""
    found = _means(watched.programs) | _means(watched.summaries)
    codes = [one[EXIT] for one in watched.programs if isinstance(one.get(EXIT), int)]
    found |= {EXIT: max(codes, key=abs)} if codes else {}
    if watched.after is not None and not experiment.beside:
        lost = met.as_json()["loss"]
        found |= {"packets": met.packets, "lost_percent": None if lost is None else 100 * lost}
        if met.bytes:
            found["sent_mb"] = met.bytes / 1e6
    return {name: found[name] for name in MEASURES if name in found} | found


def _of_some(experiment: Experiment, watched: Watched) -> list[str]:
    """Means that are not of all ranks: who did not speak may have had a worse number. By who spoke."""
    numbers: dict[str, list[str]] = {}
    for name in _means(watched.summaries):
        some = said_by_some(name, experiment, watched)
        numbers.setdefault(some, []).append(name)
    return [f"{some} reported {', '.join(names)}: of these alone" for some, names in numbers.items() if some]


def _gone(names: list[str]) -> list[str]:
    """Programs that ended before the run did, by role."""
    count = Counter(name.rpartition(" ")[0] for name in names)
    few = {role for role, times in count.items() if times == 1}
    said = [name for name in names if name.rpartition(" ")[0] in few]
    said += [f"{role} (on {times} hosts)" for role, times in count.items() if times > 1]
    return [f"{name} ended before the run did" for name in said]


def _distinct_flows(rows: Sequence[Row]) -> tuple[int, int]:
    """Packets sent and missing, each flow counted once: a flow that passes two hooks stands in two rows."""
    uplinks = [r for r in rows if r.hook.endswith("uplink")]
    return sum(r.receiver_sent for r in uplinks), sum(r.receiver_missing for r in uplinks)


def _means(summaries: list[dict[str, Any]]) -> dict[str, float | None]:
    """Numbers of the summary records, mean over ranks."""
    out: dict[str, float | None] = {}
    ignored = {"rank", "time_s"}
    for key in dict.fromkeys(k for s in summaries for k in s if k not in ignored):
        said = [s[key] for s in summaries if key in s]
        values = [value for value in said if isinstance(value, int | float) and not isinstance(value, bool)]
        if values:  # a rank that has none (NaN is kept as nothing) leaves no mean of the others
            out[key] = None if any(value is None for value in said) else sum(values) / len(values)
    return out
