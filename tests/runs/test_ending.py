"""In which order the programs of a run are told to end, and how long that takes at most."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lossbench.results import machine
from lossbench.results.folders import RunFolder
from lossbench.runs.launch import ranks as launch
from lossbench.runs.launch.environment import Identity
from lossbench.runs.launch.program import Start
from lossbench.runs.launch.ranks import GRACE_S, Ranks
from lossbench.spec.experiment import Experiment
from lossbench.spec.userfile import check


class Told:
    """A process that ends when it is told to, a few looks later; a deaf one only by SIGKILL."""

    pid = 0

    def __init__(self, name: str, heard: list[str], *, deaf: bool) -> None:
        self.name, self.heard, self.deaf, self.looks = name, heard, deaf, -1

    def signal(self, number: int) -> None:
        if number == signal.SIGTERM and self.looks < 0:
            self.heard.append(f"{self.name} told")
        if self.looks < 0 and (number == signal.SIGKILL or not self.deaf):
            self.looks = 3

    def poll(self) -> int | None:
        if self.looks > 0:
            self.looks -= 1
            if self.looks == 0:
                self.heard.append(f"{self.name} ended")
        return 0 if self.looks == 0 else None


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    out = Clock()
    monkeypatch.setattr(launch, "time", out)
    monkeypatch.setattr(machine, "gpus", list)
    return out


def started(folder: Path, heard: list[str], *, deaf: bool = False) -> Ranks:
    """A service, its clients, who come later, and others that ask both, on two hosts: as a run starts them."""
    asked = {
        "name": "test",
        "topology": {"hosts": 2},
        "impair": [{"profile": "clean"}],
        "workload": {"command": ["true"]},
        "beside": [
            {"role": "server", "command": ["true"]},
            {"role": "late", "command": ["true"], "from_s": 1.0},
            {"role": "web", "command": ["true"]},
        ],
    }

    def start(one: Start) -> Told:
        role = one.variables.get("LOSSBENCH_ROLE", "rank")
        return Told(f"{role} {one.variables['RANK']}", heard, deaf=deaf)

    store, launcher, place = RunFolder(folder / "run"), SimpleNamespace(start=start), SimpleNamespace(where="")
    store.make()
    whole: dict[str, Any] = {"launcher": launcher, "place_of": lambda _: place}
    experiment = check(Experiment, asked, origin="test")
    identity = Identity(run_id="id", token=1, seed=1)
    ranks = Ranks(folder=folder, experiment=experiment, store=store, identity=identity, **whole)
    ranks.start()
    ranks.come_and_go(2.0)
    assert len(ranks.members) == 8
    return ranks


@pytest.mark.usefixtures("clock")
def test_whoever_asks_a_service_has_ended_before_the_service_is_told_to(tmp_path: Path) -> None:
    """As it was: all were told at once, the servers first, and what clients asked in that moment was refused: requests
    that "were not answered" voided the tail of a service beside training. Then in the order in which they had come."""
    heard: list[str] = []
    started(tmp_path, heard).stop(in_turn=True)
    turns = [[f"{role} {rank}" for rank in (0, 1)] for role in ("web", "late", "server", "rank")]
    for earlier, later in zip(turns, turns[1:], strict=False):
        ended = max(heard.index(f"{name} ended") for name in earlier)
        assert ended < min(heard.index(f"{name} told") for name in later), heard


@pytest.mark.usefixtures("clock")
def test_where_a_run_has_failed_all_are_told_at_once(tmp_path: Path) -> None:
    heard: list[str] = []
    started(tmp_path, heard).stop()
    assert all(word.endswith("told") for word in heard[:8]) and len(heard) == 16, heard


def test_programs_that_do_not_end_are_waited_for_together(tmp_path: Path, clock: Clock) -> None:
    """As it was: three seconds for each of them, one after the other."""
    heard: list[str] = []
    ranks, before = started(tmp_path, heard, deaf=True), clock.now
    ranks.stop(in_turn=True)
    assert len(heard) == 16, "each was told, and each has ended in the end"
    assert 2 * GRACE_S <= clock.now - before < 2 * GRACE_S + 1
