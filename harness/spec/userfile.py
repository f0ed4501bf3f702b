"""Reading what users write: TOML checked by pydantic, with errors that name file, key and the allowed keys."""

from __future__ import annotations

import difflib
import re
import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from lossbench.errors import UsageError
from lossbench.spec import units


class Frozen(BaseModel):
    """Base of everything a user writes: unknown keys are errors, values don't change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _with_units(cls, data: Any) -> Any:
        return units.understood(data, cls.model_fields)


MOST_SHOWN = 200
Model = TypeVar("Model", bound=Frozen)


def read_toml(path: Path, *, if_none: str = "") -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", next_step=if_none) from None
    except (OSError, ValueError) as error:  # not UTF-8, or no possible name of a file
        raise UsageError(f"{shown(path)}: can't be read ({shown(error)})") from None
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{path}: not TOML: nested too deeply") from None
    except ValueError as error:  # of tomllib, and of numbers with thousands of digits
        raise UsageError(f"{path}: not TOML: {error}{_line_of(error, text)}") from None


def _line_of(error: ValueError, text: str) -> str:
    """The line that is meant, as it stands there."""
    found, lines = re.search(r"at line (\d+)", str(error)), text.splitlines()
    number = int(found[1]) if found else 0
    return f": {shown(lines[number - 1].strip())}" if 0 < number <= len(lines) else ""


def shown(value: object) -> str:
    """In a message: of what is long its beginning."""
    text = str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """For a next step: the name that was meant, as far as that can be guessed, else all of them."""
    near = difflib.get_close_matches(word[:MOST_SHOWN], known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"


def check(model: type[Model], data: dict[str, Any], *, origin: str) -> Model:
    """The checked value, or a line for everything that is wrong: which key of which file."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # An unknown key often causes a missing one: name the typo, not its shadow.
        errors = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
        raise UsageError("\n".join(f"{origin}: {text}" for text in _explained(model, errors))) from None


def _explained(model: type[BaseModel], errors: list[Any]) -> list[str]:
    """Every mistake once: what follows from one that was named (a key that is missing because it was misspelt, the
    other members of a union, the list around an element) is its shadow."""
    out: list[str] = []
    named: list[tuple[str, ...]] = []
    unknown: set[tuple[str, ...]] = set()  # where keys were misspelt
    for error in errors:
        key = tuple(_walk(model, error["loc"])[0])
        shadow = any(key[: len(one)] == one[: len(key)] for one in named)
        if error["type"] == "extra_forbidden":
            unknown.add(key[:-1])
        if not shadow and not (error["type"] == "missing" and key[:-1] in unknown):
            named.append(key)
            out.append(_explain(model, error))
    return out


def _explain(model: type[BaseModel], error: Any) -> str:
    parts, holder = _walk(model, error["loc"])
    if error["type"] == "extra_forbidden" and parts[-1:] != [error["loc"][-1]]:
        parts.append(str(error["loc"][-1]))  # whatever the user called it
    key = ".".join(parts) or "(file)"
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(parts[-1][:MOST_SHOWN], holder.model_fields, n=2)
        guess = f"did you mean {' or '.join(near)}? " if near else ""
        return f"unknown key '{key}'; {guess}allowed: {', '.join(sorted(holder.model_fields))}"
    if error["type"] == "missing":
        return f"key '{key}' is missing"
    if error["type"] in ("float_parsing", "int_parsing"):
        unit = units.counted_in(parts[-1]) if parts else ""
        counted = f" of {', '.join(units.UNITS[unit])}" if unit else ""
        return f"{key}: {shown(repr(error['input']))} is not a number{counted}"
    message = str(error["msg"]).removeprefix("Value error, ")
    given = f", not {shown(repr(error['input']))}" if not isinstance(error["input"], dict | list) else ""
    return f"{key}: {message[:1].lower()}{message[1:]}{given}"


def _walk(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[list[str], type[BaseModel]]:
    """(the key as a user writes it, the model that holds its last part). pydantic puts the tag of a union's member into
    the location; that is not something the user wrote."""
    parts: list[str] = []
    holder, members = model, [model]
    for part in location:
        chosen = [m for m in members if _tag_of(m) == part]
        if chosen:
            members = chosen
            continue
        if isinstance(part, str) and not re.fullmatch(r"[\w-]+", part):
            continue  # how pydantic calls a member of a union: "tuple[str, ...]"
        parts.append(str(part))
        if isinstance(part, int):
            continue
        holder = next((m for m in members if part in m.model_fields), members[0])
        field = holder.model_fields.get(part)
        members = (_models_in(field.annotation) if field is not None else []) or members
    return parts, holder


def _tag_of(model: type[BaseModel]) -> str:
    field = model.model_fields.get("model")
    values = typing.get_args(field.annotation) if field is not None else ()
    return str(values[0]) if values else ""


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in typing.get_args(annotation) for m in _models_in(arg)]
