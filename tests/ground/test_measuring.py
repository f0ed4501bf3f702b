"""Programs under tests/bench that the docs cite for a figure: what they ask for can still be asked for."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from lossbench.spec.asking import points
from tests.shared import ROOT

BENCH = ROOT / "tests" / "bench"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
CITED = re.compile(r"tests/bench/(\w+\.(?:py|sh))")
SEVERAL = ("soak",)  # whatever a suite has will do there
ASKS = ("points.points(", '"lossbench.cli.main"')  # it makes runs of suites or files


def cited() -> list[Path]:
    """By name, and what a cited shell script calls in turn."""
    names = {name for page in PAGES if page.name != "CHANGELOG.md" for name in CITED.findall(page.read_text())}
    scripts = [BENCH / name for name in names if name.endswith(".sh")]
    names |= {name for script in scripts for name in CITED.findall(script.read_text())}
    return sorted(BENCH / name for name in names if name.endswith(".py"))


ASKING = [path for path in cited() if any(word in path.read_text() for word in ASKS) and path.stem != "fuzz"]


def test_programs_that_train_are_among_those_that_are_looked_at() -> None:
    assert {"gpu_training", "training_bars"} <= {path.stem for path in ASKING}


@pytest.mark.parametrize("path", ASKING, ids=lambda path: path.stem)
def test_what_a_cited_program_asks_for_can_be_planned_and_is_one_point(path: Path) -> None:
    """As it was: its suite had got arms, and the command behind a published table ended in a usage error."""
    program: ModuleType = importlib.import_module(f"tests.bench.{path.stem}")
    asked = list(program.planned())
    assert asked
    for suite, settings, full in asked:
        found = points.points(points.find(suite), settings=list(settings), full=full)
        assert len(found) == 1 or path.stem in SEVERAL, (suite, settings)
