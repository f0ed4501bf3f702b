"""Forms of one claim: `make test` tries the first of them, `make test-all` every one.

A form that stays is one that fails when the defect is there; tests whose every form says something of its own are
parametrized as ever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

full = pytest.mark.full


def forms(
    names: str, values: Iterable[Any], *, keep: int = 1, ids: Sequence[str] | None = None, indirect: bool = False
) -> pytest.MarkDecorator:
    """As pytest.mark.parametrize; all but the first `keep` are left to `make test-all`."""
    every = [value if isinstance(value, type(pytest.param())) else _param(value) for value in values]
    marked = [
        one if n < keep else pytest.param(*one.values, id=one.id, marks=[*one.marks, full])
        for n, one in enumerate(every)
    ]
    return pytest.mark.parametrize(names, marked, ids=ids, indirect=indirect)


def _param(value: Any) -> Any:
    return pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)
