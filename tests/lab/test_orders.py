"""What is asked of all machines at once: on all, or on none, whoever's answer is lost. Machines are made up here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lossbench.errors import LossbenchError, NotAbleError, RunError, VanishedError
from lossbench.net.journal import Removed
from lossbench.net.lab import held, orders
from lossbench.net.nic.state import UNCONFIRMED, State
from lossbench.spec import profile as profiles
from lossbench.spec.lab import Lab, Machine

LAB = Lab(machine=tuple(Machine(ssh=f"node{n}", interface="eth1", address=f"10.0.0.{n + 1}") for n in range(3)))
STANDS: set[int] = set()


class Made:
    """A machine that impairs itself, and whose answer to a question may be lost, or be no. What it applied and was not
    told to keep goes with its channel."""

    lost: tuple[int, str] = (9, "")
    refuses: tuple[int, str] = (9, "")
    asked: list[str] = []  # noqa: RUF012 - of all
    seeds: list[int] = []  # noqa: RUF012 - that they were given

    def __init__(self, lab: Lab, rank: int) -> None:
        self.name, self.machine, self.rank = f"h{rank}", lab.machine[rank], rank
        self._goes = False

    def ask(self, what: str, **given: Any) -> Any:
        Made.asked.append(what)
        Made.seeds += [given["seed"]] if "seed" in given else []
        if (self.rank, what) == Made.refuses:
            raise RunError(f"{self.name}: no")
        if what == "nic.apply":
            STANDS.add(self.rank)
            self._goes = True
        if what == "nic.keep":
            self._goes = False
        if what in ("nic.take_back", "nic.revert"):
            STANDS.discard(self.rank)
        if (self.rank, what) == Made.lost:
            raise VanishedError(f"{self.name} does not answer")
        return {"phase": "unconfirmed"} if what == "nic.apply" else None

    def close(self) -> None:
        if self._goes:
            STANDS.discard(self.rank)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    STANDS.clear()
    monkeypatch.setattr(orders, "Channel", Made)
    monkeypatch.setattr(Made, "lost", (9, ""))
    monkeypatch.setattr(Made, "refuses", (9, ""))
    monkeypatch.setattr(Made, "asked", [])
    monkeypatch.setattr(Made, "seeds", [])


def applied(**more: Any) -> dict[int, Any]:
    return orders.apply(LAB, seed=1, traffic={}, for_s=60.0, **more)


def test_where_all_answer_all_stand() -> None:
    assert set(applied()) == {0, 1, 2} == STANDS
    assert Made.asked.index("nic.keep") > max(n for n, one in enumerate(Made.asked) if one == "nic.confirm")


def test_each_machine_has_a_seed_of_its_own_which_the_next_time_is_the_same() -> None:
    """Equal ones would lose the same packets on every machine."""
    applied()
    applied()
    assert len(set(Made.seeds)) == 3 and sorted(Made.seeds[:3]) == sorted(Made.seeds[3:])


@pytest.mark.parametrize("what", ["nic.apply", "nic.confirm", "nic.keep"])
def test_a_machine_whose_answer_was_lost_is_taken_back_with_the_others(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As it was: it was left out, and what it had confirmed stood until its time was over."""
    monkeypatch.setattr(Made, "lost", (1, what))
    with pytest.raises(NotAbleError, match="h1 does not answer"):
        applied()
    assert set() == STANDS


def test_one_that_refuses_leaves_none_impaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Made, "refuses", (2, "nic.apply"))
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


