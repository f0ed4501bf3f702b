"""Reading what users write: TOML checked by pydantic, with errors that name file, key and the allowed keys."""

from __future__ import annotations

import tomllib
import typing
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import UsageError


class Frozen(BaseModel):
    """Base of everything a user writes: unknown keys are errors, values don't change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=Frozen)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read ({error})") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}") from None


def check(model: type[Model], data: dict[str, Any], *, origin: str) -> Model:
    """The checked value, or one line that says which key of which file is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        more = error.error_count() - 1
        tail = f" (and {more} more)" if more else ""
        raise UsageError(f"{origin}: {_explain(model, first)}{tail}") from None


def _explain(model: type[BaseModel], error: Any) -> str:
    location = error["loc"]
    key = ".".join(str(part) for part in location) or "(file)"
    if error["type"] == "extra_forbidden":
        allowed = ", ".join(sorted(_model_at(model, location[:-1]).model_fields))
        return f"unknown key '{key}'; allowed: {allowed}"
    if error["type"] == "missing":
        return f"key '{key}' is missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    shown = f", not {error['input']!r}" if not isinstance(error["input"], dict | list) else ""
    return f"{key}: {message[:1].lower()}{message[1:]}{shown}"


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """Follow an error's location down to the model whose key was unknown."""
    for part in location:
        candidates = [model]
        field = model.model_fields.get(str(part))
        if field is not None:
            candidates = _models_in(field.annotation)
        else:  # a discriminated union puts its tag into the location
            continue
        tags = [str(p) for p in location]
        chosen = [m for m in candidates if _tag_of(m) in tags]
        if chosen or candidates:
            model = (chosen or candidates)[0]
    return model


def _tag_of(model: type[BaseModel]) -> str:
    tag = model.model_fields.get("model")
    return str(tag.default if tag is not None and tag.default else typing.get_args(tag.annotation)[0]) if tag else ""


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in typing.get_args(annotation) for m in _models_in(arg)]
