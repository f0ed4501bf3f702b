"""Run folders: manifest first, records as they come, verdict last; a crash leaves a readable folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import NotAbleError
from harness.journal import write_durably

HERE = Path(__file__).resolve().parent


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """A full or read-only disk ends the run with one clear line."""
    try:
        yield
    except OSError as error:
        raise NotAbleError(
            f"results can't be written to {folder} ({error.strerror})", next_step="free some space or give --out"
        ) from None


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


def new_suite_folder(out: Path, suite: str, run_id: str) -> Path:
    folder = out / f"{time.strftime('%Y%m%d-%H%M%S')}_{suite}_{run_id}"
    with disk_errors(out):
        folder.mkdir(parents=True)
    return folder


def git_state() -> dict[str, Any]:
    """Commit and uncommitted changes of the checkout this code runs from; empty if it is not one."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(HERE), *arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {}
    return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}


def command_line() -> list[str]:
    return [os.path.basename(sys.argv[0]), *sys.argv[1:]]
