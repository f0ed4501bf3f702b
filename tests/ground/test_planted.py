"""The list of planted defects fits the tree (tests/bench/planted.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import planted
from tests.shared import ROOT

LISTED = planted.listed()


@pytest.mark.parametrize("one", LISTED, ids=lambda one: f"{Path(one.file).stem}: {one.defect}")
def test_a_planted_defect_has_its_one_place_and_its_tests(one: planted.Defect) -> None:
    assert one.wrong(ROOT) == ""


def test_every_room_has_a_planted_defect() -> None:
    found = [path.parent for top in ("harness", "workloads") for path in ROOT.glob(f"{top}/*/__init__.py")]
    rooms = {str(room.relative_to(ROOT)) for room in found if not room.is_symlink()}
    assert rooms <= {one.room for one in LISTED}


def test_no_defect_is_listed_twice() -> None:
    assert len({(one.file, one.new) for one in LISTED}) == len(LISTED)


def test_a_text_that_is_gone_or_there_twice_is_said(tmp_path: Path) -> None:
    (tmp_path / "harness").mkdir()
    file = tmp_path / "harness" / "a.py"
    one = planted.Defect(claim="c", defect="d", file="harness/a.py", old="x = 1", new="x = 2", tests=("a.py::test_a",))
    assert "no such file" in one.wrong(tmp_path)
    file.write_text("x = 1\nx = 1\n")
    assert "2 times" in one.wrong(tmp_path)
    file.write_text("x = 1\n")
    assert "a.py: there is no such file" in one.wrong(tmp_path)
    (tmp_path / "a.py").write_text("def test_b() -> None: ...\n")
    assert "a.py::test_a: there is no such test" in one.wrong(tmp_path)
    (tmp_path / "a.py").write_text("def test_a() -> None: ...\n")
    assert one.wrong(tmp_path) == ""
