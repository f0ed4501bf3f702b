"""What may be said of two means: they differ, they are the same within a margin that was stated beforehand, or nobody
can tell. That no difference was found is no sameness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lossbench.report.inference import Difference

MARGIN_PERCENT = 10.0  # of A's mean, unless the user says otherwise
DIFFERENT, SAME, IDENTICAL, OPEN = "different", "same", "identical", "can't tell"
ALIKE = (SAME, IDENTICAL)
ALL_ALIKE = "moved by as much in every seed, of which only the number can tell: six at least (--seeds 6)"


def said(change: Difference, *, of: float, margin: float) -> str:
    """`margin` is a share of `of`, A's mean, in which the whole 95 % interval has to lie. A change that is alike in
    every seed, as counts have it, has an interval only where seeds are many."""
    room = margin * abs(of)
    if change.significant:
        return DIFFERENT
    if change.nothing:
        return IDENTICAL
    if change.low is None or change.high is None or change.unseen:
        return OPEN
    return SAME if -room <= change.low and change.high <= room else OPEN


def summed_up(words: Sequence[str], gone: int, *, margin: float, unequal: int = 0) -> str:
    """One sentence of a whole comparison; `gone`: numbers that count on one side only; `unequal`: of lines that train
    for more or fewer steps."""
    count, never = Counter(words), gone + unequal
    alike = sum(count[one] for one in ALIKE)
    parts = f"{count[DIFFERENT]} different, {alike} the same within {100 * margin:g} %, {count[OPEN] + never} open"
    of_them = [f"{gone} of them valid on one side only"] if gone else []
    of_them += [f"{unequal} of them of unequal steps"] if unequal else []
    return f"of {len(words) + never} numbers: {parts}" + (f" ({', '.join(of_them)})" if of_them else "")
