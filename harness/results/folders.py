"""Run folders: manifest first, records as they come, verdict last; a crash leaves a readable folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lossbench.contract import SEEDS_VERSION
from lossbench.errors import UsageError
from lossbench.files import as_json, disk_errors, write_durably
from lossbench.results import machine, models
from lossbench.results.models import RunSummary
from lossbench.results.provenance import git_state, of_program


class RunFolder:
    """The folder of one run (one point, one seed)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            for part in ("records", "logs"):
                (path / part).mkdir(parents=True, exist_ok=True)

    def write(self, name: str, value: Any) -> None:
        with disk_errors(self.path):
            write_durably(self.path / name, as_json(value, indent=1) + "\n")

    def append(self, name: str, value: Any) -> None:
        with disk_errors(self.path), open(self.path / name, "a", encoding="utf-8") as file:
            file.write(as_json(value) + "\n")

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

    def finished(self, number: int, *, point: dict[str, Any], seed: int) -> RunSummary | None:
        """The summary of a run that ended; None if it did not, was damaged, or is not the one that was planned here."""
        path = self.run(number) / "summary.json"
        try:
            found = models.read(path, RunSummary)
        except UsageError:
            return None
        return found if found.is_of(point, seed) else None

    def clear(self, number: int) -> None:
        """What a killed run left, so that it can be run again."""
        with disk_errors(self.path):
            shutil.rmtree(self.run(number), ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
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


def session(programs: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
    """Who makes results now: every start and every resumption of a suite adds one. `programs`: the user's own."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command_line(),
        "git": git_state(),
        "machine": machine.facts(),
        "gpus": machine.gpus(),
        "seeds_version": SEEDS_VERSION,
        "programs": [of_program(list(one), Path.cwd()) for one in programs],
    }


def command_line() -> list[str]:
    return [os.path.basename(sys.argv[0]), *sys.argv[1:]]
