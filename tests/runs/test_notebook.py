"""The notebook in the docs: its cells run, one after the other, as they stand there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import left_behind
from tests.forms import full

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def cells() -> list[str]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "code"]


def test_it_was_executed_and_shows_what_came_out() -> None:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    shown = [output for cell in found["cells"] for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert not any(output["output_type"] == "error" for output in shown)


@full
@pytest.mark.netns
@pytest.mark.training
def test_its_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    if shutil.which("ping") is None:
        pytest.skip("a cell calls ping, which is not here")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in cells():
        exec(compile(cell, "a cell of docs/notebook.ipynb", "exec"), names)
    assert getattr(names["r"], "verdict", "") in ("valid", "unknown") and left_behind() == []
