"""In which order the programs of a run are told to end."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lossbench.runs.launch.member import Member
from lossbench.runs.launch.ranks import Ranks


class Told:
    """A process that ends when it is told to, a few looks later."""

    def __init__(self, name: str, heard: list[str]) -> None:
        self.name, self.heard, self.looks = name, heard, -1

    def signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            self.heard.append(f"{self.name} told")
            self.looks = 3

    def poll(self) -> int | None:
        if self.looks > 0:
            self.looks -= 1
            if self.looks == 0:
                self.heard.append(f"{self.name} ended")
        return 0 if self.looks == 0 else None


def test_whoever_asks_a_service_has_ended_before_the_service_is_told_to(tmp_path: Path) -> None:
    """As it was: all were told at once, the servers first, and what clients asked in that moment was refused: requests
    that "were not answered" voided the tail of a service beside training."""
    heard: list[str] = []
    nothing: Any = SimpleNamespace()
    ranks = Ranks(folder=tmp_path, experiment=nothing, store=nothing, place_of=nothing, identity=nothing)
    for role in ("", "server", "web"):
        for number in (0, 1):
            process: Any = Told(f"{role or 'rank'} {number}", heard)
            one = Member(number=number, role=role, process=process, records=tmp_path / "x", log=tmp_path / "y")
            ranks.members.append(one)
    ranks.stop()
    assert heard.index("web 0 told") < heard.index("web 1 ended") < heard.index("server 0 told")
    assert heard.index("server 1 ended") < heard.index("rank 0 told")
