"""Names at the ends of their lines: folded to what fits beside a panel on a phone, moved until none touches another."""

from __future__ import annotations

import re
from collections.abc import Sequence

WHOLE = 14  # letters of a name that is not folded
FOLDED, MOST_FOLDS = 17, 3  # letters of a line of one that is, and its lines
LINE = 0.075  # of names, of a panel's height


def folded(name: str) -> str:
    """In the fewest lines that fit, and these as short as can be; empty if it fits in none."""
    if len(name) <= WHOLE:
        return name
    seams = re.findall(r"[^ _]+[ _]?|[ _]", name)
    found = [lines for width in range(1, FOLDED + 1) if (lines := _filled(seams, width))]
    fewest = min(map(len, found), default=MOST_FOLDS + 1)
    return "\n".join(next(lines for lines in found if len(lines) == fewest)) if fewest <= MOST_FOLDS else ""


def _filled(seams: Sequence[str], width: int) -> list[str]:
    """Lines of this width; none if a part is wider."""
    lines = [""]
    for part in seams:
        if len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    out = [line.strip(" ") for line in lines if line.strip(" ")]
    return out if max(map(len, out), default=width + 1) <= width else []


def placed(ends: Sequence[tuple[float, str]]) -> list[tuple[float, int, str]]:
    """Of lines that end at these shares of a panel's height: where a name stands, whose, and how it is written. As many
    as there is room for one above the other, the shortest first; the others are in the legend."""
    texts = [folded(name) for _, name in ends]
    high = [LINE * (text.count("\n") + 1) for text in texts]
    chosen: list[int] = []
    for number in sorted((n for n, text in enumerate(texts) if text), key=lambda n: high[n]):
        if sum(high[n] for n in (*chosen, number)) <= 1.0 + LINE:
            chosen.append(number)
    order = sorted(chosen, key=lambda n: ends[n][0])
    at: dict[int, float] = {}
    lowest = -1.0
    for n in order:  # up where they would touch
        at[n] = max(ends[n][0], lowest + high[n] / 2)
        lowest = at[n] + high[n] / 2
    highest = 1.0 + LINE / 2
    for n in reversed(order):  # and down again from the top; who touches nobody stays
        at[n] = min(at[n], highest - high[n] / 2)
        highest = at[n] - high[n] / 2
    return [(at[n], n, texts[n]) for n in order]
