"""All commands as one page of Markdown, made from what --help says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any


def page(command: Any) -> str:
    """Of a click command and all below it."""
    out = ["# All commands", "", "Made by `lossbench schema commands --markdown` from what `--help` says.", ""]
    for path, one in _leaves(command, "lossbench"):
        out += [f"## {path}", "", *_words(one.help or ""), ""]
        rows = [row for parameter in one.params if (row := _row(parameter)) is not None]
        if rows:
            out += ["| | |", "|---|---|", *rows, ""]
    return "\n".join(out)


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, one in below.items():
        yield from _leaves(one, f"{path} {name}")


def _words(text: str) -> list[str]:
    """Paragraphs; examples as code."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.replace("\b", "").strip())]
    examples = [part for part in parts if part.startswith("lossbench ")]
    out = [
        line
        for part in parts
        if part not in examples and not re.fullmatch(r"Examples?\b.*:", part)
        for line in (part, "")
    ]
    return [*out, "```", *examples, "```"] if examples else out[:-1]


def _row(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return None
    word = parameter.metavar or parameter.name.strip("_").upper()  # format_: the name that Python has already is
    if parameter.param_type_name == "argument":
        name = f"`{word}`"
    else:
        value = "" if parameter.is_flag else f" {word}"
        names = [*parameter.opts, *parameter.secondary_opts]
        name = ", ".join(f"`{one}{'' if one.startswith('--no-') else value}`" for one in names)
    said = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| {name} | {' '.join(filter(None, (said, _choices(parameter), _default(parameter))))} |"


def _choices(parameter: Any) -> str:
    """Of an enumeration; typer's own words for it differ by version."""
    default = parameter.default
    known = type(default) if isinstance(default, Enum) else getattr(getattr(parameter, "type", None), "choices", ())
    choices = [str(getattr(one, "value", one)) for one in known]
    return f"One of {', '.join(choices)}." if choices else ""


def _default(parameter: Any) -> str:
    """Of what has one that says something."""
    found = getattr(parameter.default, "value", parameter.default)
    known = isinstance(found, str | int | float | Path) and not isinstance(found, bool)
    shown = known and str(found) and getattr(parameter, "show_default", True)
    return f"Default: {found}." if shown else ""
