"""Two sets of results side by side: what differs in spec, in machine, in result."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lossbench.report import inference
from lossbench.report.between import sameness
from lossbench.report.between.partners import PAIR_FROM, both, tested, unknown
from lossbench.report.groups import Group, groups_of, shown_of
from lossbench.report.inference import ALPHA, Difference
from lossbench.report.tables.differences import difference_cell
from lossbench.report.tables.table import Cell, Table
from lossbench.results.index import Suite
from lossbench.results.measures import short
from lossbench.results.models import Session
from lossbench.results.naming import key_of, point_name
from lossbench.spec.experiment import as_now

VALUE_WIDTH = 18  # of a changed value; longer ones take several lines


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}{key}.")
    elif isinstance(value, list | tuple) and any(isinstance(one, Mapping | list) for one in value):
        for number, inner in enumerate(value):
            yield from flatten(inner, f"{prefix}{number}.")
    else:
        yield prefix.rstrip("."), value


def _changes(a: Any, b: Any) -> list[tuple[str, str, str]]:
    left, right = dict(flatten(a)), dict(flatten(b))
    keys = [key for key in dict.fromkeys([*left, *right]) if left.get(key, ...) != right.get(key, ...)]
    return [(key, str(left.get(key, "-")), str(right.get(key, "-"))) for key in keys]


def _table(title: str, rows: list[tuple[str, str, str, str]]) -> Table:
    folded = [[Cell("\n".join(textwrap.wrap(text, VALUE_WIDTH))) for text in row[1:]] for row in rows]
    return Table(
        title, ["what", "A", "B", "where"], [[Cell(row[0]), *cells] for row, cells in zip(rows, folded, strict=True)]
    )


def spec(a: Suite, b: Suite) -> Table:
    """What was asked for, point by point; a change that all points share is said once."""
    left, right = _plans(a), _plans(b)
    common = [name for name in left if name in right]
    found: Counter[tuple[str, str, str]] = Counter()
    for name in common:
        found.update(_changes(left[name], right[name]))
    rows = [
        (*change, "all points" if count == len(common) else f"{count} of {len(common)} points")
        for change, count in found.items()
    ]
    rows += [(f"point {name}", "planned", "-", "") for name in left if name not in right]
    rows += [(f"point {name}", "-", "planned", "") for name in right if name not in left]
    seeds = [sorted({one.seed for one in suite.plan.plan}) for suite in (a, b)]
    if seeds[0] != seeds[1]:
        rows.append(("seeds", *(", ".join(map(str, some)) for some in seeds), ""))  # type: ignore[arg-type]
    return _table("spec", rows)


def _plans(suite: Suite) -> dict[str, Any]:
    """By the name of the point (and the point itself where names are alike); why and sweep are not what is run."""
    ignored = ("why", "subject", "sweep", "seeds", "first_seed")
    alike = Counter(point_name(json.loads(key)) for key in {key_of(one.point) for one in suite.plan.plan})
    out = {}
    for one in suite.plan.plan:
        name = point_name(one.point)
        name += f" {key_of(one.point)}" if alike[name] > 1 else ""
        asked = as_now(one.experiment)
        out[name] = {key: value for key, value in asked.items() if key not in ignored}
    return out


def machine(a: Suite, b: Suite) -> Table:
    """Of all sessions that worked on a suite: what is resumed elsewhere was made at both places."""
    common = set(_commands(a)) & set(_commands(b))

    def of_suite(suite: Suite) -> dict[str, Any]:
        every = [dict(flatten(of_session(suite, one))) for one in suite.plan.sessions]
        return {
            key: " then ".join(dict.fromkeys(str(one.get(key, "-")) for one in every))
            for key in dict.fromkeys(key for one in every for key in one)
        }

    def of_session(suite: Suite, session: Session) -> dict[str, Any]:
        backends = sorted({run.summary.backend for run in suite.runs})
        git = {**session.git, "commit": str(session.git.get("commit", ""))[:10]}
        names = _commands_of(session)
        others = [name for name in names if name not in common]  # held against each other in their order
        programs = {
            name if name in common else str(others.index(name)): one
            for name, one in zip(names, session.programs, strict=True)
        }
        return {
            **_where(session),
            "git": git,
            "backend": ", ".join(backends),
            "seeds version": session.seeds_version,
            "program": programs,
        }

    return _table("machine and code", [(*change, "") for change in _changes(of_suite(a), of_suite(b))])


def _where(session: Session) -> dict[str, Any]:
    """This machine; or a lab's, beside the one that controlled them."""
    here = {**_that_matters(session.machine), "gpus": ", ".join(session.gpus)}
    if not session.machines:
        return here
    hosts = {name: {**_that_matters(one), "gpus": session.gpus_of(name)} for name, one in session.machines.items()}
    return {**hosts, "lab": session.lab, "controller": here}


