"""A web service beside learning: completions, what learning lost, took and learned; and what a message costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lossbench.report import inference
from lossbench.report.gathered import Gathered
from lossbench.report.inference import Estimate
from lossbench.report.service import claims
from lossbench.report.service.arms import (
    AT_LOSS,
    WEB,
    Arm,
    arm_name,
    arms_of,
    loads,
    partner,
    ratio,
    speed_up_at,
    taken_back,
)
from lossbench.report.service.claims import tail_against_alone, times
from lossbench.report.service.cost import Cost, costs
from lossbench.report.tables.table import Cell, Table
from lossbench.report.tables.words import out_of, why_void
from lossbench.results.measures import short

TIMES = ("mean_ms", "p50_ms", "p99_ms", "p99.9_ms")
WEB_NUMBERS = (*TIMES, "slowdown_p99", "goodput_mbit")
AGAINST_ALONE = "p99 / alone"
LEARNED = {"step ms": ("ms_step",), "mean step ms": ("ms_step_mean",), "accuracy": ("accuracy",)}
PAPER = {10000: 1.21, 5000: 1.19, 2000: 1.17}  # Yu et al. 2019, figure 6, read off at 10 % of learning loss


def colocation(found: Gathered) -> Table | None:
    arms = arms_of(found.groups)
    if not arms:
        return None
    learned = {
        name: next((key for key in keys for arm in arms if key in arm.learning), "") for name, keys in LEARNED.items()
    }
    extra = [name for name, key in learned.items() if key]
    back = ["taken_back", AGAINST_ALONE] if any(arm.alone for arm in arms) else []
    head = ["arm", "n", "independent", *TIMES, "slowdown p99", "goodput Mbit/s", "learning loss"]
    head += ["speed-up mean", "speed-up p99", *back, *extra]
    rows, tidy = [], []
    seeds = max(group.planned for group in found.groups)
    believed_or_not = arms_of(found.groups, believed=False)
    for arm, doubtful in zip(arms, believed_or_not, strict=True):
        shared, alone = partner(arm, arms), partner(arm, arms, alone=True)
        numbers = {
            **{name: inference.estimate(list(arm.web.get(name, {}).values())) for name in WEB_NUMBERS},
            "learning_loss": inference.estimate(list(arm.loss.values())),
            **{f"speed_up_{name}": _against(shared, arm, f"{name}_ms") for name in ("mean", "p99")},
            **dict(zip(back, (taken_back(arm, shared, alone), tail_against_alone(arm, arms)), strict=False)),
            **{name: inference.estimate(list(arm.learning.get(learned[name], {}).values())) for name in extra},
        }
        count, independent = (sum(arm.web.get(name, {}).values()) for name in ("n", "n_independent"))
        unsure = doubtful.web | {"learning_loss": doubtful.loss}
        unsure |= {name: doubtful.learning.get(learned[name], {}) for name in extra}
        cells = [_cell(number, seeds, unsure.get(name, {})) for name, number in numbers.items()]
        known = [Cell(f"{count:.0f}"), Cell(f"{independent:.0f}" if independent else "-")]
        rows.append([Cell(arm.name), *known, *cells])
        tidy += [
            _tidy(found, arm.name, name, number, arm.folders) for name, number in numbers.items() if number is not None
        ]
    head, rows = _said(head, rows)
    notes = [*_notes(arms, head, seeds), *claims.served(arms), *_left_out(found, head), *_not_believed(found, rows)]
    if any(" of " in cell.text for row in rows for cell in row[2:]):
        notes.append("(2 of 3): of the planned seeds, those that have a number that may be averaged.")
    return Table(f"{found.suite.name}: service and learning", head, rows, notes, tidy)


def _said(head: list[str], rows: list[list[Cell]]) -> tuple[list[str], list[list[Cell]]]:
    """Without columns in which no arm has anything: 80 characters are few."""
    keep = [n for n in range(len(head)) if n < 2 or any(row[n].text != "-" for row in rows)]
    return [head[n] for n in keep], [[row[n] for n in keep] for row in rows]


def cost(found: Gathered) -> Table | None:
    """Figure 7 of the RPS paper: what each degree of priority carries."""
    lines = costs(arms_of(found.groups))
    if not lines:
        return None
    seeds = max(group.planned for group in found.groups)
    rows, tidy = [], []
    for one, doubtful in zip(lines, costs(arms_of(found.groups, believed=False)), strict=True):
        numbers = _in_columns(one)
        cells = [
            _cell(number, seeds, {} if other is None else dict.fromkeys(range(other.n), other.mean))
            for number, other in zip(numbers.values(), _in_columns(doubtful).values(), strict=True)
        ]
        if one.rate is None and doubtful.rate is None:
            unsure = one.beyond == "-" and doubtful.beyond != "-"
            cells[0] = Cell(doubtful.beyond + "?" if unsure else one.beyond, "void")
        n = max((number.n for number in numbers.values() if number is not None), default=0)
        rows.append([Cell(_target(one)), Cell(out_of(n, seeds)), *cells, Cell(one.between or doubtful.between or "-")])
        tidy += [
            _tidy(found, _target(one), name, number, one.folders)
            for name, number in numbers.items()
            if number is not None
        ]
    notes = [
        *_not_believed(found, rows),
        *_by_factor({one.factor for one in lines}),
        "carried: the most requests a second, at the modelled speed, whose mean completion is within the target:"
        " interpolated, by the logarithm of the mean, between two rates that were tried (above, below: than all of"
        " them; a to b: a rate between these is void).",
        "n: seeds that have a number.",
        "cost: what one queue for all carries by what is carried here, seed by seed; learning loss: at that rate (-: it"
        " never paused near there, and what is under way is not lost yet).",
    ]
    head = ["mean completion", "n", "carried", "learning loss", "cost", "between"]
    return Table(f"{found.suite.name}: what a message costs", head, rows, notes, tidy)


def _in_columns(one: Cost) -> dict[str, Estimate | None]:
    return {"carried": one.rate, "learning_loss": one.loss, "cost": one.cost}


def _target(one: Cost) -> str:
    return f"{one.target_ms:g} ms, {f'{one.apart}, ' if one.apart else ''}priority {one.priority:g}"


def _against(shared: Arm | None, arm: Arm, name: str) -> Estimate | None:
    return ratio(shared.web.get(name, {}), arm.web.get(name, {})) if shared is not None and not arm.alone else None


def _cell(number: Estimate | None, seeds: int, doubtful: Mapping[int, float]) -> Cell:
    """`doubtful`: by seed, for where nothing may be averaged; shown as everywhere, with a question mark."""
    if number is None:
        ends = (
            [f"{short(end)}?" for end in dict.fromkeys((min(doubtful.values()), max(doubtful.values())))]
            if doubtful
            else []
        )
        return Cell("\nto ".join(ends) or "-", "void")
    text = short(number.mean)
    if number.low is not None and number.high is not None and number.sd:
        text += f"\n± {short((number.high - number.low) / 2)}"
    if number.n < seeds:
        text += f"\n({number.n} of {seeds})"
    return Cell(text, "", f"n = {number.n}")


def _not_believed(found: Gathered, rows: list[list[Cell]]) -> list[str]:
    """Why numbers have a question mark, and in which lines, where they are called as groups are."""
    marked = [row[0].text for row in rows if any("?" in cell.text for cell in row[1:])]
    lines: dict[str, list[str]] = {}
    for group in found.groups if marked else ():
        name = arm_name(group)
        here = [line for line in marked if line == name or line.startswith(f"{name} at ")]
        for void in {value.void for name in group.values for value in group.void(name)}:
            lines.setdefault(void, []).extend(here)
    return why_void(lines, [row[0].text for row in rows])


def _tidy(found: Gathered, point: str, name: str, number: Estimate, folders: Sequence[str]) -> dict[str, object]:
    return {
        "suite": found.suite.name,
        "point": point,
        "measure": name,
        "n": number.n,
        "mean": number.mean,
        "low": number.low,
        "high": number.high,
        "method": number.method,
        "folders": list(folders),
    }


def _by_factor(factors: set[float]) -> list[str]:
    if factors in (set(), {1.0}):
        return []
    by = ", ".join(f"{one:g}" for one in sorted(factors))
    return [f"Rates are 1/{by} of what is modelled: times are as many times longer, shares and ratios are not."]


def _left_out(found: Gathered, head: list[str]) -> list[str]:
    """Why no arm has one of the times that readers look for."""
    out = []
    for name in (one for one in TIMES if one not in head):
        void = {value.void for group in found.groups for value in group.void(f"{WEB}{name}")}
        why = next(
            iter(sorted(filter(None, void))), "too few independent messages, or too many that were never answered"
        )
        out.append(f"No column {name}: {why}.")
    return out


def _notes(arms: list[Arm], head: list[str], seeds: int) -> list[str]:
    """Of what the table has."""
    out = ["n: completed requests of all seeds."]
    if "independent" in head:
        out[0] = "n: completed requests of all seeds; independent: what intervals within a seed stand on, of them."
    if "speed-up mean" in head:
        out[0] = f"speed-up: against one queue for all at the same load, seed by seed; {out[0]}"
    out += _by_factor({arm.factor for arm in arms if arm.factor == arm.factor})
    for load, name in loads(arms).items():
        at = speed_up_at(arms, load)
        if at is not None:
            rate = next(arm.equivalent for arm in arms if arm.load == load)
            paper = f", the paper's simulation {PAPER[int(rate)]}" if rate in PAPER else ""
            out.append(f"At {AT_LOSS:.0%} of learning loss and {name}: {times(at, seeds)} x as fast{paper}.")
    if "taken_back" in head:
        out.append(
            "taken_back: of the time that one queue for all costs the service, as against being alone, by the means of"
            " all seeds (Fieller); without ±: what it costs can't be told from nothing."
        )
    return out
