"""Run folders: manifest first, records as they come, verdict last; a crash leaves a readable folder."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness import machine, results
from harness.errors import NotAbleError, UsageError
from harness.journal import write_durably
from harness.results import RunSummary

HERE = Path(__file__).resolve().parent
DIFF_LIMIT = 1_000_000


@contextmanager
def disk_errors(place: Path, *, next_step: str = "free some space or give --out") -> Iterator[None]:
    """A full or read-only disk ends the run with one clear line."""
    try:
        yield
    except OSError as error:
        raise NotAbleError(f"{place} can't be written ({error.strerror})", next_step=next_step) from None


class RunFolder:
    """The folder of one run (one point, one seed)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            for part in ("records", "logs"):
                (path / part).mkdir(parents=True, exist_ok=True)

    def write(self, name: str, value: Any) -> None:
        with disk_errors(self.path):
            write_durably(self.path / name, json.dumps(value, indent=1, default=str) + "\n")

    def append(self, name: str, value: Any) -> None:
        with disk_errors(self.path), open(self.path / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(value, default=str) + "\n")

    def records_path(self, rank: int) -> Path:
        return self.path / "records" / f"rank-{rank}.jsonl"

    def log_path(self, rank: int) -> Path:
        return self.path / "logs" / f"rank-{rank}.log"


class SuiteFolder:
    """`<date>_<suite>_<id>`: suite.json (the whole plan) first, a numbered folder per run, summary.json as they end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def new(cls, out: Path, suite: str, run_id: str) -> SuiteFolder:
        path = out / f"{time.strftime('%Y%m%d-%H%M%S')}_{suite}_{run_id}"
        with disk_errors(out):
            path.mkdir(parents=True)
        return cls(path)

    def write(self, name: str, text: str) -> None:
        with disk_errors(self.path):
            write_durably(self.path / name, text)

    def run(self, number: int) -> Path:
        return self.path / f"{number:03d}"

    def finished(self, number: int, *, point: dict[str, Any], seed: int) -> dict[str, Any] | None:
        """The summary of a run that ended; None if it did not, was damaged, or is not the one that was planned here."""
        path = self.run(number) / "summary.json"
        try:
            planned = results.read(path, RunSummary).is_of(point, seed)
        except UsageError:
            return None
        return dict(json.loads(path.read_bytes())) if planned else None

    def clear(self, number: int) -> None:
        """What a killed run left, so that it can be run again."""
        with disk_errors(self.path):
            shutil.rmtree(self.run(number), ignore_errors=True)

    @contextmanager
    def mine(self) -> Iterator[None]:
        """One process at a time works on a suite; the kernel lets go of it even after kill -9."""
        with disk_errors(self.path):
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise UsageError(f"{self.path} is still being run", next_step="wait for it, or end it") from None
        try:
            yield
        finally:
            os.close(handle)


def session() -> dict[str, Any]:
    """Who makes results now: every start and every resumption of a suite adds one."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": command_line(), "git": git_state(),
        "machine": machine.facts(), "gpus": machine.gpus(),
    }  # fmt: skip


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(HERE), *arguments], capture_output=True, text=True, errors="replace", timeout=10,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@lru_cache(maxsize=1)
def git_state() -> dict[str, Any]:
    """Commit and uncommitted changes of the checkout this code runs from; empty if it is not one."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}
    diff = git_diff()
    digest = hashlib.sha256(diff.encode()).hexdigest()[:16] if diff else None
    return {"commit": commit.strip(), "dirty": bool(diff), "diff_sha256": digest}


@lru_cache(maxsize=1)
def git_diff() -> str:
    """What differs from the commit; kept beside the results, so that they can be made again."""
    return (_git("diff", "HEAD") or "")[:DIFF_LIMIT]


def command_line() -> list[str]:
    return [os.path.basename(sys.argv[0]), *sys.argv[1:]]
