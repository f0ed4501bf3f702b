"""Digits of a column one below the other: as many decimals for all as their precision allows, the points in one line, a
`?` behind them that moves none."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"((?:± |to )?)(-?)(\d+)(\.\d+)?(\??)")
DIGITS = 4  # of a number, as measures.short has them


def filled(texts: Sequence[str]) -> list[str]:
    """Cells of numbers that measures.short wrote: the zeros that it leaves out at the end, up to the decimals of the
    column's first lines (an interval below: of its own number). None is shortened, and a 0 stays: nothing at all."""
    most = max((_decimals(text.split("\n")[0]) for text in texts), default=0)
    out = []
    for text in texts:
        first, *below = text.split("\n")
        first = _filled(first, most)
        out.append("\n".join([first, *(_filled(line, _decimals(first)) for line in below)]))
    return out


def _decimals(line: str) -> int:
    found = _NUMBER.fullmatch(line)
    return len(found[4]) - 1 if found and found[4] else 0


def _filled(line: str, most: int) -> str:
    found = _NUMBER.fullmatch(line)
    if found is None or not float(f"{found[3]}{found[4] or ''}"):
        return line
    before, sign, whole, part, mark = found.groups(default="")
    room = DIGITS - (len(whole) if whole != "0" else 0)
    missing = min(most, room) - max(0, len(part) - 1)
    if missing <= 0 or (whole == "0" and part.startswith(".00")):  # of what is so small fewer digits are known
        return line
    return f"{before}{sign}{whole}{part or '.'}{'0' * missing}{mark}"


def pads(lines: Sequence[str]) -> list[str]:
    """What each lacks at its right, point, decimals and mark, to have its digits below those of the others."""
    found = [_NUMBER.fullmatch(line) for line in lines]
    parts = max((len(one[4] or "") for one in found if one), default=0)
    mark = any(one and one[5] for one in found)
    return [_pad(one[4] or "", one[5], parts, mark=mark) if one else "" for one in found]


def _pad(part: str, own: str, parts: int, *, mark: bool) -> str:
    point = "." if parts and not part else ""
    return point + "0" * (parts - len(part) - len(point)) + ("?" if mark and not own else "")


def aligned(texts: Sequence[str]) -> list[str]:
    """Cells of one or more lines, where every letter is as wide as any other."""
    cells = [text.split("\n") for text in texts]
    missing = iter(pads([line for cell in cells for line in cell]))
    return ["\n".join(line + " " * len(next(missing)) for line in cell) for cell in cells]
