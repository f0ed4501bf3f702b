"""The words under the fields as tables in Markdown: what docs/experiments.md and docs/profiles.md show is made here."""

from __future__ import annotations

import json
from typing import Any


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
        return f"list of {_values(inner)}" if "prefixItems" not in field else "[first, one past the last]"
    limits = {"minimum": ">= {}", "exclusiveMinimum": "> {}", "maximum": "<= {}", "exclusiveMaximum": "< {}"}
    words = [text.format(f"{field[name]:g}") for name, text in limits.items() if name in field]
    return ", ".join([str(field.get("type", "any")), *words])
