"""Parts of the engine in C, with a clock and a host of the test's own (parts.c): what takes seconds, or a kernel of
another age, is tried in none."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLAIMS = {
    "narrow for a moment": "A batch that is too wide once. As it was: the group broke, since its MTU had fallen.",
    "narrow": "Twice in a row it is said.",
    "no address": "Once narrow, and later its address is gone. As it was: its MTU had fallen.",
    "one by one": "As it was: every packet a system call, in silence.",
    "lingers": "An abort of who closes in patience. As it was: three seconds more, telling those who are gone.",
    "for ever": "timeout_s=inf. As it was: a number of no known size.",
    "thousands": "Calls begun while a peer is late. As it was: each walked past all of them, with the lock held.",
    "early marker": "As it was: held since the first of them came; the way was taken for one of no length.",
    "turn": "A half of which nothing has come is not late while those before it move.",
    "copies": "Nor while its own numbers are still on their way from a GPU.",
    "overtaken": "A batch by another, by 6 ms: of a sender that changes its CPU on a busy machine. As it was: cut.",
    "own sleep": "As it was: whoever had slept with all the others took them for dead.",
    "fork": "By a library in C. As it was: the child waited for a lock for ever, or sent by its parent's socket.",
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


NATIVE = HERE.parents[1] / "workloads" / "transport" / "native"


def test_what_two_threads_touch_is_read_by_its_macros_or_does_not_compile() -> None:
    """As it was: a plain access beside an atomic one to the same word, which nothing but a thread sanitizer saw."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    text = re.sub(
        r"/[*].*?[*]/", "", "".join(path.read_text() for path in sorted(NATIVE.glob("*.[ch]"))), flags=re.DOTALL
    )
    assert not re.search(r"\bvolatile\b|__atomic_|__sync_", text), "one way of sharing a word"
    engine = text[text.index("typedef struct engine {") : text.index("} engine;")]
    fields = [
        name
        for names in re.findall(r"^ +(?:word|tally|moment) ([^;]+);", engine, re.MULTILINE)
        for name in names.split(", ")
    ]
    assert {"look", "closed_below", "pace_at", "refused"} <= set(fields)
    flags = ["-std=gnu11", "-D_GNU_SOURCE", f"-I{NATIVE}", "-fsyntax-only", "-x", "c", "-"]

    def compiles(line: str) -> bool:
        source = f'#include "engine.h"\nns read_it(engine *e) {{ return (ns){line}; }}\n'
        return not subprocess.run(
            [compiler, *flags], input=source.encode(), capture_output=True, check=False
        ).returncode

    for field in fields:
        assert compiles(f"SEEN(e->{field})") and not compiles(f"(e->{field})"), field
