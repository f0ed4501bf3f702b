"""What the points of a sweep are called, in tables, plots and on the command line; and reasons, each said once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def point_name(point: dict[str, Any]) -> str:
    return " ".join(word(value) for value in point.values()) or "run"


def counted(number: int, thing: str, things: str = "") -> str:
    """1 run, 2 runs."""
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def key_of(point: dict[str, Any]) -> str:
    """Exactly this point: names may be alike."""
    return json.dumps(point, sort_keys=True, default=str)


def word(value: Any) -> str:
    """A swept value in few letters: of tables and lists what is inside them."""
    if isinstance(value, dict):
        return " ".join(word(v) for k, v in value.items() if k != "why")
    return "+".join(word(v) for v in value) if isinstance(value, list) else str(value)


def said_once(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """(who, reason) pairs: reasons that differ in their numbers only are said once, with whom they are about."""
    about: dict[str, list[str]] = {}
    words: dict[str, str] = {}
    for who, reason in reasons:
        alike = re.sub("[0-9.]+", "", reason)
        words.setdefault(alike, reason)
        about.setdefault(alike, []).append(who)
    return [_with_whom(words[alike], _and_others(some)) for alike, some in about.items()]


def _with_whom(reason: str, names: str) -> str:
    """Behind its first line: what follows are lines of a program, and stay as they are."""
    first, end, rest = reason.partition("\n")
    return f"{first.removesuffix(':')} ({names}){':' if end else ''}{end}{rest}"


def _and_others(names: list[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} others alike"


def beside_the_verdict(columns: Sequence[Mapping[str, str]]) -> str:
    """Of valid runs: what is not valid all the same, because their experiment does not call it essential."""
    out = ""
    for name in dict.fromkeys(name for one in columns for name in one):
        words = [one.get(name, "unknown") for one in columns if one.get(name) != "valid"]
        if words:
            out += f" ({name} {words[0]} in {len(words)} of {len(columns)})"
    return out
