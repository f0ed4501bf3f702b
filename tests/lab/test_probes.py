"""One machine's ends of the probes, as its agent answers for them."""

from __future__ import annotations

from typing import Any

from lossbench.runs.lab.probes import Probes


class Waiting:
    """An exchange in whose sockets more waits than one look takes."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def drain(self, heard: list[Any]) -> int:
        del heard
        self.looks -= self.looks > 0
        return self.looks


def test_all_that_waits_is_taken_by_one_question() -> None:
    """As it was: a thousand packets of each socket a question, and forty questions of every machine after a round."""
    probes, waiting = Probes(), Waiting(looks=40)
    probes._exchange, probes._rank = waiting, 0  # type: ignore[assignment]
    assert probes.drain() == 0 and waiting.looks == 0
