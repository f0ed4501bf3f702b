"""One process of a run as the harness keeps it: where it writes, whether it is waited for, when it comes and goes."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossbench.errors import RunError
from lossbench.files import known_as
from lossbench.processes import Running
from lossbench.runs.launch.program import last_lines

SAID_BY = "lossbench said by"  # the rank that a record itself names: under torchrun several share a file


@dataclass(kw_only=True)
class Member:
    """One rank of the workload, or of a program beside it."""

    number: int
    role: str = ""
    process: Running  # of this rank, and maybe of others too
    records: Path
    log: Path
    foreground: bool = True
    barrier: bool = True
    held: bool = False  # it says ready too, in the place of a program that does not
    waiting: int = 1  # processes that wait for the gate
    to_s: float | None = None  # when it is told to end
    ended: bool = False  # it was told to
    read_to: int = 0
    ready: bool = False

    @property
    def name(self) -> str:
        return f"{self.role} {self.number}" if self.role else f"rank {self.number}"

    def new_records(self) -> tuple[list[dict[str, Any]], int]:
        """Whole lines since the last time, and how many of them could not be read."""
        try:
            with open(self.records, "rb") as file:
                file.seek(self.read_to)
                data = file.read()
        except FileNotFoundError:
            return [], 0
        whole, _, _ = data.rpartition(b"\n")
        self.read_to += len(whole) + 1 if whole else 0
        out, damaged = [], 0
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                damaged += 1
                continue
            if isinstance(record, dict):
                self.ready = self.ready or record.get("kind") == "ready"
                out.append({**record, "rank": self.number, SAID_BY: record.get("rank")})
        return out, damaged

    def end_at(self, elapsed_s: float) -> None:
        if self.to_s is not None and elapsed_s >= self.to_s and not self.ended:
            self.ended = True
            self.process.signal(signal.SIGTERM)

    def check_alive(self) -> None:
        """Whoever died ends the run, with its last words."""
        code = self.process.poll()
        if not code or self.ended:
            return
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
        raise RunError(f"{self.name} {how}; its last lines ({known_as(self.log)}):\n{last_lines(self.log)}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