def _that_matters(facts: dict[str, Any]) -> dict[str, Any]:
    """Which other congestion controls happened to be loaded is no difference."""
    return {name: value for name, value in facts.items() if name != "congestion_controls"}


def _commands(suite: Suite) -> list[str]:
    return [name for session in suite.plan.sessions for name in _commands_of(session)]


def _commands_of(session: Session) -> list[str]:
    """Of the user's own programs."""
    return [" ".join(map(str, one.get("command", []))) for one in session.programs]


@dataclass(frozen=True)
class Line:
    """One measure of one line of the table, in both."""

    point: str
    measure: str
    a: inference.Estimate
    b: inference.Estimate
    change: Difference
    better: str = ""
    whole: bool = True
    """Every seed that B was to have has such a number and was compared; else who is missing might be the worst."""

    def said(self, *, margin: float = sameness.MARGIN_PERCENT / 100) -> str:
        """Is it different, the same within `margin` (a share of A's mean), or can nobody tell?"""
        found = sameness.said(self.change, of=self.a.mean, margin=margin)
        return sameness.OPEN if found in sameness.ALIKE and not self.whole else found


def result_lines(
    a: Suite, b: Suite, *, with_simulated: bool = False, measures: Collection[str] | None = None
) -> list[Line]:
    """Of what tables show, or of `measures`, shown or not."""
    return lines_of(both(a, b, with_simulated=with_simulated, measures=measures or ()), measures=measures)


def measures_of(*suites: Suite) -> list[str]:
    """Every number that these have of anything, shown or not."""
    return list(dict.fromkeys(name for suite in suites for group in groups_of(suite) for name in group.values))


def lines_of(pairs: list[tuple[Group, Group]], *, measures: Container[str] | None = None) -> list[Line]:
    """Corrected for all measures of all pairs together. What came of unequal steps is in none."""
    found: list[Line] = []
    for a, b in pairs:
        names = shown_of([a, b]) if measures is None else [name for name in a.values if name in measures]
        for name in [name for name in names if name in a.values and name in b.values and a.comparable(b, name)]:
            left, right = tested(a.sound(name), b.sound(name))
            one = difference(left, right)
            before, after = (inference.estimate(list(some.values())) for some in (left, right))
            if one is not None and before is not None and after is not None:
                whole = not unknown(a, b, name)
                found.append(Line(a.name, name, before, after, one, a.measure(name).better, whole))
    return corrected(found)


def corrected(lines: Sequence[Line]) -> list[Line]:
    """For each other, and for nothing else."""
    sure = inference.corrected([line.change for line in lines])
    return [replace(line, change=change) for line, change in zip(lines, sure, strict=True)]


def difference(a: dict[int, float], b: dict[int, float]) -> Difference | None:
    """Paired where both have the same seeds, else Welch."""
    if len(set(a) & set(b)) >= PAIR_FROM:
        return inference.paired(a, b)
    return inference.unpaired(list(a.values()), list(b.values()))


def results(lines: list[Line], *, margin: float = sameness.MARGIN_PERCENT / 100, unequal: str = "") -> Table:
    """`unequal`: which lines are not compared, in words."""
    rows = []
    for line in lines:
        change = line.change
        shown = difference_cell(change)
        rows.append(
            [
                Cell(line.point),
                Cell(line.measure),
                _estimate(line.a),
                _estimate(line.b),
                Cell(shown.text, _direction(line) if change.significant else shown.style, shown.detail),
                Cell("-" if change.p_all is None else f"{change.p_all:.2g}"),
                Cell(line.said(margin=margin)),
            ]
        )
    methods = ", ".join(sorted({line.change.method for line in lines}))
    corrected = f", corrected for all {len(lines)} comparisons (Holm)" if len(lines) > 1 else ""
    notes = [f"* = p < {ALPHA:g}{corrected}; {methods}."] if lines else []
    notes += [
        f"so: different is what has a *; same: the whole 95 % interval of the change lies within {100 * margin:g} % of "
        "A's mean (--margin); identical: alike in every seed; else nobody can tell: more seeds can, or a wider margin."
    ]
    if len({(line.a.n, line.b.n) for line in lines}) > 1 or any(line.a.n != line.b.n for line in lines):
        notes.append("A and B are means over the seeds that were tested.")
    if any(not line.whole for line in lines):
        notes.append("Nothing is the same where seeds of B are not valid, or have no number in A: they are in no mean.")
    if any(line.change.p is None for line in lines):
        notes.append("p is '-' where a side has one seed only: run both with --seeds 5.")
    notes += [unequal] if unequal else []
    return Table("results", ["point", "measure", "A", "B", "B against A", "p", "so"], rows, notes)


def _estimate(one: inference.Estimate) -> Cell:
    return Cell(short(one.mean) + (f"\n± {short(one.half)}" if one.half else ""), detail=f"n = {one.n}")


def _direction(line: Line) -> str:
    if not line.better:
        return ""
    return "good" if (line.change.mean < 0) == (line.better == "low") else "bad"
