"""A run in one record: what was asked, what the network did, what the workload said, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lossbench.contract import SEEDS_VERSION
from lossbench.proof.evidence import Row
from lossbench.results.models import Counted, MetCounts, RunSummary
from lossbench.runs.run import Result
from lossbench.runs.watch import named
from lossbench.spec.about import about
from lossbench.spec.experiment import Experiment


def summary(chosen: dict[str, Any], experiment: Experiment, result: Result) -> RunSummary:
    rows, verdict, watched = result.proof.rows if result.proof else (), result.verdict, result.watched
    seen, dropped = sum(r.kernel_seen or 0 for r in rows), sum(r.kernel_dropped or 0 for r in rows)
    sent, missing = _distinct_flows(rows)
    programs = [("", experiment.workload), *((one.role, one) for one in experiment.beside)]
    return RunSummary(
        point=chosen,
        seed=result.seed,
        dir=str(result.folder),
        backend=result.backend,
        hosts=experiment.topology.hosts,
        profiles=[entry.profile.name for entry in experiment.impair],
        asked_loss=sorted({r.asked for r in rows}),
        met=MetCounts.model_validate(result.met.as_json()),
        kernel=Counted(seen=seen, dropped=dropped, loss=dropped / seen if seen else None),
        receiver=Counted(sent=sent, missing=missing, loss=missing / sent if sent else None),
        verdict=verdict.status.word,
        columns={name: column.status.word for name, column in verdict.columns.items()},
        reasons={name: column.reasons() for name, column in verdict.columns.items()},
        marks=list(verdict.marks),
        not_judged=list(verdict.not_judged),
        seeds_version=SEEDS_VERSION,
        measures={
            named(role, name): measure
            for role, program in programs
            if not program.command
            for name, measure in about(program.name).measures.items()
        },
        units=watched.units,
        warnings=[
            *(text for e in experiment.impair for text in e.profile.warnings()),
            *(f"{name}: not a finite number" for name in watched.not_numbers),
            *(f"{name} ended before the run did" for name in watched.gone),
        ],
        workload=_means(watched.summaries),
        rows=watched.rows,
        duration_s=watched.duration_s,
    )


def _distinct_flows(rows: Sequence[Row]) -> tuple[int, int]:
    """Packets sent and missing, each flow counted once: a flow that passes two hooks stands in two rows."""
    uplinks = [r for r in rows if r.hook.endswith("uplink")]
    return sum(r.receiver_sent for r in uplinks), sum(r.receiver_missing for r in uplinks)


def _means(summaries: list[dict[str, Any]]) -> dict[str, float | None]:
    """Numbers of the summary records, mean over ranks."""
    out: dict[str, float | None] = {}
    ignored = {"rank", "time_s"}
    for key in dict.fromkeys(k for s in summaries for k in s if k not in ignored):
        values = [s[key] for s in summaries if isinstance(s.get(key), int | float) and not isinstance(s[key], bool)]
        if values:
            out[key] = sum(values) / len(values)
    return out
