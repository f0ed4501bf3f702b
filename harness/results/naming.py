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


def whose(mine: Iterable[str], every: Iterable[str]) -> str:
    """Which lines of a table are meant, in few words; empty where there is only one."""
    some, rest = dict.fromkeys(mine), list(dict.fromkeys(every))
    others = [name for name in rest if name not in some]
    if len(rest) < 2 or not some:
        return ""
    if not others:
        return "every line"
    if len(some) > 2:
        for word in re.split(r"[\s:]+", next(iter(some))):
            having = {name for name in rest if word in re.split(r"[\s:]+", name)}
            if having == set(some) and not word.isdecimal():
                return f"every line with {word}"
        if len(others) < min(len(some), 4):
            return f"every line but {_listed(others)}"
    return _listed(some)


def in_brackets(words: str) -> str:
    return f" ({words})" if words else ""


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def said_once(reasons: Iterable[tuple[str, int, str]], every: Sequence[str]) -> list[str]:
    """(line, seed, reason): reasons that differ in their numbers only are said once, with the lines they are about,
    of all lines that there are."""
    about: dict[str, list[tuple[str, int]]] = {}
    words: dict[str, str] = {}
    for line, seed, reason in reasons:
        alike = re.sub("[0-9.]+", "", reason)
        words.setdefault(alike, reason)
        about.setdefault(alike, []).append((line, seed))
    return [_with_whom(words[alike], _and_others(some, every)) for alike, some in about.items()]


def _with_whom(reason: str, names: str) -> str:
    """Behind its first line: what follows are lines of a program, and stay as they are."""
    first, end, rest = reason.partition("\n")
    return f"{first.removesuffix(':')} ({names}){':' if end else ''}{end}{rest}"


def _and_others(some: list[tuple[str, int]], every: Sequence[str]) -> str:
    """The numbers are those of the first."""
    names, lines = [f"{line} #{seed}" for line, seed in some], dict.fromkeys(line for line, _ in some)
    if len(names) < 3:
        return " and ".join(names)
    if len(lines) == 1:
        return f"{names[0]}; alike in {counted(len(names) - 1, 'more seed')}"
    return f"{names[0]}; alike: {whose(lines, every)}"


def beside_the_verdict(columns: Sequence[Mapping[str, str]]) -> str:
    """Of valid runs: what is not valid all the same, because their experiment does not call it essential."""
    out = ""
    for name in dict.fromkeys(name for one in columns for name in one):
        words = [one.get(name, "unknown") for one in columns if one.get(name) != "valid"]
        if words:
            out += f" ({name} {words[0]} in {len(words)} of {len(columns)})"
    return out
