"""pytest as `make test` starts it: workers side by side, each with its own /run (tests/worker), one line a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DECIDES = "not full and not quiet"  # what `make test` runs


def workers() -> int:
    return 3 * (os.cpu_count() or 1)  # as the Makefile has it: tests wait half of their time


def options(count: int) -> list[str]:
    """Of pytest; for one worker none, but it gets its own /run all the same."""
    return ["--tx", f"{count}*popen//python=tests/worker", "--dist", "worksteal"]


def run_tests(
    tests: Sequence[str],
    *,
    marked: str = "",
    count: int = 0,
    log: Path,
    limit_s: float = 0,
    more: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """pytest's exit status; -1 when the time was over: what was interrupted has no line. What ended is in `log`, a line
    each as it ends; with a limit, what pytest says is in a file beside it."""
    arguments = log.with_suffix(".args")
    arguments.write_text("\n".join([*(["-m", marked] if marked else []), *options(count or workers()), *tests]))
    with log.with_suffix(".out").open("wb") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *more, f"@{arguments}"],
            cwd=ROOT,
            env={**os.environ, **(environment or {}), "LOSSBENCH_TESTED": str(log), "WORKER_PYTHON": sys.executable},
            stdout=said if limit_s else None,
            start_new_session=True,
        )
    try:
        return child.wait(limit_s or None)
    except subprocess.TimeoutExpired:
        ended = log.stat().st_size if log.exists() else 0
        _end(child)
        if log.exists():
            os.truncate(log, ended)
        return -1
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGINT)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def read(log: Path) -> list[dict[str, Any]]:
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """That many processes that only burn time."""
    children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()
