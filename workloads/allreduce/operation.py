"""What is measured: a collective of so many bytes, of a type, by any process group; and what its numbers are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from lossbench.workloads.errors import OptionError

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
MB = 1e6


@dataclass(frozen=True, kw_only=True)
class Operation:
    """`elements` of the whole: of what is reduced, gathered or told. Rank 0 tells in a broadcast."""

    name: str
    dtype: str
    elements: int
    rank: int
    world: int

    @classmethod
    def asked(cls, options: Mapping[str, Any], *, rank: int, world: int) -> Operation:
        name, dtype = str(options.get("op", "all_reduce")), str(options.get("dtype", "float32"))
        if name not in OPERATIONS:
            raise OptionError(f"no operation '{name}': {', '.join(OPERATIONS)}")
        if dtype not in TYPES:
            raise OptionError(f"no type '{dtype}': {', '.join(TYPES)}")
        elements = int(float(options.get("mb", 16)) * MB) // TYPES[dtype].itemsize
        elements -= elements % world if name in ("reduce_scatter", "all_gather") else 0
        if elements < world:
            raise OptionError(f"{options.get('mb')} MB are less than an element for each of {world} ranks")
        return cls(name=name, dtype=dtype, elements=elements, rank=rank, world=world)

    @property
    def bytes(self) -> int:
        return self.elements * TYPES[self.dtype].itemsize

    @property
    def crossing(self) -> float:
        """Bytes that must cross each rank's link, one way, for each byte of the whole: bus bandwidth counts these."""
        return {"all_reduce": 2.0, "broadcast": self.world / (self.world - 1)}.get(self.name, 1.0) * self._others

    @property
    def _others(self) -> float:
        return (self.world - 1) / self.world

    def sent_by(self, rank: int) -> float:
        """Payload that this rank's link carries at least, in bytes."""
        if self.name == "broadcast":
            return float(self.bytes) if rank == 0 else 0.0
        return self.bytes * self.crossing

    def tensors(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(whole, this rank's part), fresh for a call."""
        whole = values.to(TYPES[self.dtype], copy=True)
        if self.name in ("all_reduce", "broadcast"):
            return whole, whole
        share = self.elements // self.world
        return whole, whole[self.rank * share : (self.rank + 1) * share].clone()

    def wrong(self, whole: torch.Tensor, part: torch.Tensor) -> int:
        """Elements that are not what they ought to be, after a call on `known`."""
        every = torch.arange(1, self.world + 1, dtype=torch.float32)
        if self.name == "all_gather":
            wanted = every.repeat_interleave(self.elements // self.world)
        else:
            wanted = every[0] if self.name == "broadcast" else every.sum()
        result = part if self.name == "reduce_scatter" else whole
        return int((result.float() != wanted).sum())

    def known(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As `tensors`: every rank has its number, from one on; small whole numbers are exact in every type."""
        return self.tensors(torch.full((self.elements,), float(self.rank + 1)))

    def call(self, group: Any, whole: torch.Tensor, part: torch.Tensor) -> None:
        if self.name == "all_reduce":
            group.allreduce([whole]).wait()
        elif self.name == "reduce_scatter":
            group._reduce_scatter_base(part, whole, dist.ReduceScatterOptions()).wait()
        elif self.name == "all_gather":
            group._allgather_base(whole, part, dist.distributed_c10d.AllgatherOptions()).wait()
        else:
            group.broadcast([whole], dist.BroadcastOptions()).wait()
