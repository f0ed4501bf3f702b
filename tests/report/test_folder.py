"""The folder that a report is made in changes no picture, and has no program started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import lossbench

from . import made

for library in ("matplotlib", "jinja2", "scipy", "polars"):
    pytest.importorskip(library)
PACKAGE = Path(__file__).resolve().parents[2] / ".package"
SETTINGS = """text.usetex: True
text.latex.preamble: \\input{evil}
backend: module://evil
axes.prop_cycle: cycler(color=['red'])
font.family: monospace
svg.fonttype: path
figure.dpi: 30
"""


def report(results: Path, folder: Path, mark: Path, *, real: bool, **environment: str) -> dict[str, bytes]:
    """The pictures, made in `folder`. `mark`: left by what must not run. `real`: by a process that starts in the
    folder; else by one that has loaded matplotlib elsewhere."""
    code = "import sys; from lossbench.cli.main import main; sys.exit(main())"
    files = folder / "out"
    words = ["report", str(results), "--plots", str(files), "--html", str(files / "page.html")]
    own = {**os.environ, "PYTHONPATH": str(PACKAGE), "SOURCE_DATE_EPOCH": "0", **environment}
    command = [sys.executable, "-P", "-c", code, *words]
    done = (
        subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True)
        if real
        else lossbench(*words, cwd=folder, environment=own)
    )
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    page = (files / "page.html").read_bytes()  # which says in what minute it was made
    inline = {f"page {number}": found for number, found in enumerate(re.findall(rb"<svg .*?</svg>", page, re.S))}
    return inline | {path.name: path.read_bytes() for path in files.glob("*.svg")}


def test_a_folders_or_a_users_settings_of_matplotlib_start_no_program_and_change_no_picture(tmp_path: Path) -> None:
    """As it was: a folder's `matplotlibrc` had root start `latex`, with the folder's preamble."""
    results = made.suite(tmp_path, [{"impair.0.profile": "loss_10"}], 1, lambda point, seed: {"accuracy": 0.9})
    made.steps(results / "000", [2.0 / (1 + n) for n in range(5)])
    hostile, plain, own, programs = (tmp_path / name for name in ("hostile", "plain", "own", "programs"))
    for folder in (hostile, plain, own, programs):
        folder.mkdir()
    mark = tmp_path / "ran"
    (own / "matplotlib").mkdir()
    for folder in (hostile, own / "matplotlib"):  # in force where it stands, and from anywhere
        (folder / "matplotlibrc").write_text(SETTINGS)
    for path in (programs / "latex", hostile / "latex"):
        path.write_text(f"#!/bin/sh\necho $0 $PWD >> {mark}\n")
        path.chmod(0o755)
    (hostile / "evil.py").write_text(f"open({str(mark)!r}, 'a').write('module')")
    there = report(
        results, hostile, mark, real=True, XDG_CONFIG_HOME=str(own), PATH=f".:{programs}:{os.environ['PATH']}"
    )
    assert there == report(results, plain, mark, real=False) and {"convergence.svg", "page 0"} <= set(there)


def test_matplotlib_looks_for_fonts_by_no_program_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts fc-list while it is imported, when it has no list of them yet."""
    from lossbench.report.plots import library

    monkeypatch.chdir(tmp_path)
    (tmp_path / "matplotlibrc").write_text(SETTINGS)
    monkeypatch.setenv("PATH", f".:{tmp_path}::bin")
    with library.nothing_of_the_folder():
        assert os.environ["PATH"] == str(tmp_path)
        assert not os.path.exists("matplotlibrc") and os.path.exists(tmp_path / "matplotlibrc")
    assert os.environ["PATH"] == f".:{tmp_path}::bin" and os.path.exists("matplotlibrc")
