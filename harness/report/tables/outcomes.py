"""The table of results: means over seeds with their intervals; best only where it is beyond doubt."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from lossbench.report import inference
from lossbench.report.gathered import Gathered
from lossbench.report.groups import RESENT, Group, Value, columns_of
from lossbench.report.inference import ALPHA
from lossbench.report.tables.digits import filled
from lossbench.report.tables.table import Cell, Table
from lossbench.report.tables.words import few_samples, why_void
from lossbench.results.index import Suite
from lossbench.results.machine import tcp_in_words
from lossbench.results.measures import FEW, short
from lossbench.results.naming import in_brackets, whose

MEDIAN, MEAN = "ms_step", "ms_step_mean"  # of a step of training
NO_CONTEST = (RESENT, "lost_percent")  # less of it is what less loss was asked for


def results(found: Gathered) -> Table | None:
    suite, groups, bootstrap = found.suite, found.groups, found.bootstrap
    names = columns_of(groups, words=True)
    if not names:
        return None
    best = {name: _best(groups, name) for name in names}
    several = any(group.planned > 1 for group in groups)
    rows, tidy = [], []
    for group in groups:
        row = [Cell(group.name), *([Cell(str(group.planned))] if several else [])]
        rows.append([*row, *(_cell(group, name, best=best[name] is group, bootstrap=bootstrap) for name in names)])
        tidy += [_tidy(suite, group, name, bootstrap=bootstrap) for name in group.values]
    measured = [any(name in group.values for group in groups) for name in names]
    rows = _with_common_decimals(rows, 2 if several else 1, measured)
    notes = [*_notes(groups, names, rows, bool(any(best.values()))), *_tcp(suite, names)]
    head = ["point", *(["n"] if several else []), *names]
    return Table(f"{suite.name}: results", head, rows, notes, tidy)


def _tcp(suite: Suite, names: list[str]) -> list[str]:
    """Whose retransmissions they are: of a user's own program nobody else says it."""
    if RESENT not in names or not any(run.summary.own_program for run in suite.runs):
        return []
    session = suite.plan.sessions[-1]
    said = [words for one in session.machines.values() or [session.machine] if (words := tcp_in_words(one))]
    return [f"TCP: {words}, unless the program asks for another." for words in dict.fromkeys(said)]


def _with_common_decimals(rows: list[list[Cell]], first: int, measured: list[bool]) -> list[list[Cell]]:
    """Of the columns of measures, from `first` on; words that look like numbers ("2.9", a version) stay."""
    columns = [
        filled([cell.text for cell in column]) if is_measured else [cell.text for cell in column]
        for column, is_measured in zip(zip(*(row[first:] for row in rows), strict=True), measured, strict=True)
    ]
    return [
        [*row[:first], *(replace(cell, text=texts[n]) for cell, texts in zip(row[first:], columns, strict=True))]
        for n, row in enumerate(rows)
    ]


def _cell(group: Group, name: str, *, best: bool, bootstrap: bool) -> Cell:
    if name in group.words and name not in group.values:
        return Cell("\n".join(dict.fromkeys(group.words[name])))
    sound, void = group.sound(name), group.void(name)
    if not sound:
        return _void_cell(void)
    found = inference.estimate(list(sound.values()), bootstrap=bootstrap)
    assert found is not None
    lines, detail = [short(found.mean)], f"n = {found.n}"
    if found.low is not None and found.high is not None and found.sd:
        ends = f"{short(found.low)} to {short(found.high)}"
        lines += [f"± {short(found.half or 0)}"] if found.method == "t" else ends.split(" ", 1)
        detail += f", standard deviation {short(found.sd)}, 95 % interval {ends} ({found.method})"
    if not group.complete(name):
        lines.append(f"({found.n} of {group.planned})")
        others = "; the others: " + ", ".join(dict.fromkeys(group.words.get(name, ["did not end"])))
        detail += f"; {len(void)} left out: {void[0].void}" if void else others
    return Cell("\n".join(lines), "best" if best else "", detail)


