"""What is asked of all machines at once: on all, or on none, whoever's answer is lost. Machines are made up here."""

from __future__ import annotations

from typing import Any

import pytest

from lossbench.errors import LossbenchError, NotAbleError, RunError, VanishedError
from lossbench.net.lab import orders
from lossbench.spec.lab import Lab, Machine

LAB = Lab(machine=tuple(Machine(ssh=f"node{n}", interface="eth1", address=f"10.0.0.{n + 1}") for n in range(3)))
STANDS: set[int] = set()


class Made:
    """A machine that impairs itself, and whose answer to a question may be lost, or be no."""

    lost: tuple[int, str] = (9, "")
    refuses: int = 9

    def __init__(self, lab: Lab, rank: int) -> None:
        self.name, self.machine, self.rank = f"h{rank}", lab.machine[rank], rank

    def ask(self, what: str, **_: Any) -> Any:
        if what == "nic.apply":
            if self.rank == Made.refuses:
                raise RunError(f"{self.name}: no")
            STANDS.add(self.rank)
        if what in ("nic.take_back", "nic.revert"):
            STANDS.discard(self.rank)
        if (self.rank, what) == Made.lost:
            raise VanishedError(f"{self.name} does not answer")
        return {"phase": "unconfirmed"} if what == "nic.apply" else None

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    STANDS.clear()
    monkeypatch.setattr(orders, "Channel", Made)
    monkeypatch.setattr(Made, "lost", (9, ""))
    monkeypatch.setattr(Made, "refuses", 9)


def applied() -> dict[int, Any]:
    return orders.apply(LAB, seed=1, traffic={}, for_s=60.0)


def test_where_all_answer_all_stand() -> None:
    assert set(applied()) == {0, 1, 2} == STANDS


@pytest.mark.parametrize("what", ["nic.apply", "nic.confirm"])
def test_a_machine_whose_answer_was_lost_is_taken_back_with_the_others(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As it was: it was left out, and what it had confirmed stood until its time was over."""
    monkeypatch.setattr(Made, "lost", (1, what))
    with pytest.raises(NotAbleError, match="h1 does not answer"):
        applied()
    assert set() == STANDS


def test_one_that_refuses_leaves_none_impaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Made, "refuses", 2)
    with pytest.raises(NotAbleError, match="h2: no"):
        applied()
    assert set() == STANDS


def test_whatever_interrupts_takes_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: Ctrl-C while it was confirmed left the confirmed ones impaired."""

    def interrupted(*_: object) -> dict[int, LossbenchError]:
        raise KeyboardInterrupt

    monkeypatch.setattr(orders, "_confirmed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        applied()
    assert set() == STANDS


def test_one_that_can_not_be_asked_any_more_is_said_to_be_impaired_perhaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Made, "refuses", 2)
    monkeypatch.setattr(Made, "lost", (1, "nic.take_back"))
    with pytest.raises(NotAbleError, match="h1 may still be impaired until its time is over"):
        applied()
