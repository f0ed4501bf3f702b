"""The docs as a site: it builds, no link is dead, it asks for nothing from elsewhere, the notebook is a page."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import notebook
from tests.shared import ROOT


def test_the_site_builds_without_a_dead_link_and_asks_for_nothing_from_elsewhere(tmp_path: Path) -> None:
    """As it was: no test built it, and its link to the notebook led to raw JSON."""
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("needs zensical (make setup)")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    command = [sys.executable, "-m", "zensical", "build", "-f", "mkdocs.yml", "--clean", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "build" / "docs").glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= set(made)
    for name, text in made.items():
        fetched = re.findall(r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="?(?:https?:)?//[^>]*>', text)
        assert fetched == [], name
    assert 'href="notebook.html"' in made["programs"]


def test_the_page_of_the_notebook_is_the_notebook() -> None:
    text, pictures = notebook.page(json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8")))
    assert (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8") == text, "python tests/bench/notebook.py"
    assert len(pictures) == 1 and text.count("```python") == 7
    for name, content in pictures.items():
        assert (ROOT / "docs" / "pictures" / name).read_bytes() == content