def _void_cell(void: list[Value]) -> Cell:
    """Shown, greyed, marked with a question mark where there is no colour; never averaged."""
    if not void:
        return Cell("-", "void")
    if void[0].void.startswith(FEW):
        return Cell("-", "void", f"not printed: {void[0].void}")
    numbers = sorted(v.number for v in void if not math.isnan(v.number))
    text = "nan?" if not numbers else f"{short(numbers[0])}?"
    if len(numbers) > 1 and numbers[-1] != numbers[0]:
        text += f"\nto {short(numbers[-1])}?"
    return Cell(text, "void", f"not averaged: {void[0].void}")


def _notes(groups: list[Group], names: list[str], rows: list[list[Cell]], bold: bool) -> list[str]:
    texts = [cell.text for row in rows for cell in row]
    out = ["± is half of a 95 % t-interval over n seeds."] if any("±" in text for text in texts) else []
    if any("\nto " in text and "?" not in text for text in texts):
        out.append("From ... to: a 95 % bootstrap interval (BCa).")
    if any(" of " in text and "\n(" in text for text in texts):
        out.append("(2 of 3): only so many of the planned seeds have a number that may be averaged.")
    if any("?\nto " in text for text in texts):
        out.append("a? to b?: the lowest and the highest of numbers that may not be believed.")
    every = [group.name for group in groups]
    for name in names:
        having = [group for group in groups if group.sound(name) and group.words.get(name)]
        said = dict.fromkeys(word for group in having for word in group.words[name])
        lines = in_brackets(whose([group.name for group in having], every))
        out += [f"{name}: of the other seeds: {', '.join(said)}{lines}."] if said else []
    if {MEDIAN, MEAN} <= set(names):
        mean = "the mean, the tail included: what sentences and ratios of times stand on"
        out.append(f"Of the times of a step one is the median ({MEDIAN}), one ({MEAN}) {mean}.")
    if bold:
        out.append(f"Bold: better than every other line, p < {ALPHA:g} after Holm's correction.")
    void, of_rows = (dict[str, list[str]]() for _ in range(2))  # with the lines they are about
    for group in groups:
        for text in (value.void for name in names for value in group.void(name)):
            void.setdefault(text, []).append(group.name)
        for note in group.notes:
            of_rows.setdefault(note, []).append(group.name)
    out += [*why_void(void, every), *few_samples(void, every)]
    return out + [f"{where}: {note}" if (where := whose(some, every)) else note for note, some in of_rows.items()]


def _tidy(suite: Suite, group: Group, name: str, *, bootstrap: bool) -> dict[str, Any]:
    sound = group.sound(name)
    found = inference.estimate(list(sound.values()), bootstrap=bootstrap)
    return {
        "suite": suite.name,
        "point": group.name,
        "measure": name,
        "n": len(sound),
        "mean": found.mean if found else None,
        "sd": found.sd if found else None,
        "low": found.low if found else None,
        "high": found.high if found else None,
        "method": found.method if found else "",
        "void": len(group.void(name)),
        "why_void": "; ".join(sorted({v.void for v in group.void(name)})),
        "folders": [str(v.run.folder) for v in group.values[name]],
    }


def _best(groups: list[Group], name: str) -> Group | None:
    """The line that is better than every other, beyond doubt; usually there is none. A line that could not be tested
    could be the better one."""
    having = [group for group in groups if name in group.values]
    better = having[0].measure(name).better if having else ""
    if name in NO_CONTEST or not better or len(having) < 2:
        return None
    if not all(group.planned > 1 and group.complete(name) for group in having):
        return None
    if not all(group.comparable(having[0], name) for group in having):
        return None

    def mean(group: Group) -> float:
        return float(np.mean(list(group.sound(name).values())))

    first = (min if better == "low" else max)(having, key=mean)
    others = [inference.paired(first.sound(name), group.sound(name)) for group in having if group is not first]
    tested = inference.corrected([one for one in others if one is not None])
    sure = len(tested) == len(others) and all(one.significant for one in tested)
    return first if sure else None