def test_a_second_interruption_while_it_is_taken_back_leaves_none_impaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: it broke off the taking back, and those that had confirmed stood until their time was over."""

    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(orders, "_confirmed", interrupted)
    monkeypatch.setattr(orders, "_taken_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        applied()
    assert set() == STANDS, "each machine takes it back when its channel ends"


def test_nothing_interrupts_while_machines_are_told_to_keep_it_or_to_take_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside: list[list[str]] = []

    @contextmanager
    def hold() -> Iterator[None]:
        before = len(Made.asked)
        yield
        inside.append(Made.asked[before:])

    applied(hold=hold)
    assert inside == [["nic.keep"] * 3]
    inside.clear()
    monkeypatch.setattr(Made, "refuses", (0, "nic.confirm"))
    with pytest.raises(NotAbleError):
        applied(hold=hold)
    assert inside == [[], ["nic.take_back"] * 3]


def test_one_that_can_not_be_asked_any_more_is_said_to_be_impaired_perhaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Made, "refuses", (2, "nic.apply"))
    monkeypatch.setattr(Made, "lost", (1, "nic.take_back"))
    with pytest.raises(NotAbleError, match="h1 may still be impaired until its time is over"):
        applied()


# --- the machine's own end of it ------------------------------------------------------------------------------------


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> list[State]:
    """What stands on the machine of an agent, whose interface is made up."""
    found: list[State] = []

    def apply(request: Any) -> State:
        about = {"interface": request.interface, "index": 2, "netns": "1 1", "phase": UNCONFIRMED, "profile": "p"}
        times = {"until": 1e12, "expires": 1e12}
        found.append(State(id="0a1b", backend="ebpf", seed=1, sides=("egress",), **about, **times))
        return found[-1]

    def ended(_: object, one: State) -> Removed:
        found.remove(one)
        return Removed(network=one.id, names=(), pids=())

    monkeypatch.setattr(held.impaired, "apply", apply)
    monkeypatch.setattr(held.standing, "standing", lambda: [(None, one) for one in list(found)])
    monkeypatch.setattr(held.standing, "ended", ended)
    return found


def asked_of(agent: held.Nic) -> None:
    profile = profiles.load("loss_1").model_dump(mode="json")
    agent.apply("eth1", profile, {"peers": ["10.0.0.2"]}, sides=["egress"], for_s=60.0, seed=1)


def test_an_agent_takes_back_at_its_end_what_it_was_not_told_to_keep(stands: list[State]) -> None:
    """As it was: a controller that died between two confirmations left one machine impaired and another not."""
    agent = held.Nic()
    asked_of(agent)
    assert len(stands) == 1
    agent.close()
    assert stands == []


def test_an_agent_that_was_told_to_keep_it_leaves_it_standing_and_can_still_take_it_back(stands: list[State]) -> None:
    agent = held.Nic()
    asked_of(agent)
    agent.keep()
    agent.close()
    assert len(stands) == 1
    agent.take_back()
    assert stands == []


@pytest.mark.parametrize(("left_s", "put_off_s"), [(60.0, held.state.LEASE_S), (1.0, 1.0)])
def test_a_beat_puts_the_kernels_own_clock_off_by_a_lease_and_never_beyond_the_end(
    monkeypatch: pytest.MonkeyPatch, stands: list[State], left_s: float, put_off_s: float
) -> None:
    told: list[float] = []
    clock = SimpleNamespace(set=told.append, close=lambda: None)
    monkeypatch.setattr(held.Clock, "opened", lambda _: clock)
    monkeypatch.setattr(held.state, "now", lambda: 1000.0)
    agent = held.Nic()
    asked_of(agent)
    agent._held = replace(stands[0], expires=1000.0 + left_s)
    agent.beat()
    assert told == [1000.0 + put_off_s]


def test_what_was_taken_back_meanwhile_can_not_be_kept(stands: list[State]) -> None:
    agent = held.Nic()
    with pytest.raises(RunError, match="gone already"):
        agent.keep()
    asked_of(agent)
    stands.clear()
    with pytest.raises(RunError, match="gone already"):
        agent.keep()


def test_one_machine_by_two_names_is_refused_and_nothing_is_put_on_it() -> None:
    """Its data address is asked for where lab.toml names the interface alone; as it was, the second of it was told that
    the interface is impaired already, and a check measured the way from a machine to itself."""
    twice = [Machine(ssh=name, interface="eth1", address="10.0.0.1") for name in ("node0", "root@node0")]
    lab = LAB.model_copy(update={"machine": (*twice, LAB.machine[1])})
    with pytest.raises(NotAbleError, match=r"h1 \(root@node0\) has the data address of h0, 10\.0\.0\.1") as raised:
        orders.apply(lab, seed=1, traffic={}, for_s=60.0)
    assert "named twice" in raised.value.next_step and not STANDS and "nic.apply" not in Made.asked
