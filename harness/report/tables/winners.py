"""Who wins where: for every condition of the network the contenders that can't be told from the best, those that are
worse, and who of the good is the fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from lossbench.report import inference
from lossbench.report.gathered import Gathered
from lossbench.report.groups import OUTCOMES, TIMES, Group, main_measure
from lossbench.report.tables.table import Cell, Table
from lossbench.results.measures import short
from lossbench.results.naming import key_of, point_name

CONDITION = "impair"  # what a swept key about the network begins with
LEAST = 3  # contenders
NOBODY = "-"


class Field(NamedTuple):
    """All contenders under one condition, by name."""

    condition: str
    groups: dict[str, Group]


def winners(gathered: Gathered) -> Table | None:
    """None where there are not several contenders under several conditions, with several seeds."""
    fields = _fields([group for group in gathered.groups if not group.row])
    seeds = max((group.planned for group in gathered.groups), default=0)
    if seeds < 2 or len(fields) < 2 or min(len(field.groups) for field in fields) < LEAST:
        return None
    every = [group for field in fields for group in field.groups.values()]
    outcome, time = main_measure(every, "outcome", OUTCOMES), main_measure(every, "timing", TIMES)
    if not outcome:
        return None
    better = every[0].measure(outcome).better
    rows = [_row(field, outcome, time, sign=1 if better == "high" else -1) for field in fields]
    known = [row for row in rows if row is not None]
    notes = [
        f"By {outcome.replace('_', ' ')}. Not told apart: paired over common seeds, no difference to the best found "
        f"(p >= {inference.ALPHA:g} after Holm's correction within the line), which says as much as the seeds allow. "
        f"Fastest: of these, by {time.replace('_', ' ') or 'nothing'}, where times may be believed."
    ]
    head = ["condition", "n", "best", "not told apart", "worse", "fastest of the good"]
    return Table(f"{gathered.suite.name}: who wins where", head, known, notes) if known else None


def _fields(groups: Sequence[Group]) -> list[Field]:
    out: dict[str, Field] = {}
    for group in groups:
        place = {key: value for key, value in group.point.items() if key.startswith(CONDITION)}
        who = {key: value for key, value in group.point.items() if key not in place}
        if place and who:
            field = out.setdefault(key_of(place), Field(point_name(place), {}))
            field.groups[point_name(who)] = group
    return list(out.values())


def _row(field: Field, outcome: str, time: str, *, sign: int) -> list[Cell] | None:
    (lasts, _), *_ = Counter(group.lasts for group in field.groups.values()).most_common(1)
    known = {name: group.sound(outcome) for name, group in field.groups.items() if group.lasts == lasts}
    seeds, planned = _common(list(known.values())), max(group.planned for group in field.groups.values())
    lack = [name for name, values in known.items() if not set(values) >= seeds]
    if len(seeds) < 2:
        return None
    means = {name: fmean(values[seed] for seed in seeds) for name, values in known.items() if name not in lack}
    best = max(means, key=lambda name: sign * means[name])
    mine = {name: {seed: known[name][seed] for seed in seeds} for name in means}
    pairs = {name: inference.paired(mine[best], mine[name]) for name in means if name != best}
    tested = {name: one for name, one in pairs.items() if one is not None}
    sure = dict(zip(tested, inference.corrected(list(tested.values())), strict=True))
    worse = [name for name, one in sure.items() if one.significant]
    alike = [name for name in sure if name not in worse]
    return [
        Cell(field.condition),
        Cell(str(len(seeds)) if len(seeds) == planned else f"{len(seeds)} of {planned}"),
        Cell(f"{best}\n{short(means[best])}"),
        Cell("\n".join(alike) or NOBODY),
        Cell("\n".join(_worse(sure, worse) + [f"{name}: too few seeds" for name in lack]) or NOBODY),
        Cell(_fastest({name: field.groups[name] for name in (best, *alike)}, time)),
    ]


def _common(every: list[dict[int, float]]) -> set[int]:
    """Seeds that most contenders have, so that all are judged by the same: one that was cut off or failed must not
    look good by the seeds that it had."""
    most = max((len(values) for values in every), default=0)
    full = [set(values) for values in every if len(values) == most]
    return set.intersection(*full) if most else set()


def _worse(sure: dict[str, inference.Difference], names: list[str]) -> list[str]:
    return [f"{name} {100 * (sure[name].relative or 0):+.1f} %" for name in names]


def _mean(group: Group, name: str) -> inference.Estimate | None:
    return inference.estimate(list(group.sound(name).values()))


def _fastest(good: dict[str, Group], time: str) -> str:
    took = {name: found.mean for name, group in good.items() if time and (found := _mean(group, time)) is not None}
    if not took:
        return NOBODY
    first = min(took, key=lambda name: took[name])
    unit = good[first].unit(time) or ""
    return f"{first}\n{short(took[first])} {unit}".rstrip()
