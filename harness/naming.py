"""What the points of a sweep are called, in tables, plots and on the command line."""

from __future__ import annotations

from typing import Any


def point_name(point: dict[str, Any]) -> str:
    return " ".join(word(value) for value in point.values()) or "run"


def word(value: Any) -> str:
    """A swept value in few letters: of tables and lists what is inside them."""
    if isinstance(value, dict):
        return " ".join(word(v) for k, v in value.items() if k != "why")
    return "+".join(word(v) for v in value) if isinstance(value, list) else str(value)
