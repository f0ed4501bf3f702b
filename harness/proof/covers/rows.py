"""The rows of the table that matter for one run; and all of it, for people. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lossbench.net.counters import Reading
from lossbench.proof.covers.conditions import BACKENDS, CONDITIONS, NOT_JUDGED, REFUSED
from lossbench.proof.covers.limit import Asked
from lossbench.proof.covers.limits import LIMITS
from lossbench.spec.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class Covered:
    """One condition that was asked for, on the backend that ran."""

    condition: str
    judged_by: str
    not_judged: tuple[str, ...] = ()


def covered(experiment: Experiment, backend: str, after: Reading | None = None) -> tuple[Covered, ...]:
    """Every row of the table that matters for a run; none where no packet crosses a network."""
    if backend == "simulated":
        return ()
    asked = Asked(experiment=experiment, backend=backend, after=after)
    said = [(one, one.text + one.more(asked)) for one in LIMITS if one.holds(asked)]
    return tuple(
        Covered(
            condition=one.name,
            judged_by=one.cells.get(backend, NOT_JUDGED),
            not_judged=tuple(text for limit, text in said if limit.of == one.name),
        )
        for one in CONDITIONS
        if one.asked(experiment) or any(limit.of == one.name for limit, _ in said)
    )


def also_not_judged(rows: tuple[Covered, ...], condition: str, text: str) -> tuple[Covered, ...]:
    """What only a run itself shows."""
    return tuple(
        replace(row, not_judged=(*row.not_judged, text)) if row.condition == condition else row for row in rows
    )


def not_judged(rows: tuple[Covered, ...]) -> tuple[str, ...]:
    """What was asked and no verdict speaks of."""
    return tuple(text for row in rows for text in row.not_judged)


def tables() -> str:
    """Markdown, between the marks in docs/fidelity.md."""
    lines = ["| asked | on | judged by |", "|---|---|---|"]
    for one in CONDITIONS:
        alike: dict[str, list[str]] = {}
        for backend in BACKENDS:
            alike.setdefault(one.cells[backend], []).append(backend)
        for number, words in enumerate(sorted(alike, key=(REFUSED, NOT_JUDGED).__contains__)):
            names = "all" if len(alike) == 1 else ", ".join(alike[words])
            lines.append(f"| {'' if number else one.name} | {names} | {words} |")
    lines += ["", "| not judged, where it is asked | of | on |", "|---|---|---|"]
    lines += [f"| {one.text} | {one.of} | {one.where()} |" for one in LIMITS]
    return "\n".join([*lines, ""])
