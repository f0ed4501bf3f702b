"""The file that `lossbench init` writes: what a command line's words make, and what --set changes, at its place."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from lossbench.errors import UsageError
from lossbench.spec.asking import adhoc, points


def text(asked: adhoc.Asked, *, settings: Sequence[str], file: Path) -> str:
    """What `run` makes of the same words is what `run FILE` makes: held against each other before a line is written."""
    plain = adhoc.text(asked)
    wanted = points.points_of(tomllib.loads(plain), path=file, settings=list(settings))
    lines = plain.splitlines()
    for setting in settings:
        key, _, value = setting.partition("=")
        lines = _with(lines, key.strip(), _toml(value.strip()))
    out = "\n".join(lines) + "\n"
    try:
        same = points.points_of(tomllib.loads(out), path=file, settings=[]) == wanted
    except (tomllib.TOMLDecodeError, UsageError):
        same = False
    if not same:
        raise UsageError(
            f"--set {', '.join(settings)} can't be written at its place", next_step="leave it out, and edit the file"
        )
    return out


def _toml(value: str) -> str:
    """A TOML value as it is, a bare word in quotes."""
    try:
        tomllib.loads(f"v = {value}")
    except tomllib.TOMLDecodeError:
        return adhoc.quoted(value)
    return value


def _with(lines: list[str], key: str, value: str) -> list[str]:
    """A line in the table that it belongs to, in place of one that is there, be it a comment."""
    table, _, name = key.partition(".") if "." in key else ("", "", key)
    heads = [n for n, line in enumerate(lines) if line.startswith("[")]
    if table:
        start = next((n for n in heads if lines[n].lstrip("[").startswith(f"{table}]")), None)
        if start is None:
            return [*lines, "", f"[{table}]", f"{name} = {value}"]
        name = name.removeprefix("0.") if lines[start].startswith("[[") else name
    else:
        start = -1
    end = next((n for n in heads if n > start), len(lines))
    place = next((n for n in range(start + 1, end) if lines[n].removeprefix("# ").startswith(f"{name} = ")), None)
    if place is not None:
        return [*lines[:place], f"{name} = {value}", *lines[place + 1 :]]
    while not lines[end - 1]:
        end -= 1
    return [*lines[:end], f"{name} = {value}", *lines[end:]]
