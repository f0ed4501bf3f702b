"""What came out, in a sentence or two made from the data: said first, on the page and at the terminal.

A sentence compares a line of the table with the loss-free line that is otherwise equal (the same strategy, hosts, ...;
with the first loss-free one where there is none): how long it takes, and what that does to the result. It stands on
numbers that may be averaged, and says how sure they are."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from lossbench.report import inference
from lossbench.report.gathered import Gathered
from lossbench.report.groups import OUTCOMES, RESENT, TIMES, Group, asked_loss, baseline_of, main_measure
from lossbench.report.inference import Difference
from lossbench.report.service.said import sentences
from lossbench.report.tables.differences import MOST as MOST_TIMES
from lossbench.results.measures import RATIOS, short, told_apart
from lossbench.results.naming import key_of

ALIKE = 1.2  # ends of an interval that are nearer than this allow to call two times equal
PARTING = 1.5  # times the drift of the first quarter, in the second half
KEPT = 0.05  # of the loss-free value: a result is kept if its whole interval lies within it
MOST = 4  # sentences at a terminal, at first
NO_TIMES = "No times are reported"
SETTING = ("backend", "topology", "shaping", "workload", "beside")  # of an experiment: what is not its condition
LOSS_AND_WORDS = ("loss", "name", "why", "source", "seed")  # of a profile


class Ratio(NamedTuple):
    """Of two times; an interval from two seeds on."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def apart(self) -> bool:
        """Surely another time, and not by next to nothing."""
        return self.low is not None and self.high is not None and not (self.low <= ALIKE and self.high >= 1 / ALIKE)

    def in_words(self) -> str:
        if self.low is None or self.high is None:
            return f"takes {self.mean:.2f} x the time ({'one seed' if self.n == 1 else f'{self.n} seeds'})"
        ends = f"{self.low:.2f} to {self.high:.2f}, {self.n} seeds"
        if not self.low <= 1 <= self.high:
            return f"takes {self.mean:.2f} x the time ({ends})"
        if self.high / self.low <= ALIKE:
            return f"takes as long ({ends})"
        return f"takes {self.mean:.2f} x the time, or as long: {self.n} seeds can't tell ({ends})"


class Said(NamedTuple):
    """A sentence on a line of the table. `worth`: of the suite's subject, of what surely differs, of the others."""

    text: str
    worth: tuple[bool, bool]


def findings(found: Gathered) -> list[str]:
    """What a suite is about comes first, then, where there are many, what surely differs; else in the order of the
    table. Empty where there is nothing to compare."""
    if found.suite.verdict == "failed" or len(found.groups) < 2:
        return []
    if of_service := sentences(found):
        return of_service
    if any(group.row for group in found.groups):
        return _of_rows(found.groups)
    worst = max(asked_loss(group) for group in found.groups)
    pairs = [(base, group) for base, group in _pairs(found) if asked_loss(group) == worst or worst == 0]
    time, outcome = main_measure(found.groups, "timing", TIMES), main_measure(found.groups, "outcome", OUTCOMES)
    changes = _changes(pairs, outcome) if outcome else {}
    subject = _subject(found)
    every = [_sentence(base, group, time, outcome, changes.get(id(group)), subject) for base, group in pairs]
    said = [one for one in every if one.text]
    some = sorted(said, key=lambda one: [not worth for worth in one.worth[: 2 if len(said) > MOST else 1]])
    return [one.text for one in some] + (_not_timed(pairs, time) if found.suite.verdict == "valid" else [])


def brief(said: Sequence[str]) -> list[str]:
    """The first of them, and why no times are said; a line that says that one is missing is no shorter than it."""
    ends = [text for text in said if text.startswith(NO_TIMES)]
    known = [text for text in said if text not in ends]
    return [*(known if len(known) <= MOST + 1 else known[:MOST]), *ends]


def _subject(found: Gathered) -> set[str]:
    """The names of the lines that the suite is about."""
    words = {word for one in found.suite.plan.plan for word in one.experiment.get("subject") or ()}
    return {group.name for group in found.groups if words & set(re.split(r"[\s:]+", group.name))}


def _not_timed(pairs: Sequence[tuple[Group, Group]], time: str) -> list[str]:
    """Where a reader waits for how long it took: why that is not said."""
    if not time or any(base.sound(time) and group.sound(time) for base, group in pairs):
        return []
    why = sorted({value.void for pair in pairs for group in pair for value in group.void(time)})
    return [f"{NO_TIMES}: {why[0]}."] if why else []


def _sentence(
    base: Group, group: Group, time: str, outcome: str, change: Difference | None, subject: Collection[str]
) -> Said:
    parts = []
    ratio = _ratio(base, group, time) if time else None
    if ratio is not None:
        parts.append(ratio.in_words())
    if change is not None:
        parts.append(_outcome(group, outcome, change))
    if parted := _parted(group):
        parts.append(parted)
    resent = inference.estimate(list(group.sound(RESENT).values()))
    if resent is not None and resent.mean >= 0.05:
        parts.append(f"sends {short(resent.mean)} % of its TCP segments again")
    surely = bool(parted or (change is not None and change.significant) or (ratio is not None and ratio.apart()))
    text = f"Against {base.name}, {group.name} {_joined(parts)}." if parts else ""
    return Said(text, (group.name in subject, surely))


