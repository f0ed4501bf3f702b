"""Parts of the engine in C, with a clock and a host of the test's own (parts.c): what takes seconds, or a kernel of
another age, is tried in none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLAIMS = {
    "narrow for a moment": "A batch that is too wide once. As it was: the group broke, since its MTU had fallen.",
    "narrow": "Twice in a row it is said.",
    "early marker": "As it was: held since the first of them came; the way was taken for one of no length.",
    "turn": "A half of which nothing has come is not late while those before it move.",
    "copies": "Nor while its own numbers are still on their way from a GPU.",
    "overtaken": "A batch by another, by 6 ms: of a sender that changes its CPU on a busy machine. As it was: cut.",
    "own sleep": "As it was: whoever had slept with all the others took them for dead.",
    "refused again": "As it was: forgotten at every half, so that one with a deadline never said it.",
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("parts") / "parts"
    flags = ["-O0", "-std=gnu11", "-D_GNU_SOURCE", "-pthread", "-fno-strict-aliasing"]
    subprocess.run([compiler, *flags, "-o", str(made), str(HERE / "parts.c"), "-lm"], check=True)
    return made


@pytest.mark.parametrize("claim", CLAIMS)
def test_it_is_so(parts: Path, claim: str) -> None:
    done = subprocess.run([parts, claim], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), CLAIMS[claim]
