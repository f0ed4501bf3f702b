"""What the README and the tutorial print, done as printed, by somebody who has a train.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forms import full
from tests.ground.test_docs import ROOT, commands

TRAIN = (ROOT / "examples" / "ddp.py").read_text().replace("else 200", "else 3")
ELSEWHERE = ("run quickstart", "net up")  # `make demo` runs the one; the other is in tests/runs/test_undo.py
pytestmark = [pytest.mark.netns, pytest.mark.training, pytest.mark.timeout(1500)]  # some fifty starts of torch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "examples").mkdir()
    for path in (ROOT / "examples").glob("*.py"):
        (tmp_path / "examples" / path.name).write_text(path.read_text().replace("else 200", "else 10"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "lossbench").write_text(f'#!/bin/sh\nexec {sys.executable} -m lossbench.cli.main "$@"\n')
    (tmp_path / "bin" / "lossbench").chmod(0o755)
    return tmp_path


@full
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_every_command_of_it_does_what_it_says(folder: Path, page: str) -> None:
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    lines = [line for line in commands(ROOT / page) if not line.startswith(ELSEWHERE)]
    assert len(lines) >= 4
    for line in (line.replace("--seeds 3", "--seeds 1") for line in lines):
        done = subprocess.run(
            ["sh", "-c", f"lossbench {line}"], cwd=folder, env=environment, capture_output=True, text=True, timeout=1200
        )
        # 3: nothing is wrong, but a machine that runs tests may be too busy for its times to be known.
        assert done.returncode in (0, 3), f"lossbench {line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert not re.search(r"Traceback", done.stderr + done.stdout), done.stderr
    if page.endswith("tutorial.md"):
        assert (folder / "ddp.html").stat().st_size > 20_000