def _parted(group: Group) -> str:
    """Workers whose models drift further and further apart: a result may still look well."""
    first, last = (inference.estimate(list(group.sound(f"drift_{end}").values())) for end in ("first", "last"))
    if first is None or last is None or not last.mean > PARTING * first.mean:
        return ""
    return f"its workers drift apart ({short(first.mean)} at first, {short(last.mean)} later)"


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _outcome(group: Group, name: str, change: Difference) -> str:
    words, better = name.replace("_", " "), group.measure(name).better
    in_percent = change.relative is not None and abs(change.relative) <= MOST_TIMES
    by = f"{100 * (change.relative or 0):+.1f} %" if in_percent else f"{change.mean:+.3g}"
    if change.p is None:
        if not change.mean:
            return f"ends with the same {words} ({short(change.base)}, one seed: no test)"
        after, before = told_apart(change.base + change.mean, change.base)
        return f"ends with {words} {after} instead of {before} (one seed: no test)"
    if not change.significant:
        return _undecided(words, by, change)
    word = "better" if (change.mean < 0) == (better == "low") else "worse"
    return f"has a {word} {words} ({by}, p = {change.p_all or change.p:.2g}, {change.n} seeds)"


def _undecided(words: str, by: str, change: Difference) -> str:
    """No difference was found. It is kept only if its whole interval is small: few seeds find nothing in much."""
    if change.low == change.high == 0.0:
        return f"keeps its {words} ({short(change.base)} in all {change.n} seeds)"
    blind = change.low is None or change.high is None or change.unseen or not change.base
    ends = None if blind else (change.low or 0.0, change.high or 0.0)
    around = f" ± {50 * (ends[1] - ends[0]) / abs(change.base):.1f} %" if ends and ends[0] != ends[1] else ""
    if ends and max(map(abs, ends)) <= KEPT * abs(change.base):
        return f"keeps its {words} within {100 * KEPT:.0f} % ({by}{around}, {change.n} seeds)"
    return f"may keep its {words} or not: {change.n} seeds can't tell ({by}{around})"


def _of_rows(groups: Sequence[Group]) -> list[str]:
    """Contenders on the same ports, in turns: at the highest loss, against the first of them. Ratios stand even on a
    busy machine."""
    worst = max(asked_loss(group) for group in groups)
    here = [group for group in groups if asked_loss(group) == worst]
    first = [group for group in here if group.point == here[0].point]
    time = main_measure(first, "timing", TIMES)
    said = []
    for group in first[1:]:
        ratio = _ratio(first[0], group, time, in_turns=True) if time else None
        if ratio is not None:
            said.append(f"{group.row} {ratio.in_words()}")
    at = first[0].name.removesuffix(f": {first[0].row}")
    parts = [said[n : n + MOST] for n in range(0, len(said), MOST)]
    return [f"At {at}, against {first[0].row}: {'; '.join(part)}." for part in parts]


def _pairs(found: Gathered) -> list[tuple[Group, Group]]:
    """(what it is compared with, line)."""
    free = [group for group in found.groups if asked_loss(group) == 0]
    if found.baseline or len(free) in (0, len(found.groups)):
        base = baseline_of(found.groups, found.baseline)
        return [(base, group) for group in found.groups if group is not base]
    asked = {key_of(one.point): one.experiment for one in found.suite.plan.plan}
    return [(_alike(group, free, asked) or free[0], group) for group in found.groups if group is not free[0]]


def _alike(group: Group, free: Sequence[Group], asked: Mapping[str, dict[str, Any]]) -> Group | None:
    """The loss-free line that was asked for in the same words, but for the loss; or else but for the whole network
    condition."""
    wanted = asked.get(key_of(group.point), {})
    for but in (_but_for_loss, _but_for_condition):
        for one in free:
            if one is not group and but(asked.get(key_of(one.point), {})) == but(wanted):
                return one
    return None


def _but_for_condition(experiment: Mapping[str, Any]) -> dict[str, Any]:
    return {key: experiment.get(key) for key in SETTING}


def _but_for_loss(experiment: Mapping[str, Any]) -> dict[str, Any]:
    rules = [
        {**rule, "profile": {key: value for key, value in rule["profile"].items() if key not in LOSS_AND_WORDS}}
        for rule in experiment.get("impair", [])
        if isinstance(rule, Mapping) and isinstance(rule.get("profile"), Mapping)
    ]
    return {**_but_for_condition(experiment), "impair": rules}


def _changes(pairs: Sequence[tuple[Group, Group]], name: str) -> dict[int, Difference]:
    """Corrected for all of them together."""
    fits = [(base, group) for base, group in pairs if group.comparable(base, name)]
    found = [(id(group), inference.paired(base.sound(name), group.sound(name))) for base, group in fits]
    known = [(key, one) for key, one in found if one is not None]
    sure = inference.corrected([one for _, one in known])
    return {key: one for (key, _), one in zip(known, sure, strict=True)}


def _ratio(base: Group, group: Group, name: str, *, in_turns: bool = False) -> Ratio | None:
    """Geometric mean over common seeds."""
    a, b = (_times(one, name, in_turns=in_turns) for one in (base, group))
    logs = [math.log(b[seed] / a[seed]) for seed in a if seed in b and a[seed] > 0 and b[seed] > 0]
    found = inference.estimate(logs)
    if found is None:
        return None
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return Ratio(math.exp(found.mean), low, high, found.n)


def _times(group: Group, name: str, *, in_turns: bool) -> dict[int, float]:
    allowed = ("", RATIOS) if in_turns else ("",)
    return {v.run.summary.seed: v.number for v in group.values.get(name, []) if v.void in allowed}
