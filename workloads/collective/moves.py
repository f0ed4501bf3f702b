"""The lossy backend's moves: what is not a reduction. All arrives; gathers of parameters may be stale if asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.base import Base
from lossbench.workloads.collective.reduce import all_gather, all_reduce, is_lossy
from lossbench.workloads.collective.staging import Staged
from lossbench.workloads.collective.stale import StaleCopies
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.packet.wire import Bytes

Tensors = list[torch.Tensor]


class Moves(Base):
    def __init__(self, *given: Any, **keys: Any) -> None:
        super().__init__(*given, **keys)
        self._stale = StaleCopies()

    def _given(self, tensor: torch.Tensor, name: str = "in") -> Staged:
        staged = Staged(tensor, self._pinned, name=name)
        self._endpoint.answer_until(staged.is_here)
        return staged

    def _taken(self, tensor: torch.Tensor, name: str = "out") -> Staged:
        return Staged(tensor, self._pinned, name=name, fetch=False)

    # --- gathers -------------------------------------------------------------------------------------------------

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        del opts

        def job() -> None:
            given = self._given(source)
            taken = self._taken(output)
            if self.policy.fsdp_gather == "stale" and is_lossy(given.codec, "sum"):
                self._gather_with_copies(given, taken)
            else:
                parts = [part.view("u1") for part in taken.array.reshape(self.size(), -1)]
                exchange.all_gather(self._group, given.array.view("u1").copy(), parts)
            taken.give_back()

        return self._submit([output], job)

    all_gather_single = _allgather_base

    def _gather_with_copies(self, given: Staged, taken: Staged) -> None:
        mine = given.array.copy()  # FSDP gathers in place: its own shard is part of the output
        copy = self._stale.find(mine, len(taken.array), given.codec)
        everybody = np.array([copy is not None], dtype=np.int8)
        all_reduce(self._group, everybody, codec=CODECS["int8"], op="min", lossy=False)  # all lossy, or none
        if copy is not None:
            taken.array[:] = copy
        counts = (len(mine),) * self.size()
        all_gather(self._group, mine, taken.array, codec=given.codec, lossy=bool(everybody[0]), counts=counts)
        self._stale.keep(mine, taken.array, given.codec, instead_of=copy)

    def allgather(self, outputs: list[Tensors], sources: Tensors, opts: Any = None) -> Any:
        del opts

        def job() -> None:
            for rooms, source in zip(outputs, sources, strict=True):
                given = self._given(source)
                taken = [self._taken(r, f"out{n}") for n, r in enumerate(rooms)]
                exchange.all_gather(self._group, given.array.view("u1").copy(), [t.array.view("u1") for t in taken])
                for one in taken:
                    one.give_back()

        return self._submit(outputs, job)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Any:
        works = [self._allgather_base(o, s, opts) for o, s in zip(outputs, sources, strict=True)]
        return works[-1]

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs: list[Tensors], sources: Tensors, opts: Any) -> Any:
        def job() -> None:
            given = self._given(sources[0])
            rooms = None
            taken: list[Staged] = []
            if self.rank() == opts.rootRank:
                taken = [self._taken(room, f"out{n}") for n, room in enumerate(outputs[0])]
                rooms = [one.array.view("u1") for one in taken]
            exchange.gather(self._group, given.array.view("u1").copy(), rooms, root=opts.rootRank)
            for one in taken:
                one.give_back()

        return self._submit([*sources, *(outputs[0] if outputs else [])], job)

    # --- the other way, and across -------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any) -> Any:
        def job() -> None:
            for tensor in tensors:
                staged = self._given(tensor)
                exchange.broadcast(self._group, staged.array.view("u1"), root=opts.rootRank)
                if self.rank() != opts.rootRank:
                    staged.give_back()

        return self._submit(tensors, job)

    def scatter(self, outputs: Tensors, sources: list[Tensors], opts: Any) -> Any:
        def job() -> None:
            taken = self._taken(outputs[0])
            parts = None
            if self.rank() == opts.rootRank:
                parts = [self._given(part, f"in{n}").array.view("u1") for n, part in enumerate(sources[0])]
            exchange.scatter(self._group, parts, taken.array.view("u1"), root=opts.rootRank)
            taken.give_back()

        return self._submit([*outputs, *(sources[0] if sources else [])], job)

    def alltoall(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Any:
        del opts

        def job() -> None:
            parts = [self._given(part, f"in{n}").array.view("u1") for n, part in enumerate(sources)]
            taken = [self._taken(room, f"out{n}") for n, room in enumerate(outputs)]
            exchange.all_to_all(self._group, parts, [one.array.view("u1") for one in taken])
            for one in taken:
                one.give_back()

        return self._submit([*outputs, *sources], job)

    def alltoall_base(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: list[int],
        source_splits: list[int],
        opts: Any = None,
    ) -> Any:
        del opts

        def job() -> None:
            given, taken = self._given(source), self._taken(output)
            parts = self._split(given, source, source_splits)
            exchange.all_to_all(self._group, parts, self._split(taken, output, output_splits))
            taken.give_back()

        return self._submit([output, source], job)

    all_to_all_single = alltoall_base

    def _split(self, staged: Staged, tensor: torch.Tensor, splits: list[int]) -> list[Bytes]:
        """Rows of the first dimension; none given means equal parts."""
        size = self.size()
        row = tensor[0].numel() if tensor.dim() and len(tensor) else 1
        counts = [n * row for n in splits] if splits else [tensor.numel() // size] * size
        out, at = [], 0
        for count in counts:
            out.append(staged.array[at : at + count].view("u1"))
            at += count
        return out

    # --- point to point: by the inner backend, over TCP ------------------------------------------------------------

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Any:
        return self._inner.send(tensors, destination, tag)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Any:
        return self._inner.recv(tensors, source, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        return self._inner.recv_anysource(tensors, tag)
