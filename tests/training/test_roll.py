"""Who is left, agreed on through a store: one list an epoch, whoever is late or comes back included."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lossbench.workloads.collective.roll import Listed, Roll
from lossbench.workloads.errors import AbsentError, OptionError, TransportError
from lossbench.workloads.training.settings import policy_here
from lossbench.workloads.transport.policy import Policy
from tests.training.test_calls import GPU
from tests.training.workers import over_loopback, together

pytestmark = pytest.mark.training
ALIVE = AbsentError("somebody, but nobody is", ())  # so the other is waited for


def rolls(store: Any, world: int = 4, timeout_s: float = 0.3) -> list[Roll]:
    return [Roll(store, rank=rank, world=world, timeout_s=timeout_s) for rank in range(world)]


def at_once(*calls: Any) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


def test_survivors_agree_though_they_suspect_different_ranks() -> None:
    all_of_them = rolls(dist.HashStore())
    at_once(
        *(lambda roll=roll, who=who: roll.call({who}) for roll, who in zip(all_of_them[:3], (3, 3, 0), strict=True))
    )
    assert [roll.members for roll in all_of_them[:3]] == [(0, 1, 2)] * 3, "rank 0 is here, whatever rank 2 thinks"


def test_of_two_lists_of_one_epoch_the_first_stands() -> None:
    """Both may have looked before either was written."""
    one, other, *_ = rolls(dist.HashStore())
    for roll, members in ((one, (0, 1)), (other, (1, 2))):
        roll._propose(1, Listed(members=members, step=0, answered={}))
    assert [roll._read(1).members for roll in (one, other)] == [(0, 1)] * 2


def test_one_that_announces_itself_too_late_finds_the_list_without_it() -> None:
    all_of_them = rolls(dist.HashStore())
    at_once(*(lambda roll=roll: roll.call({3}) for roll in all_of_them[:2]))
    all_of_them[2].call({3})
    assert all_of_them[2].members == (0, 1)


def test_a_knock_is_answered_for_the_step_after_the_next_and_once() -> None:
    store = dist.HashStore()
    all_of_them = rolls(store)
    at_once(*(lambda roll=roll: roll.call({3}) for roll in all_of_them[:3]))
    returned = Roll(store, rank=3, world=4, timeout_s=0.3)

    def survivors() -> None:
        let_in = []
        for step in range(200, 2000):
            let_in = [roll.let_in(step) for roll in all_of_them[:3]]  # the lowest rank is first to look
            if any(let_in):
                break
        assert let_in == [True, True, True]
        assert not any(roll.let_in(step + 1) for roll in all_of_them[:3])

    at_once(lambda: returned.knock(20), survivors)
    assert {roll.members for roll in (*all_of_them[:3], returned)} == {(0, 1, 2, 3)}
    assert returned.listed.step > 200 and returned.epoch == 2


def test_nothing_is_asked_of_the_store_while_everybody_is_here() -> None:
    class Nobody:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    assert not Roll(Nobody(), rank=0, world=2, timeout_s=1).let_in(5)


def test_nobody_lets_it_in() -> None:
    with pytest.raises(TransportError, match=r"nobody let it in again for 0\.1 s"):
        Roll(dist.HashStore(), rank=1, world=2, timeout_s=1).knock(0.1)


def test_the_training_workload_measures_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSSBENCH_POLICY", "absent=continue")
    with pytest.raises(OptionError, match="loops of your own"):
        policy_here()


def test_whoever_waits_for_others_is_told_when_its_group_is_closed() -> None:
    """As it was: for `timeout_s`, within the store, where nobody else of the process could ask it anything."""
    roll, said = rolls(dist.HashStore(), timeout_s=600.0)[1], list[str]()

    def ends(work: Any) -> None:
        with pytest.raises(TransportError) as caught:
            work()
        said.append(str(caught.value))

    waits = [lambda: roll.call({3}), lambda: roll.knock(600.0), lambda: roll.keys(limited=True).get("rank0")]
    threads = [threading.Thread(target=ends, args=(work,), daemon=True) for work in waits]
    for thread in threads:
        thread.start()
    roll.close()
    for thread in threads:
        thread.join(20)
    assert said == ["rank 1: this group is closed"] * 3


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_an_abort_ends_a_regroup_and_is_not_undone_by_it(device: str) -> None:
    """As it was: whoever regrouped waited on, met the others, and its group was open again."""
    for when in ("before", "meanwhile", "as it meets"):

        def work(channel: Any, when: str = when) -> None:
            group, said = channel.group, list[str]()
            if channel.rank:
                group.abort()
                return
            meet = group._meet

            def met(policy: Any) -> None:
                meet(policy)
                group.abort()

            if when == "as it meets":
                group._meet = met

            def regroups() -> None:
                with pytest.raises(TransportError) as caught:
                    group.regroup(AbsentError("rank 1 is gone", (1,)) if when == "as it meets" else ALIVE)
                said.append(str(caught.value))

            if when == "before":
                group.abort()
            thread = threading.Thread(target=regroups, daemon=True)
            thread.start()
            if when == "meanwhile":
                while not group.roll._store.check([f"1/here{channel.rank}"]):
                    time.sleep(0.001)
                group.abort()
            thread.join(60)
            assert said == ["rank 0: this group is closed"], when
            with pytest.raises(TransportError, match="closed"):
                group.allreduce([torch.ones(10, device=device)])

        together(over_loopback(2, policy=Policy(absent="continue", timeout_s=600.0)), work)
