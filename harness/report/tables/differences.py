"""Lines of a table against one of them, paired over common seeds."""

from __future__ import annotations

from lossbench.report import inference
from lossbench.report.gathered import Gathered
from lossbench.report.groups import baseline_of, columns_of
from lossbench.report.inference import ALPHA, Difference
from lossbench.report.tables.table import Cell, Table
from lossbench.results.measures import short

MOST = 10.0  # times the baseline, in percent


def differences(gathered: Gathered) -> Table | None:
    """Paired over common seeds against one line; None where nothing can be paired."""
    suite, groups = gathered.suite, gathered.groups
    if len(groups) < 2:
        return None
    base, names = baseline_of(groups, gathered.baseline), columns_of(groups)
    found: dict[tuple[str, str], Difference] = {}
    for group in groups:
        for name in names:
            fits = group is not base and group.comparable(base, name)
            one = inference.paired(base.sound(name), group.sound(name)) if fits else None
            if one is not None and one.n > 1:
                found[group.name, name] = one
    if not found:
        return None
    sure = dict(zip(found, inference.corrected(list(found.values())), strict=True))
    rows = []
    of_another = {id(g) for g in groups if not any(name in base.values and name in g.values for name in names)}
    for group in (one for one in groups if one is not base and id(one) not in of_another):
        pairs = min(base.planned, group.planned)
        cells = (difference_cell(sure.get((group.name, name)), pairs) for name in names)
        rows.append([Cell(group.name), Cell(str(pairs)), *cells])
    by_name = {group.name: group for group in groups}
    tidy = [
        {
            "suite": suite.name,
            "point": point,
            "measure": f"{name} minus {base.name}",
            "n": one.n,
            "mean": one.mean,
            "low": one.low,
            "high": one.high,
            "method": one.method,
            "relative": one.relative,
            "p": one.p,
            "p_corrected": one.p_all,
            "folders": [str(run.folder) for g in (base, by_name[point]) for run in g.runs],
        }
        for (point, name), one in sure.items()
    ]
    tests = sum(not one.nothing for one in sure.values())
    harder = f" after Holm's correction for all {tests} differences here: harder to earn" if tests > 1 else ""
    notes = [f"Paired over common seeds. ± is a 95 % interval of this one difference; * = p < {ALPHA:g}{harder}."]
    if any(" of " in cell.text for row in rows for cell in row[2:]):
        notes.append("(2 of 3): only so many of the planned seeds have a number of both lines that may be compared.")
    if any(group.lasts != base.lasts for group in groups):
        notes.append(f"-: of lines that train for more or fewer steps than '{base.name}' only times are compared.")
    return Table(f"{suite.name}: change against '{base.name}'", ["point", "n", *names], rows, notes, tidy)


def difference_cell(one: Difference | None, pairs: int = 0) -> Cell:
    """`pairs`: how many were planned; said where there are fewer."""
    if one is None:
        return Cell("-", "void")
    # Of next to nothing everything is a million percent: then the difference itself.
    factor, unit = (100 / abs(one.base), "%") if one.base and abs(one.mean) <= MOST * abs(one.base) else (1.0, "")
    half = 0.0 if one.low is None or one.high is None else factor * (one.high - one.low) / 2
    shown = f"{half:.2f}" if unit and half < 10 else short(half)
    p = "-" if one.p_all is None else f"{one.p_all:.2g}"
    detail = f"n = {one.n}, difference {one.mean:.4g}, corrected p = {p} ({one.method})"
    text = _signed(factor * one.mean, percent=bool(unit)) + unit + ("*" if one.significant else "")
    text += f"\n± {shown}{unit}" if float(shown) else ""
    text += f"\n({one.n} of {pairs})" if one.n < pairs else ""
    return Cell(text, "void" if one.nothing else "", detail)


def _signed(value: float, *, percent: bool) -> str:
    if percent and abs(value) < 10:
        return f"{value:+.2f}" if round(value, 2) else "0"
    return f"{value:+.3g}" if value else "0"
