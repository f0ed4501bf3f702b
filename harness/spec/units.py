"""Numbers with their units, as people write them: 3%, 20ms, 1gbit, 10m. What a field counts in is in its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

UNITS: dict[str, dict[str, float]] = {
    "percent": {"%": 1.0},
    "ms": {"us": 1e-3, "ms": 1.0, "s": 1e3},  # no m: whoever writes 20m meant 20 ms
    "s": {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0},
    "mbit": {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3},
}
A_SHARE = 0.1  # percent: below that a bare number may have been meant as a share of one
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z%]+)\s*", re.IGNORECASE)


def counted_in(name: str) -> str:
    """The unit that a field's name ends with; empty if it has none."""
    last = name.rpartition("_")[2]
    return last if last in UNITS else ""


def read(text: str, unit: str) -> float:
    """In `unit`; a ValueError says what could have been written."""
    if text.lstrip()[:1] == "-" and _NUMBER.fullmatch(text.lstrip()[1:]):
        raise ValueError(f"'{text[:40]}' is less than nothing")
    found = _NUMBER.fullmatch(text)
    factor = UNITS[unit].get(found[2].lower()) if found is not None else None
    if found is None or factor is None:
        raise ValueError(f"'{text[:40]}' is not a number of {', '.join(UNITS[unit])}")
    return round(float(found[1]) * factor, 9)


def understood(data: Any, fields: Any) -> Any:
    """What a user wrote for these fields, every number with a unit as a plain one."""
    if not isinstance(data, dict):
        return data
    out = dict(data)
    for name, value in data.items():
        unit = counted_in(str(name))
        if unit and name in fields and isinstance(value, str) and _NUMBER.fullmatch(value):
            try:  # what is no number with a unit the field itself refuses
                out[name] = read(value, unit)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    return out


def perhaps_shares(loss: str, sweep: Sequence[str]) -> list[str]:
    """What to say of losses without a unit that are so few that .03 of all may have been meant, and not .03 %."""
    swept = [value for one in sweep if one.startswith("loss=") for value in one.removeprefix("loss=").split(",")]
    found = [value.strip() for value in (loss, *swept) if re.fullmatch(r"\s*[0-9]*\.?[0-9]+\s*", value)]
    if any(float(value) > 1 for value in found):
        return []  # beside 5, .05 is no share
    small = [value for value in dict.fromkeys(found) if 0 < float(value) < A_SHARE]
    step = "write {0:g}% if a share was meant, {1}% if not"
    return [f"a loss of {one} counts in percent; {step.format(100 * float(one), one)}" for one in small]
