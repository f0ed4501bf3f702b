"""Arms of a sweep: several keys under one name. Which of them are run, and what the command line changes of them: it
goes before an arm, as it does before a sweep."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.spec.userfile import did_you_mean, shown

ARM = "arm"
STATED = "stated"  # what others say of an arm as it was written
KEEPS = "keeps"  # keys that make an arm what it is: the command line changes them in the others
WORDS = ("name", KEEPS)  # of an arm, beside its keys
Pairs = list[tuple[str, Any]]


def within(key: str, other: str) -> bool:
    """Is the one the other, or inside it?"""
    return f"{key}.".startswith(f"{other}.")


def keys_of(arm: Any, path: Path) -> Pairs:
    """What it sets."""
    if not isinstance(arm, dict) or not isinstance(arm.get("name"), str):
        raise UsageError(
            f"{path}: every {ARM} of the sweep needs a name", next_step='{ name = "shared", "shaping.priority" = 0 }'
        )
    return [(key, value) for key, value in arm.items() if key not in WORDS]


def kept_by(chosen: dict[str, Any]) -> list[str]:
    """Keys that the arm of this point keeps."""
    keeps = chosen[ARM].get(KEEPS, []) if ARM in chosen else []
    if not isinstance(keeps, list) or not all(isinstance(key, str) for key in keeps):
        raise UsageError(f"{ARM} '{chosen[ARM]['name']}': {KEEPS} is a list of its keys")
    return keeps


def wanted(arms: Any, names: list[str], path: Path) -> list[Any]:
    """Those of these names, in the order of the file."""
    known = [str(arm.get("name")) for arm in arms if isinstance(arm, dict)] if isinstance(arms, list) else []
    for name in names:
        if name not in known:
            step = did_you_mean(name, known) if known else "leave out --arm"
            raise UsageError(f"{path}: no arm '{shown(name)}'", next_step=step)
    return [arm for arm in arms if isinstance(arm, dict) and arm.get("name") in names]


class Met:
    """What the command line met in the points that a sweep makes."""

    def __init__(self) -> None:
        self.reached: set[str] = set()  # keys that some point takes
        self.beaten: list[Pairs] = []  # of each point what was set in place of its own

    def won(self, swept: Pairs, pairs: Pairs, *, keeps: Iterable[str] = ()) -> Pairs:
        """What is set once more, since this point had set it. A table that it sets as a whole is another program's, or
        another profile's: of it only what stands there already is changed."""
        beaten = []
        for key, value in pairs:
            own = [
                one not in keeps and (within(one, key) or _stands(other, key.removeprefix(f"{one}.").split(".")))
                for one, other in swept
                if within(one, key) or within(key, one)
            ]
            if not own or own[-1]:
                self.reached.add(key)
            if own and own[-1]:
                beaten.append((key, value))
        self.beaten.append(beaten)
        return beaten

    def name(self, arm: dict[str, Any], point: dict[str, Any]) -> str:
        """An arm that was changed is not what its name says: so it says what was, and nobody has stated anything of
        it."""
        beaten = self.beaten[-1]
        if beaten and STATED in arm:
            point.pop(STATED, None)
        return ", ".join([str(arm["name"]), *(f"{key.rpartition('.')[2]}={value}" for key, value in beaten)])

    def check(self, points: list[tuple[dict[str, Any], dict[str, Any]]], pairs: Pairs) -> None:
        for key, _ in pairs:
            if key not in self.reached:
                raise UsageError(
                    f"--set {key} would change nothing: every point keeps its own, or sets what stands above it",
                    next_step="other arms (--arm NAME), or a copy of the file",
                )
        for number, (chosen, point) in enumerate(points):
            for before, (other, same) in enumerate(points[:number]):
                keys = _keys(self.beaten[number] + self.beaten[before])
                if keys and _but_stated(point) == _but_stated(same):
                    names = " and ".join(f"'{one.get(ARM, one)}'" for one in (other, chosen))
                    raise UsageError(
                        f"--set {' and '.join(keys)} makes points alike: {names}",
                        next_step="choose one of them: --arm NAME",
                    )


def _keys(pairs: Iterable[tuple[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for key, _ in pairs))


def _stands(value: Any, path: list[str]) -> bool:
    """Is there something of this name inside of it?"""
    for part in path:
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return False
    return True


def _but_stated(point: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in point.items() if key != STATED}
