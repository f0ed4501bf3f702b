"""What programs of torch do, over the lossy backend; run by torchrun. Each line it prints is a habit that works.

torchrun --nproc-per-node 2 tests/training/habits.py
"""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

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
    until = time.monotonic() + 30  # those of the last group are still ending
    while threading.active_count() > before + 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before + 1, (threading.active_count(), before)
    said("no thread is left")


def nobody_waits() -> None:
    """Results that are dropped: the call still ends, in memory that is still there."""
    for _ in range(50):
        dist.all_reduce(torch.ones(5000), async_op=True)
    assert bool((summed(1.0) == 2).all())
    said("nobody waits")


def coalesced(rank: int) -> None:
    tensors = [torch.full((10,), float(rank + n)) for n in range(3)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert [tensor[0].item() for tensor in tensors] == [1.0, 3.0, 5.0]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert [tensor[0].item() for tensor in tensors] == [2.0, 6.0, 10.0]
    sources, outputs = [torch.full((4,), float(rank + n)) for n in range(2)], [torch.empty(8) for _ in range(2)]
    with dist._coalescing_manager():
        for output, source in zip(outputs, sources, strict=True):
            dist.all_gather_into_tensor(output, source)
    assert [output.tolist() for output in outputs] == [[0.0] * 4 + [1.0] * 4, [1.0] * 4 + [2.0] * 4]
    shares = [torch.empty(4) for _ in range(2)]
    with dist._coalescing_manager():
        for share, output in zip(shares, outputs, strict=True):
            dist.reduce_scatter_tensor(share, output)
    assert [share[0].item() for share in shares] == [2.0 * rank, 2.0 * (rank + 1)]
    said("coalesced")


def on_a_mesh(rank: int) -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replica", "shard"))
    tensor = torch.full((10,), float(rank))
    dist.all_reduce(tensor, group=mesh.get_group("shard"))
    assert bool((tensor == 1).all())
    spread = distribute_tensor(torch.arange(8.0), mesh["shard"], [Shard(0)])
    assert spread.to_local().tolist() == torch.arange(8.0).chunk(2)[rank].tolist()
    assert spread.full_tensor().tolist() == list(range(8))
    said("on a mesh")


def a_group_with_a_time(rank: int) -> None:
    """As it was: the timeout of init_process_group and new_group was ignored."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
    if rank == 0:
        for _ in range(2):  # by the short way, and by what says that it is broken
            try:
                dist.all_reduce(torch.ones(5), group=group)
            except RuntimeError as error:
                assert "timeout" in str(error), error
            else:
                raise AssertionError("nobody else has called")
        said("a group with a time")
    dist.barrier()


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
    coalesced(rank)
    on_a_mesh(rank)
    a_group_with_a_time(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
