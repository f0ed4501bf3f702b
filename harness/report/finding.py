"""What came out, in a sentence or two made from the data: said first, on the page and at the terminal.

A sentence compares a line of the table with the loss-free line that is otherwise equal (the same strategy, hosts, ...;
with the first loss-free one where there is none): how long it takes, and what that does to the result. It stands on
numbers that may be averaged, and says how sure they are. Where it has no time to say, a line says why."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from lossbench.report import inference, within
from lossbench.report.gathered import Gathered
from lossbench.report.groups import OUTCOMES, RESENT, TIMES, Group, asked_loss, baseline_of, main_measure
from lossbench.report.inference import Difference, Estimate
from lossbench.report.service.said import sentences
from lossbench.report.tables.differences import MOST as MOST_TIMES
from lossbench.results.measures import FEW, RATIOS, short, told_apart
from lossbench.results.naming import key_of, whose

ALIKE = 1.2  # ends of an interval that are nearer than this allow to call two times equal
PARTING = 1.5  # times the drift of the first quarter, in the second half
KEPT = 0.05  # of the loss-free value: a result is kept if its whole interval lies within it
MOST = 4  # sentences at a terminal, at first
TWICE = 2.0  # or half: what one seed may say of a time, if all of its interval lies beyond
UNTOLD = "compared with nothing: "
ONE_SEED = "one seed can't tell (--seeds 3)"
STEPS = {"ms_step_mean": "step_ms"}  # samples of which a run's number is the mean
SETTING = ("backend", "topology", "shaping", "workload", "beside")  # of an experiment: what is not its condition
LOSS_AND_WORDS = ("loss", "name", "why", "source", "seed")  # of a profile


class Ratio(NamedTuple):
    """Of two times. Of one seed the interval is by what a run measured: it does not know how far others lie apart."""

    mean: float
    low: float | None
    high: float | None
    n: int
    by: str = ""  # of one seed: steps, or turns

    def told(self) -> bool:
        """Of one seed only what is far apart: runs on a busy machine differ by a quarter with nothing else changed."""
        if self.n > 1:
            return True
        return self.low is not None and self.high is not None and not (self.low < TWICE and self.high > 1 / TWICE)

    def sure(self) -> bool:
        """Surely another time, and not by next to nothing."""
        if self.low is None or self.high is None or not self.told():
            return False
        return not (self.low <= ALIKE and self.high >= 1 / ALIKE)

    def in_words(self) -> str:
        if self.low is None or self.high is None:
            return f"takes {self.mean:.2f} x the time ({self.n} seeds)"
        of = f"by its {self.by}, one seed" if self.n == 1 else f"{self.n} seeds"
        ends = f"{self.low:.2f} to {self.high:.2f}{' ' if self.by else ', '}{of}"
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
        return _of_rows(found)
    worst = max(asked_loss(group) for group in found.groups)
    pairs = [(base, group) for base, group in _pairs(found) if asked_loss(group) == worst or worst == 0]
    time, outcome = main_measure(found.groups, "timing", TIMES), main_measure(found.groups, "outcome", OUTCOMES)
    changes = _changes(pairs, outcome) if outcome else {}
    subject = _subject(found)
    ratios = {id(group): _ratio(found, base, group, time) for base, group in pairs} if time else {}
    every = [_sentence(base, group, ratios.get(id(group)), outcome, changes, subject) for base, group in pairs]
    said = [one for one in every if one.text]
    some = sorted(said, key=lambda one: [not worth for worth in one.worth[: 2 if len(said) > MOST else 1]])
    return [one.text for one in some] + (_not_timed(pairs, ratios, time) if found.suite.verdict == "valid" else [])


def brief(said: Sequence[str]) -> list[str]:
    """The first of them, and why no times are said: a line about one that is missing is no shorter than it."""
    known, ends = untimed_apart(said)
    return [*(known if len(known) <= MOST + 1 else known[:MOST]), *ends]


def untimed_apart(said: Sequence[str]) -> tuple[list[str], list[str]]:
    """(what came out, of which lines no time is said): the second is folded away nowhere."""
    ends = [text for text in said if text.startswith("Times ") and UNTOLD in text]
    return [text for text in said if text not in ends], ends


def _subject(found: Gathered) -> set[str]:
    """The names of the lines that the suite is about."""
    words = {word for one in found.suite.plan.plan for word in one.experiment.get("subject") or ()}
    return {group.name for group in found.groups if words & set(re.split(r"[\s:]+", group.name))}


def _not_timed(pairs: Sequence[tuple[Group, Group]], ratios: Mapping[int, Ratio | None], time: str) -> list[str]:
    """Where a reader waits for how long it took: of which lines that is not said, and why."""
    why: dict[str, list[str]] = {}
    for base, group in pairs if time else ():
        ratio = ratios[id(group)]
        if ratio is not None and ratio.told():
            continue
        void = sorted(value.void for one in (group, base) for value in one.void(time))
        if ratio is not None or void:
            why.setdefault(ONE_SEED if ratio is not None else max(void, key=void.count), []).append(group.name)
    return _of_whom(why, [group.name for _, group in pairs])


def _of_whom(why: Mapping[str, Sequence[str]], every: Sequence[str]) -> list[str]:
    out = []
    for text, some in why.items():
        marked = "" if text.startswith((ONE_SEED, FEW)) else "marked ? and "  # few: left out of the table
        names = f" of {named}" if len(some) < len(every) and (named := whose(some, every)) else ""
        out.append(f"Times{names} are {marked}{UNTOLD}{text}.")
    return out


def _sentence(
    base: Group,
    group: Group,
    ratio: Ratio | None,
    outcome: str,
    changes: Mapping[int, Difference],
    subject: Collection[str],
) -> Said:
    parts, change = [], changes.get(id(group))
    if ratio is not None and ratio.told():
        parts.append(ratio.in_words())
    if change is not None:
        parts.append(_outcome(group, outcome, change))
    if parted := _parted(group):
        parts.append(parted)
    resent = inference.estimate(list(group.sound(RESENT).values()))
    if resent is not None and resent.mean >= 0.05:
        parts.append(_resent(resent))
    surely = bool(parted or (change is not None and change.significant) or (ratio is not None and ratio.sure()))
    text = f"Against {base.name}, {group.name} {_joined(parts)}." if parts else ""
    return Said(text, (group.name in subject, surely))


def _resent(share: Estimate) -> str:
    seeds = "one seed" if share.half is None else f"± {short(share.half)}, {share.n} seeds"
    return f"sends {short(share.mean)} % of its TCP segments again ({seeds})"


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


def _of_rows(found: Gathered) -> list[str]:
    """Contenders on the same ports, in turns: at the highest loss, against the first. Ratios stand even when busy."""
    worst = max(asked_loss(group) for group in found.groups)
    here = [group for group in found.groups if asked_loss(group) == worst]
    first = [group for group in here if group.point == here[0].point]
    time = main_measure(first, "timing", TIMES)
    ratios = {one.row: _ratio(found, first[0], one, time, in_turns=True) for one in first[1:]} if time else {}
    known = {row: ratio for row, ratio in ratios.items() if ratio is not None}
    said = [f"{row} {ratio.in_words()}" for row, ratio in known.items() if ratio.told()]
    at = first[0].name.removesuffix(f": {first[0].row}")
    parts = [said[n : n + MOST] for n in range(0, len(said), MOST)]
    text = [f"At {at}, against {first[0].row}: {'; '.join(part)}." for part in parts]
    untold = [row for row, ratio in known.items() if not ratio.told()]
    return text + (_of_whom({ONE_SEED: untold}, list(known)) if untold else [])


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


def _ratio(found: Gathered, base: Group, group: Group, name: str, *, in_turns: bool = False) -> Ratio | None:
    """Geometric mean over common seeds."""
    a, b = (_times(one, name, in_turns=in_turns) for one in (base, group))
    logs = [math.log(b[seed] / a[seed]) for seed in a if seed in b and a[seed] > 0 and b[seed] > 0]
    known = inference.estimate(logs)
    if known is None:
        return None
    if known.n == 1:
        return _of_one_seed(math.exp(known.mean), _inside(found, base, group, name, in_turns=in_turns), in_turns)
    low, high = (None if end is None else math.exp(end) for end in (known.low, known.high))
    return Ratio(math.exp(known.mean), low, high, known.n)


def _of_one_seed(ratio: float, inside: Estimate | None, in_turns: bool) -> Ratio:
    """Around the ratio that the table's numbers have."""
    if inside is None or inside.low is None or inside.high is None:
        return Ratio(ratio, None, None, 1)
    low, high = (ratio * end / inside.mean for end in (inside.low, inside.high))
    return Ratio(ratio, low, high, 1, "turns" if in_turns else "steps")


def _inside(found: Gathered, base: Group, group: Group, name: str, *, in_turns: bool) -> Estimate | None:
    """Of the only run on each side, by its samples."""
    whats = [f"{one.row}_ms" if in_turns else STEPS.get(name) for one in (base, group)]
    parts = [
        part
        for one, what in zip((base, group), whats, strict=True)
        for some in found.sets
        if (some.what, key_of(some.swept)) == (what, key_of(one.point)) and len(some.parts) == 1
        for part in some.parts
    ]
    if len(parts) != 2:
        return None
    return (within.ratio_in_turns if in_turns else within.ratio_of_means)(parts[1], parts[0])


def _times(group: Group, name: str, *, in_turns: bool) -> dict[int, float]:
    allowed = ("", RATIOS) if in_turns else ("",)
    return {v.run.summary.seed: v.number for v in group.values.get(name, []) if v.void in allowed}
