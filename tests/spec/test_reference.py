"""The words under the fields: in schemas, in editors, in the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lossbench import api
from lossbench.spec.asking.reference import tables

DOCS = Path(__file__).resolve().parents[2] / "docs"


def fields(schema: dict[str, Any], name: str) -> dict[str, bool]:
    out = {f"{name}.{key}": bool(field.get("description")) for key, field in schema.get("properties", {}).items()}
    for inner, part in schema.get("$defs", {}).items():
        out |= fields(part, inner)
    return out


@pytest.mark.parametrize("kind", api.KINDS)
def test_at_least_95_percent_of_the_fields_say_what_they_are(kind: str) -> None:
    described = fields(api.schema(kind), kind)
    missing = [name for name, has in described.items() if not has]
    assert len(missing) <= 0.05 * len(described), missing


@pytest.mark.parametrize(("kind", "page"), [("experiment", "experiments.md"), ("lab", "lab.md")])
def test_the_reference_in_the_docs_is_what_the_fields_say(kind: str, page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    _, _, rest = text.partition("<!-- reference -->\n")
    shown, _, _ = rest.partition("<!-- end of reference -->")
    assert shown == tables(api.schema(kind), title=kind), (
        f"lossbench schema {kind} --markdown, between the marks in docs/{page}"
    )


def test_a_list_of_fixed_length_says_what_stands_in_it() -> None:
    """As it was: pairs of hosts were "[first, one past the last]", as windows of numbers are."""
    lines = tables(api.schema("experiment"), title="experiment").splitlines()
    values = {line.split(" | ")[0].strip("|` "): line.split(" | ")[1] for line in lines if line.startswith("| `")}
    assert values["pairs"] == "list of [string, string]" and values["blocks"] == "[first, one past the last]"
