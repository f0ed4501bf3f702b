"""Every collective of torch.distributed over the lossy backend, where nothing is lost; run by torchrun or lossbench.

torchrun --nproc-per-node 3 tests/training/every_collective.py [cuda]
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import lossbench.workloads.collective

warnings.filterwarnings("ignore", category=FutureWarning)  # torch 2.13 renamed the flat forms; both names are meant
DEVICE = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cpu")


def full(count: int, value: float, **keys: Any) -> torch.Tensor:
    return torch.full((count,), value, device=DEVICE, **keys)


def reductions(rank: int, world: int) -> None:
    total = world * (world + 1) / 2
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensor = full(100_001, rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert torch.all(tensor == total), (dtype, tensor[:3])
    tensor = full(1000, rank + 1.0)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert torch.all(tensor == total / world)
    for op, wanted in ((dist.ReduceOp.MAX, world), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.SUM, total)):
        tensor = torch.arange(10, device=DEVICE) * (rank + 1)
        dist.all_reduce(tensor, op=op)
        assert tensor.equal((torch.arange(10, device=DEVICE) * wanted).to(tensor.dtype)), op
    out = full(5, 0.0)
    dist.reduce_scatter_tensor(out, full(5 * world, rank + 1.0))
    assert torch.all(out == total)
    out = full(3, 0.0)
    dist.reduce_scatter(out, [full(3, float(n * (rank + 1))) for n in range(world)])
    assert torch.all(out == rank * total)
    tensor = full(6, rank + 1.0)
    dist.reduce(tensor, dst=0)
    assert torch.all(tensor == (total if rank == 0 else rank + 1))
    tensor = torch.ones(3, dtype=torch.complex64, device=DEVICE) * (1 + 2j)
    dist.all_reduce(tensor)
    assert torch.all(tensor == world * (1 + 2j))
    strided = torch.ones(40, 50, device=DEVICE).t()
    dist.all_reduce(strided)
    assert torch.all(strided == world)


def moves(rank: int, world: int) -> None:
    tensor = full(5000, rank, dtype=torch.bfloat16)
    dist.broadcast(tensor, src=1)
    assert torch.all(tensor == 1)
    rooms = [full(70, -1.0) for _ in range(world)]
    dist.all_gather(rooms, full(70, float(rank)))
    assert [float(room[0]) for room in rooms] == list(range(world))
    out = full(7 * world, -1.0)
    dist.all_gather_into_tensor(out, full(7, float(rank)))
    assert out.view(world, 7)[:, 0].tolist() == list(range(world))
    out = full(2 * world, -1.0)
    dist.all_to_all_single(out, torch.arange(2.0 * world, device=DEVICE) + 100 * rank)
    assert out.tolist() == [100.0 * peer + 2 * rank + k for peer in range(world) for k in (0, 1)]
    gathered = [full(2, 0.0) for _ in range(world)] if rank == 0 else None
    dist.gather(full(2, float(rank)), gathered, dst=0)
    assert gathered is None or [float(g[0]) for g in gathered] == list(range(world))
    out = full(2, -1.0)
    dist.scatter(out, [full(2, float(n)) for n in range(world)] if rank == 0 else None, src=0)
    assert out[0] == rank
    dist.barrier()


def of_the_same_memory(rank: int, world: int) -> None:
    """As it was: what others had sent was sent on, and what is only read was refused if its elements share a place."""
    blocks = torch.arange(world * 30_000.0, device=DEVICE) // 30_000 + 100 * rank
    dist.all_to_all_single(blocks, blocks)
    assert blocks[::30_000].tolist() == [100.0 * peer + rank for peer in range(world)]
    parts = [full(30_000, 100.0 * rank + peer) for peer in range(world)]
    dist.all_to_all(parts, parts)
    assert [float(part[-1]) for part in parts] == [100.0 * peer + rank for peer in range(world)]
    room = full(5, float(rank))
    dist.scatter(room, [room, *[full(5, float(n)) for n in range(1, world)]] if rank == 1 else None, src=1)
    assert torch.all(room == (rank or 1)), room
    wide = full(1, rank + 1.0).expand(4 * world)
    out = full(4, 0.0)
    dist.reduce_scatter_tensor(out, wide)
    assert torch.all(out == world * (world + 1) / 2)
    everybody = full(4 * world * world, 0.0)
    dist.all_gather_into_tensor(everybody, wide)
    assert everybody.view(world, -1)[:, -1].tolist() == [peer + 1.0 for peer in range(world)]


def refused_before_anything_is_sent(rank: int, world: int) -> None:
    """In one line, on every rank; the group goes on."""
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("no AVG of int64", lambda: dist.all_reduce(full(4, 1, dtype=torch.int64), op=dist.ReduceOp.AVG)),
        ("no AVG of bool", lambda: dist.all_reduce(full(4, True, dtype=torch.bool), op=dist.ReduceOp.AVG)),
        ("no BAND of float32", lambda: dist.all_reduce(full(4, 1.0), op=dist.ReduceOp.BAND)),
        ("do not make 4 rows", lambda: dist.all_to_all_single(full(4, 0.0), full(4, 1.0), [1] * world, [1] * world)),
        (f"for {world} ranks", lambda: dist.all_to_all_single(full(4, 0.0), full(4, 1.0), [4], [4])),
        ("can't be divided", lambda: dist.all_to_all_single(full(world + 1, 0.0), full(world + 1, 1.0))),
        ("of one type", lambda: dist.reduce_scatter_tensor(full(2, 0, dtype=torch.int32), full(2 * world, 1.5))),
        ("of one type", lambda: dist.all_gather_into_tensor(full(2 * world, 0, dtype=torch.int32), full(2, 1.5))),
        ("3 elements where 2", lambda: dist.all_gather([full(3, 0.0)] * world, full(2, 1.5))),
        (
            "elements where",
            lambda: dist.all_gather_into_tensor(*(full(n, 1, dtype=torch.uint8) for n in (4 * world, 1))),
        ),
        ("tensors for", lambda: dist.all_to_all([full(2, 0.0)], [full(2, 1.5)])),
        ("parts of", lambda: dist.reduce_scatter(full(2, 0.0), [full(1, 1.0)] * world)),
    ]
    for reason, call in wrong:
        try:
            call()
        except (NotImplementedError, ValueError) as error:
            assert reason in str(error), (reason, error)
        else:
            raise AssertionError(reason)
    flags = full(1, False, dtype=torch.bool)
    dist.reduce_scatter(flags, [full(1, True, dtype=torch.bool) for _ in range(world)])
    assert flags.view(torch.uint8).item() == 1, "a bool is 0 or 1"
    number = torch.full((world,), 1 + 2j, dtype=torch.complex64, device=DEVICE)
    dist.reduce(number, dst=0)
    assert torch.all(number == (world if rank == 0 else 1) * (1 + 2j))


def objects_and_pairs(rank: int, world: int) -> None:
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert [o["rank"] for o in objects] == list(range(world))
    chosen: list[Any] = [{"a": 1} if rank == 0 else None]
    dist.broadcast_object_list(chosen, src=0)
    assert chosen == [{"a": 1}]
    tensor = torch.full((4,), float(rank))
    if rank == 0:
        dist.send(tensor + 7, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
        assert tensor[0] == 7
    pair = dist.new_group([0, 1])
    if rank < 2:
        tensor = full(10, 1.0)
        dist.all_reduce(tensor, group=pair)
        assert tensor[0] == 2


def several_in_flight(world: int) -> None:
    tensors = [full(20_000 * (n + 1), float(n)) for n in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for number, work in reversed(list(enumerate(works))):
        work.wait()
        assert torch.all(tensors[number] == number * world)
    done = []
    work = dist.all_reduce(full(10, 1.0), async_op=True)
    work.get_future().then(lambda future: done.append(float(future.value()[0][0]))).wait()
    assert done == [world]
    # A result may start the next collective and wait for it, as DDP's communication hooks do.
    nested = dist.all_reduce(full(10, 1.0), async_op=True).get_future()
    inner = nested.then(lambda _: dist.all_reduce(full(10, 2.0), async_op=True).get_future().wait())
    assert float(inner.wait()[0][0]) == 2 * world
    flags = torch.tensor([True, False], device=DEVICE)
    dist.all_reduce(flags)
    assert flags.tolist() == [True, False]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("lossy", pg_options=lossbench.workloads.collective.Policy.from_environment())
    rank, world = dist.get_rank(), dist.get_world_size()
    reductions(rank, world)
    moves(rank, world)
    of_the_same_memory(rank, world)
    refused_before_anything_is_sent(rank, world)
    objects_and_pairs(rank, world)
    several_in_flight(world)
    strided = torch.ones(300, 500, device=DEVICE).t()
    work = dist.all_reduce(strided, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    assert torch.all(strided == world), "what is completed is there"
    assert dist.group.WORLD.engine == ("plain" if os.environ.get("LOSSBENCH_NATIVE") == "0" else "native")
    counters = dist.group.WORLD.counters
    assert counters["payload_bytes"] > 100_001 * 4 / world, "the sums went the lossy way"
    print(f"rank {rank} of {world} on {DEVICE}: all is well", flush=True)
    dist.destroy_process_group()
    os._exit(0) if "--abrupt" in sys.argv else None


if __name__ == "__main__":
    main()
