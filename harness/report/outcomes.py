"""The table of results: means over seeds with their intervals; best only where it is beyond doubt."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import measures
from harness.measures import short
from harness.report import inference
from harness.report.groups import Group, Value, shown_of
from harness.report.index import Suite
from harness.report.inference import ALPHA
from harness.report.tables import Cell, Table


def results(suite: Suite, groups: list[Group], *, bootstrap: bool = False) -> Table | None:
    names = shown_of(groups)
    if not names:
        return None
    best = {name: _best(groups, name) for name in names}
    rows, tidy, hidden = [], [], set()
    several = any(len(group.runs) > 1 for group in groups)
    for group in groups:
        row = [Cell(group.name)] + ([Cell(str(_most(group, names)))] if several else [])
        for name in names:
            row.append(_cell(group, name, best=best[name] is group, bootstrap=bootstrap))
            hidden |= {v.void for v in group.void(name) if v.void.startswith("fewer")}
        rows.append(row)
        tidy += [_tidy(suite, group, name, bootstrap=bootstrap) for name in group.values]
    head = ["point", *(["n"] if several else []), *names]
    return Table(f"{suite.name}: results", head, rows, _notes(groups, names, several, sorted(hidden), best), tidy)


def _most(group: Group, names: list[str]) -> int:
    return max((len(group.sound(name)) for name in names), default=0)


def _cell(group: Group, name: str, *, best: bool, bootstrap: bool) -> Cell:
    sound, void = group.sound(name), group.void(name)
    folders = tuple(str(v.run.folder) for v in group.values.get(name, []))
    if not sound:
        return _void_cell(void, folders)
    found = inference.estimate(list(sound.values()), bootstrap=bootstrap)
    assert found is not None
    text, detail = short(found.mean), f"n = {found.n}"
    if found.half is not None and found.sd is not None:
        text += f"\n± {short(found.half)}" if found.half else ""
        detail += f", standard deviation {short(found.sd)}, 95 % interval {short(found.low or 0)} to "
        detail += f"{short(found.high or 0)} ({found.method})"
    if void:
        detail += f"; {len(void)} left out: {void[0].void}"
    return Cell(text, "best" if best else "", detail, folders)


def _void_cell(void: list[Value], folders: tuple[str, ...]) -> Cell:
    """Shown, greyed, marked with a question mark where there is no colour; never averaged."""
    if not void:
        return Cell("-", "void")
    if void[0].void.startswith("fewer"):
        return Cell("-", "void", f"not printed: {void[0].void}", folders)
    text = f"{short(void[0].number)}?" if len(void) == 1 else f"{short(min(v.number for v in void))}?"
    if len(void) > 1:
        text += f"\nto {short(max(v.number for v in void))}?"
    return Cell(text, "void", f"not averaged: {void[0].void}", folders)


def _notes(groups: list[Group], names: list[str], several: bool, hidden: list[str], best: dict[str, Any]) -> list[str]:
    out = []
    if several:
        out.append("± is half of a 95 % t-interval over n seeds.")
    if any(best.values()):
        out.append(f"Bold: better than every other line, p < {ALPHA:g} after Holm's correction.")
    why = {v.void for group in groups for name in names for v in group.void(name)} - set(hidden)
    out += [f"?: not averaged: {text}." for text in sorted(why)]
    out += [f"-: a percentile is not printed with {text}." for text in hidden]
    return out + list(dict.fromkeys(note for group in groups for note in group.notes))


def _tidy(suite: Suite, group: Group, name: str, *, bootstrap: bool) -> dict[str, Any]:
    sound = group.sound(name)
    found = inference.estimate(list(sound.values()), bootstrap=bootstrap)
    return {
        "suite": suite.name, "point": group.name, "measure": name, "n": len(sound),
        "mean": found.mean if found else None, "sd": found.sd if found else None, "low": found.low if found else None,
        "high": found.high if found else None, "method": found.method if found else "",
        "void": len(group.void(name)), "why_void": "; ".join(sorted({v.void for v in group.void(name)})),
        "folders": [str(v.run.folder) for v in group.values[name]],
    }  # fmt: skip


def _best(groups: list[Group], name: str) -> Group | None:
    """The group that is better than every other, beyond doubt; usually there is none."""
    better = measures.of(name).better
    candidates = [group for group in groups if len(group.sound(name)) > 1]
    if not better or len(candidates) < 2:
        return None

    def mean(group: Group) -> float:
        return float(np.mean(list(group.sound(name).values())))

    first = (min if better == "low" else max)(candidates, key=mean)
    others = [inference.paired(first.sound(name), g.sound(name)) for g in candidates if g is not first]
    tested = inference.corrected([one for one in others if one is not None])
    sure = len(tested) == len(others) and all(one.significant for one in tested)
    return first if sure else None
