"""The words under the fields: into a schema, and as tables in Markdown (docs/experiments.md shows them).

pydantic could read them by itself (use_attribute_docstrings), at every start of every command: 80 ms of import."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from lossbench.spec.units import UNITS, counted_in
from lossbench.spec.userfile import Frozen


def described(model: type[BaseModel]) -> dict[str, Any]:
    """Its JSON schema, every field with the words that stand under it."""
    schema = model.model_json_schema()
    classes = {one.__name__: one for one in _all_below(BaseModel) if one.__module__.startswith("lossbench.")}
    for name, part in [(model.__name__, schema), *schema.get("$defs", {}).items()]:
        said = _words(classes[name]) if name in classes else {}
        for field, text in said.items():
            if field in part.get("properties", {}):
                part["properties"][field].setdefault("description", text)
        if issubclass(classes.get(name, BaseModel), Frozen):
            part["properties"] = {key: _or_with_unit(key, one) for key, one in part.get("properties", {}).items()}
    return schema


def as_written(experiment: dict[str, Any]) -> dict[str, Any]:
    """Its schema as a file is written: profiles also by name or path, the name from the file, a sweep, a full form."""
    experiment["required"] = [name for name in experiment.get("required", []) if name != "name"]
    dotted = {"type": "object", "title": "Full", "description": "Changes for --full, and its own sweep."}
    experiment["properties"]["full"] = dotted
    entry = experiment["$defs"]["Impair"]["properties"]
    named = {"type": "string", "description": "A profile that comes along, or the path of a TOML file."}
    about = entry["profile"].pop("description", "")
    entry["profile"] = {"description": about, "anyOf": [named, entry["profile"]]}
    return experiment


def _or_with_unit(name: str, field: dict[str, Any]) -> dict[str, Any]:
    """A number whose unit is in its name may be written with one."""
    unit, kept = counted_in(name), ("default", "description", "title")
    some = field.get("anyOf", [field])
    if not unit or not any(one.get("type") in ("number", "integer") for one in some):
        return field
    about = {key: field[key] for key in kept if key in field}
    plain = [{key: value for key, value in one.items() if key not in kept} for one in some]
    written = {"type": "string", "pattern": f"^ *[0-9.e+-]+ *({'|'.join(UNITS[unit])}) *$"}
    return {"anyOf": [*plain, written], **about}


def _all_below(base: type[Any]) -> Iterator[type[Any]]:
    for one in base.__subclasses__():
        yield one
        yield from _all_below(one)


def _words(model: type) -> dict[str, str]:
    """By field, of this class and those it builds on."""
    out: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not base.__module__.startswith("lossbench."):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, after in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
                out[field.target.id] = inspect.cleandoc(str(ast.literal_eval(after.value)))
    return out


def tables(schema: dict[str, Any], *, title: str) -> str:
    """One for every table that a user can write."""
    parts = [(title, schema), *((name, part) for name, part in schema.get("$defs", {}).items())]
    return "\n".join(_table(name, part) for name, part in parts if part.get("properties"))


def _table(name: str, part: dict[str, Any]) -> str:
    rows = [_row(key, field, needed=key in part.get("required", ())) for key, field in part["properties"].items()]
    about = " ".join(part.get("description", "").split())
    head = "| key | values | default | |\n|---|---|---|---|\n"
    return f"**{name}**. {about}\n\n{head}" + "".join(rows)


def _row(key: str, field: dict[str, Any], *, needed: bool) -> str:
    default = "needed" if needed else _default(field)
    cells = (f"`{key}`", _values(field), default, " ".join(field.get("description", "").split()))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    if value in (None, "", [], {}) or isinstance(value, dict):
        return ""
    return f"`{json.dumps(value)}`"


def _tuple(items: list[dict[str, Any]]) -> str:
    """Of fixed length: a window of numbers, else what stands at each place."""
    if len(items) == 2 and all(one.get("type") == "integer" for one in items):
        return "[first, one past the last]"
    return f"[{', '.join(_values(one) for one in items)}]"


def _values(field: dict[str, Any]) -> str:
    """A type in few words, with its limits."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "const" in field or "enum" in field:
        return ", ".join(json.dumps(one) for one in field.get("enum", [field.get("const")]))
    some = field.get("anyOf") or field.get("oneOf")
    if some:
        return " or ".join(dict.fromkeys(_values(one) for one in some if one.get("type") != "null"))
    if field.get("type") == "array":
        inner = field.get("items") or {"type": "any"}
        return f"list of {_values(inner)}" if "prefixItems" not in field else _tuple(field["prefixItems"])
    limits = {"minimum": ">= {}", "exclusiveMinimum": "> {}", "maximum": "<= {}", "exclusiveMaximum": "< {}"}
    if "pattern" in field and field["pattern"].startswith("^ *[0-9"):
        return f"with a unit ({field['pattern'].partition('(')[2].partition(')')[0].replace('|', ', ')})"
    words = [text.format(f"{field[name]:g}") for name, text in limits.items() if name in field]
    return ", ".join([str(field.get("type", "any")), *words])
