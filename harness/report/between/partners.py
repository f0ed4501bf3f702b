"""Which line of one result is held against which of another, and whose numbers can't be: valid on one side only,
without a partner, or of lines that train longer than their partner (`Group.comparable`, as within one table)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lossbench.report.between.tails import with_tails
from lossbench.report.groups import Group, groups_of, shown_of
from lossbench.results.index import Suite

PAIR_FROM = 2
SAID = 3  # lines of unequal steps that are named


def partners(left: list[Group], right: list[Group]) -> list[tuple[Group, Group | None]]:
    """Lines of the same name; a single line of another name is meant too."""
    named = {group.name: group for group in right}
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    return [(group, named.get(group.name)) for group in left]


def _sides(
    a: Suite, b: Suite, *, with_simulated: bool, measures: Collection[str] = ()
) -> tuple[list[Group], list[Group]]:
    """`measures`: names among which there may be tails."""
    how = {"with_simulated": with_simulated}
    left, right = (with_tails(groups_of(some, **how), measures, **how) for some in (a, b))
    return left, right


def both(
    a: Suite, b: Suite, *, with_simulated: bool = False, measures: Collection[str] = ()
) -> list[tuple[Group, Group]]:
    """Those that have a partner."""
    pairs = partners(*_sides(a, b, with_simulated=with_simulated, measures=measures))
    return [(one, other) for one, other in pairs if other is not None]


def tested(a: dict[int, float], b: dict[int, float]) -> tuple[dict[int, float], dict[int, float]]:
    """What the test and the means stand on: common seeds where there are enough of them, else all."""
    common = [seed for seed in a if seed in b]
    if len(common) < PAIR_FROM:
        return a, b
    return {seed: a[seed] for seed in common}, {seed: b[seed] for seed in common}


def unknown(a: Group, b: Group | None, name: str) -> str:
    """It counts on one side only, or not in every seed that B was to have, or not all of those were compared: who is
    not in the mean might be the worst; or one side trained for longer. Empty if none of it."""
    if b is None or not (a.sound(name) and b.complete(name)):
        return f"{name} is not valid on both sides, in every seed of B"
    if not a.comparable(b, name):
        return f"{name} is not compared: {_lengths(a, b)}"
    alone = b.planned - len(tested(a.sound(name), b.sound(name))[1])
    return f"{name}: {alone} of B's {b.planned} seeds have no valid number in A; run A with them" if alone else ""


def _lengths(a: Group, b: Group) -> str:
    return f"A trains for {a.lasts or 'an unknown time'}, B for {b.lasts or 'an unknown time'}"


def unknown_lines(
    a: Suite, b: Suite, *, with_simulated: bool = False, measures: Collection[str] = ()
) -> list[tuple[str, str, str]]:
    """Point and measure of what A has a number of, of whose change nothing is known; and why."""
    pairs = partners(*_sides(a, b, with_simulated=with_simulated, measures=measures))
    known = [(one.name, name, unknown(one, other, name)) for one, other in pairs for name in one.values]
    return [(point, name, why) for point, name, why in known if why]


def unequal(a: Suite, b: Suite, *, with_simulated: bool = False) -> list[tuple[str, str]]:
    """Of numbers that tables show and that count on both sides: of which line, and how long each side trains, where
    that is not alike."""
    pairs = both(a, b, with_simulated=with_simulated)
    return [
        (one.name, _lengths(one, other))
        for one, other in pairs
        for name in shown_of([one, other])
        if one.sound(name) and other.sound(name) and not one.comparable(other, name)
    ]


def unequal_note(found: Sequence[tuple[str, str]]) -> str:
    """In a sentence; empty where there is none."""
    lines = [f"{line}: {lengths}" for line, lengths in dict.fromkeys(found)]
    more = f"; {len(lines) - SAID} more lines" if len(lines) > SAID else ""
    said = "; ".join(lines[:SAID]) + more
    return f"Of lines that train for more or fewer steps only times are compared ({said})." if lines else ""


def on_one_side(a: Suite, b: Suite, *, with_simulated: bool = False) -> int:
    """How many numbers that tables show are on one side only, or not valid on the other."""
    left, right = _sides(a, b, with_simulated=with_simulated)
    pairs: list[tuple[Group | None, Group | None]] = [*partners(left, right)]
    known = [other for _, other in pairs]
    pairs += [(None, group) for group in right if group not in known]
    some = [[one for one in pair if one is not None] for pair in pairs]
    return sum(
        not all(name in one.values and one.sound(name) for one in pair) or len(pair) < 2
        for pair in some
        for name in shown_of(pair)
    )


def nothing_in_common(a: Suite, b: Suite) -> str:
    """Why there is no table of results, and what to do."""
    left, right = ([group.name for group in groups_of(one, with_simulated=True)] for one in (a, b))
    if note := unequal_note(unequal(a, b, with_simulated=True)):
        return f"results: none that may be compared. {note}"
    if set(left) & set(right) or len(left) == len(right) == 1:
        step = "lossbench report says why something is not valid"
        return f"results: no line in common that is valid on both sides; {step}"
    names = [f"{side}: {', '.join(some) or 'none that ended'}" for side, some in (("A", left), ("B", right))]
    return f"results: no line in common ({'; '.join(names)}); compare two results of the same points"
