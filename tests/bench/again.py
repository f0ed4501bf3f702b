"""A pytest plugin (`-p tests.bench.again`): each test as often as LOSSBENCH_AGAIN=FILE says (`{"most": 3, "wanted":
{test: times}}`), round after round: one collection serves them all. What the file does not name is not run."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

WHERE = "LOSSBENCH_AGAIN"


def rounds(items: Sequence[pytest.Item], wanted: Mapping[str, int], most: int) -> Iterator[pytest.Item]:
    """At most that many; a test that is wanted more often than others comes in the first rounds, too."""
    for number in range(min(most, max(wanted.values(), default=0))):
        for item in items:
            if wanted.get(item.nodeid, 0) > number:
                yield _another(item) if number else item


def _another(item: pytest.Item) -> pytest.Item:
    """Set up and torn down for itself, even if it comes right behind the first one."""
    one = copy.copy(item)
    one._report_sections = []
    if isinstance(one, pytest.Function):
        one._initrequest()
    return one


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    asked = json.loads(Path(os.environ[WHERE]).read_text(encoding="utf-8"))
    items[:] = rounds(items, asked["wanted"], asked["most"])
