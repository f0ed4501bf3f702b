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
from lossbench.files import Held, as_json, disk_errors, write_durably
from lossbench.results import machine, models
from lossbench.results.models import RunSummary
from lossbench.results.provenance import git_state, of_program


class RunFolder:
    """The folder of one run (one point, one seed)."""

    def __init__(self, path: Path, *, within: Held | None = None) -> None:
        """`path`: its name. `within`: the folder that it is in, where that is held."""
        self.path = path
        self._within = within
        self._held: Held | None = None

    def make(self) -> None:
        with disk_errors(self.path):
            if self._within is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._held = Held.ours(self._within.way / self.path.name if self._within else self.path)
            for part in ("records", "logs"):
                (self.way / part).mkdir(exist_ok=True)

    @property
    def way(self) -> Path:
        """Where to write: the folder that was made, whatever its name leads to by now."""
        assert self._held is not None, "it was not made yet"
        return self._held.way

    def write(self, name: str, value: Any) -> None:
        with disk_errors(self.path):
            write_durably(self.way / name, as_json(value, indent=1) + "\n")

    def append(self, name: str, value: Any) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with disk_errors(self.path), open(os.open(self.way / name, flags, 0o666), "a", encoding="utf-8") as file:
            file.write(as_json(value) + "\n")

    def records_path(self, member: str) -> Path:
        return self.way / "records" / f"{member}.jsonl"

    def log_path(self, member: str) -> Path:
        return self.way / "logs" / f"{member}.log"


class SuiteFolder:
    """`<date>_<suite>_<id>`: suite.json (the whole plan) first, a numbered folder per run, summary.json as they end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: Held | None = None

    @classmethod
    def new(cls, out: Path, suite: str, run_id: str) -> SuiteFolder:
        path = out / f"{time.strftime('%Y%m%d-%H%M%S')}_{suite}_{run_id}"
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            made = cls(path)
            made._held = Held.ours(path)
        return made

    def write(self, name: str, text: str) -> None:
        with disk_errors(self.path):
            write_durably(self._holding().way / name, text)

    def _holding(self) -> Held:
        if self._held is None:
            self._held = Held(self.path.resolve())
        return self._held

    def run(self, number: int) -> Path:
        return self.path / f"{number:03d}"

    def run_folder(self, number: int) -> RunFolder:
        """Not made yet; empty of what a killed run left there."""
        with disk_errors(self.path):
            shutil.rmtree(self.run(number).name, ignore_errors=True, dir_fd=self._holding().handle)
            return RunFolder(self.run(number), within=self._holding())

    def finished(self, number: int, *, point: dict[str, Any], seed: int) -> RunSummary | None:
        """The summary of a run that ended; None if it did not, was damaged, or is not the one that was planned here."""
        path = self.run(number) / "summary.json"
        try:
            found = models.read(path, RunSummary)
        except UsageError:
            return None
        return found if found.is_of(point, seed) else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time works on a suite; the kernel lets go of it even after kill -9."""
        with disk_errors(self.path):
            one = self._holding().again()  # of its own: the lock goes with it
        try:
            fcntl.flock(one.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            one.close()
            raise UsageError(f"{self.path} is still being run", next_step="wait for it, or end it") from None
        before, self._held = self._held, one
        try:
            yield
        finally:
            self._held = before
            one.close()


def session(
    programs: Sequence[Sequence[str]] = (),
    *,
    machines: dict[str, dict[str, Any]] | None = None,
    lab: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Who makes results now: every start and every resumption of a suite adds one. `programs`: the user's own;
    `machines`, `lab`: what they are made on, if not on this one."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command_line(),
        "git": git_state(),
        "machine": machine.facts(),
        "gpus": machine.gpus(),
        "machines": machines or {},
        "lab": lab or {},
        "seeds_version": SEEDS_VERSION,
        "programs": [of_program(list(one), Path.cwd()) for one in programs],
    }


def command_line() -> list[str]:
    return [os.path.basename(sys.argv[0]), *sys.argv[1:]]
