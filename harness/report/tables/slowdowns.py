"""How much longer messages take than alone, by their size: short ones suffer most from whoever stands before them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lossbench.report import inference
from lossbench.report.gathered import Gathered
from lossbench.report.groups import shown_in
from lossbench.report.tables.table import Cell, Table
from lossbench.report.tables.words import out_of, why_void
from lossbench.results.index import Run
from lossbench.results.measures import FEW, needed, number, short
from lossbench.results.naming import key_of

BY_DECILE, OF_ALL = "slowdown_by_decile", "slowdown_p99"
TAIL = 0.99


@dataclass
class Line:
    """One point (and one row of it) over all seeds: by the largest size of each decile, (number, why it is void)."""

    name: str
    planned: int
    runs: list[tuple[int, str]] = field(default_factory=list)  # (messages, why it is void)
    found: dict[int, list[tuple[float, str]]] = field(default_factory=dict)

    def messages(self) -> list[int]:
        """Of the runs that the mean is of; where none may be believed, of those that are shown."""
        return [count for count, why in self.runs if not why] or [count for count, _ in self.runs]


def slowdowns(found: Gathered) -> Table | None:
    """One line for each point's row that knows sizes; columns are the largest size of each decile."""
    lines = _lines(found)
    sizes = sorted({size for line in lines for size in line.found})
    if not sizes:
        return None
    rows = [
        [
            Cell(line.name),
            Cell(str(sum(line.messages()))),
            Cell(out_of(len(line.messages()), line.planned)),
            *(_cell(line.found.get(size, []), line.planned) for size in sizes),
        ]
        for line in lines
    ]
    head = ["p99 of completion / alone", "n", "seeds", *(f"to {_bytes(size)}" for size in sizes)]
    notes = [
        "n: completed messages of these seeds, of all sizes.",
        "Columns: deciles of the sizes that were asked for, by their largest; a decile of one seed needs "
        f"{needed(TAIL)} independent messages.",
    ]
    factors = {number(row.get(f"{key.removesuffix(BY_DECILE)}factor")) for row, key in _deciles(found)} - {None, 1.0}
    if factors:
        by = ", ".join(f"{one:g}" for one in sorted(one for one in factors if one is not None))
        notes.append(f"Rates are 1/{by} of what is modelled; a slowdown is a ratio, and stays.")
    if any("±" in cell.text for row in rows for cell in row[3:]):
        notes.append("± is half of a 95 % t-interval over seeds.")
    void: dict[str, list[str]] = {}
    for line in lines:
        for why in (why for some in line.found.values() for _, why in some):
            void.setdefault(why, []).append(line.name)
    notes += why_void(void, [line.name for line in lines])
    return Table(f"{found.suite.name}: slowdown by size", head, rows, notes)


def _lines(found: Gathered) -> list[Line]:
    planned = Counter(key_of(one.point) for one in found.suite.plan.plan)
    out: dict[tuple[str, int], Line] = {}
    for run in found.suite.runs:
        here = _of_run(run)
        for count, (row, key) in enumerate(here):
            point = key_of(run.summary.point)
            name = f"{run.name}: {row.get(shown_in(row)[0], '')}" if len(here) > 1 else run.name
            line = out.setdefault((point, count), Line(name, planned[point]))
            _add(line, run, row, key)
    return [line for line in out.values() if line.found]


def _of_run(run: Run) -> list[tuple[dict[str, Any], str]]:
    """Its rows that know sizes, and the name they have for them."""
    return [(row, key) for row in run.summary.rows for key in row if key.rpartition(".")[2] == BY_DECILE]


def _deciles(found: Gathered) -> list[tuple[dict[str, Any], str]]:
    return [one for run in found.suite.runs for one in _of_run(run)]


def _add(line: Line, run: Run, row: dict[str, Any], key: str) -> None:
    """What stands on too few is not taken: of rows of before nobody knows how many a decile had, but on average."""
    role = key.removesuffix(BY_DECILE)
    why = run.standing.void(f"{role}{OF_ALL}", row, one_seed=line.planned == 1)
    messages = number(row.get(f"{role}n")) or 0.0
    if why.startswith(FEW) or messages / max(1, len(row[key])) < needed(TAIL):
        return
    line.runs.append((round(messages), why))
    for size, slow, *independent in row[key]:
        if line.planned == 1 and independent and independent[0] < needed(TAIL):
            continue  # of several seeds, how far they lie apart says how sure it is
        line.found.setdefault(int(size), []).append((float(slow), why))


def _cell(found: list[tuple[float, str]], planned: int) -> Cell:
    sound = inference.estimate([slow for slow, why in found if not why])
    if sound is None:
        if not found:
            return Cell("-", "void")
        ends = dict.fromkeys((min(found)[0], max(found)[0]))
        return Cell("\nto ".join(f"{short(end)}?" for end in ends), "void")
    text = short(sound.mean)
    if sound.low is not None and sound.high is not None and sound.sd:
        text += f"\n± {short((sound.high - sound.low) / 2)}"
    return Cell(text + (f"\n({sound.n} of {planned})" if sound.n < planned else ""), "", f"n = {sound.n}")


def _bytes(size: int) -> str:
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB" if size >= 1000 else f"{size} B"
