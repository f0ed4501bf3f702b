"""What programs of torch do, over the lossy backend; run by torchrun. Each line it prints is a habit that works.

torchrun --nproc-per-node 2 tests/training/habits.py
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

import lossbench.torch  # noqa: F401 - registers the backend


def said(what: str) -> None:
    print(f"rank {dist.get_rank()}: {what}", flush=True)


def summed(value: float, count: int = 10) -> torch.Tensor:
    tensor = torch.full((count,), value)
    dist.all_reduce(tensor)
    return tensor


def again_on_one_store(rank: int, world: int, store: dist.Store) -> None:
    """As it was: wrong sums."""
    for turn in range(3):
        dist.init_process_group("lossy", store=store, rank=rank, world_size=world)
        assert bool((summed(float(rank + turn)) == 1 + 2 * turn).all())
        if turn < 2:
            dist.destroy_process_group()
    said("made again on one store")


def a_wait_that_ends(rank: int) -> None:
    """As it was: the time was ignored."""
    dist.barrier()
    if rank == 0:
        work = dist.all_reduce(torch.ones(5), async_op=True)
        try:
            work.wait(timedelta(seconds=0.3))
        except TimeoutError:
            said("a wait that ends")
        dist.distributed_c10d._get_default_store().set("go", "1")
        work.wait()
    else:
        dist.distributed_c10d._get_default_store().get("go")
        dist.all_reduce(torch.ones(5))


def refusals() -> None:
    """As it was: an expanded tensor broke the group, and 25 refused calls its threads."""
    for _ in range(40):
        try:
            dist.all_reduce(torch.ones(1).expand(5))
        except ValueError:
            continue
        raise AssertionError("an expanded tensor was taken")
    assert bool((summed(1.0) == 2).all())
    said("refusals")


def after_a_fork() -> None:
    child = os.fork()
    if not child:
        try:
            summed(1.0)
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    said("after a fork")


def no_thread_is_left() -> None:
    """As it was: four a group."""
    dist.destroy_process_group(dist.new_group([0, 1]))  # whatever torch makes on first use
    dist.barrier()
    before = threading.active_count()
    for _ in range(5):
        group = dist.new_group([0, 1])
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=group, async_op=True).get_future().wait()
        dist.destroy_process_group(group)
    assert threading.active_count() <= before + 1, (threading.active_count(), before)
    said("no thread is left")


def nobody_waits() -> None:
    """Results that are dropped: the call still ends, in memory that is still there."""
    for _ in range(50):
        dist.all_reduce(torch.ones(5000), async_op=True)
    assert bool((summed(1.0) == 2).all())
    said("nobody waits")


def main() -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["HABITS_PORT"]), world, rank == 0)
    again_on_one_store(rank, world, store)
    a_wait_that_ends(rank)
    refusals()
    after_a_fork()
    no_thread_is_left()
    nobody_waits()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
