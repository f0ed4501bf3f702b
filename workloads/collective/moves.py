"""The lossy backend's moves: what is not a reduction. All arrives; gathers of parameters may be stale if asked."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.base import Base
from lossbench.workloads.collective.reduce import all_gather, all_reduce, is_lossy
from lossbench.workloads.collective.staging import Staged, apart, as_long, one_type, rooms_for_all
from lossbench.workloads.collective.stale import StaleCopies
from lossbench.workloads.collective.work import AllWork
from lossbench.workloads.transport.half import Result
from lossbench.workloads.transport.jobs import Asked
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.packet.wire import Bytes

Tensors = list[torch.Tensor]


class Moves(Base):
    def __init__(self, *given: Any, **keys: Any) -> None:
        super().__init__(*given, **keys)
        self._stale = StaleCopies()

    def _given(
        self, tensor: torch.Tensor, name: str = "in", *, numbered: bool = True, only_read: bool = False
    ) -> Staged:
        """`numbered`: in a room of this job's own; several jobs may be under way. `only_read`: nothing is written to
        it."""
        staged = Staged(tensor, self._pinned, name=f"{name}.{self._room}" if numbered else name, only_read=only_read)
        staged.wait()
        return staged

    def _taken(self, tensor: torch.Tensor, name: str = "out", *, numbered: bool = True) -> Staged:
        return Staged(tensor, self._pinned, name=f"{name}.{self._room}" if numbered else name, fetch=False)

    def _rooms_of_all(self, *tensors: torch.Tensor) -> list[Staged]:
        """Of ranks: what is there stays as it is in the places of those who are absent."""
        fetch = len(self._endpoint.present) < self.size()
        out = [Staged(one, self._pinned, name=f"out{n}.{self._room}", fetch=fetch) for n, one in enumerate(tensors)]
        for one in out:
            one.wait()
        return out

    def _finish(self, asked: Asked) -> None:
        """Within a job of several steps."""
        exchange.finish(self._group, asked)

    @staticmethod
    def _then_back(asked: Asked, *taken: Staged) -> Asked:
        """And what arrived to where the tensors are."""

        def then(results: list[Result]) -> None:
            if asked.then is not None:
                asked.then(results)
            for one in taken:
                one.give_back()

        return Asked(halves=asked.halves, then=then)

    # --- gathers -------------------------------------------------------------------------------------------------

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        one_type("all_gather", output, source)
        as_long("all_gather", output, source.numel() * self.size())

        def job() -> Asked | None:
            given = self._given(source, only_read=True)
            (taken,) = self._rooms_of_all(output)
            if self.policy.fsdp_gather == "stale" and is_lossy(given.codec, "sum"):
                self._gather_with_copies(given, taken)
                taken.give_back()
                return None
            parts = [part.view("u1") for part in taken.array.reshape(self.size(), -1)]
            return self._then_back(self._ask_all_gather(given, parts), taken)

        stale = self.policy.fsdp_gather == "stale"
        return self._begin([output, source], job, opts=opts, steps=stale)

    all_gather_single = _allgather_base

    def _ask_all_gather(self, given: Staged, rooms: list[Bytes]) -> Asked:
        """Often in place: its own part is part of the output already."""
        mine = given.array.view("u1")
        own = rooms[self.rank()]
        if not np.may_share_memory(mine, own):
            own[:] = mine
        given_to = dict.fromkeys(self._endpoint.peers, own)
        taken = {peer: rooms[peer] for peer in self._endpoint.peers}
        return exchange.ask(self._group, send=given_to, receive=taken, call="all_gather", dtype=given.codec.name)

    def _gather_with_copies(self, given: Staged, taken: Staged) -> None:
        mine = given.array.copy()  # FSDP gathers in place: its own shard is part of the output
        copy = self._stale.find(mine, len(taken.array), given.codec)
        everybody = np.array([copy is not None], dtype=np.int8)
        all_reduce(self._group, everybody, codec=CODECS["int8"], op="min", lossy=False)  # all lossy, or none
        if copy is not None:
            for rank in self._endpoint.present:
                taken.array.reshape(self.size(), -1)[rank] = copy.reshape(self.size(), -1)[rank]
        counts = (len(mine),) * self.size()
        all_gather(self._group, mine, taken.array, codec=given.codec, lossy=bool(everybody[0]), counts=counts)
        self._stale.keep(mine, taken.array, given.codec, instead_of=copy)

    def allgather(self, outputs: list[Tensors], sources: Tensors, opts: Any = None) -> Any:
        """Ranks may give different numbers of elements, if all know how many."""
        for rooms, source in zip(outputs, sources, strict=True):
            rooms_for_all("all_gather", rooms, size=self.size())
            one_type("all_gather", source, *rooms)
            as_long("all_gather", rooms[self.rank()], source.numel())

        def ask(rooms: Tensors, source: torch.Tensor) -> Asked:
            given = self._given(source, only_read=True)
            taken = self._rooms_of_all(*rooms)
            return self._then_back(self._ask_all_gather(given, [one.array.view("u1") for one in taken]), *taken)

        def job() -> None:
            for rooms, source in zip(outputs, sources, strict=True):
                self._finish(ask(rooms, source))

        if len(sources) == 1:
            return self._begin([*outputs, sources], lambda: ask(outputs[0], sources[0]), opts=opts)
        return self._begin([*outputs, sources], job, opts=opts, steps=True)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Any:
        works = [self._allgather_base(o, s, opts) for o, s in zip(outputs, sources, strict=True)]
        return AllWork(works, outputs, self._results)  # one may end before those that were begun before it

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs: list[Tensors], sources: Tensors, opts: Any) -> Any:
        root = opts.rootRank
        if self.rank() == root:
            rooms_for_all("gather", outputs[0], size=self.size())
            one_type("gather", sources[0], *outputs[0])
            for room in outputs[0]:
                as_long("gather", room, sources[0].numel())

        def job() -> Asked:
            given = self._given(sources[0], only_read=True)
            mine, name = given.array.view("u1"), given.codec.name
            if self.rank() != root:
                return exchange.ask(
                    self._group, send={root: mine}, receive={}, call="gather", dtype=name, size=len(given.array)
                )
            taken = self._rooms_of_all(*outputs[0])
            taken[root].array[:] = given.array
            rooms = {peer: taken[peer].array.view("u1") for peer in self._endpoint.peers}
            asked = exchange.ask(self._group, send={}, receive=rooms, call="gather", dtype=name, size=len(given.array))
            return self._then_back(asked, *taken)

        return self._begin([*sources, *(outputs[0] if outputs else [])], job, opts=opts)

    # --- the other way, and across -------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any) -> Any:
        root = opts.rootRank

        def ask(tensor: torch.Tensor) -> Asked:
            staged = self._given(tensor)
            asked = exchange.ask_broadcast(
                self._group, staged.array.view("u1"), root=root, dtype=staged.codec.name, size=len(staged.array)
            )
            return asked if self.rank() == root else self._then_back(asked, staged)

        def job() -> None:
            for tensor in tensors:
                self._finish(ask(tensor))

        if len(tensors) == 1:
            return self._begin(tensors, lambda: ask(tensors[0]), opts=opts)
        return self._begin(tensors, job, opts=opts, steps=True)

    def scatter(self, outputs: Tensors, sources: list[Tensors], opts: Any) -> Any:
        root = opts.rootRank
        if self.rank() == root:
            rooms_for_all("scatter", sources[0], size=self.size())
            one_type("scatter", outputs[0], *sources[0])
            for part in sources[0]:
                as_long("scatter", part, outputs[0].numel())

        def job() -> Asked:
            taken = self._taken(outputs[0])
            room, name, size = taken.array.view("u1"), taken.codec.name, len(taken.array)
            if self.rank() != root:
                asked = exchange.ask(self._group, send={}, receive={root: room}, call="scatter", dtype=name, size=size)
                return self._then_back(asked, taken)
            parts = [self._given(part, f"in{n}", only_read=True).array.view("u1") for n, part in enumerate(sources[0])]
            parts = apart(parts, [room])
            room[:] = parts[root]
            given = {peer: parts[peer] for peer in self._endpoint.peers}
            return self._then_back(
                exchange.ask(self._group, send=given, receive={}, call="scatter", dtype=name, size=size), taken
            )

        return self._begin([*outputs, *(sources[0] if sources else [])], job, opts=opts)

    def alltoall(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Any:
        for side in (outputs, sources):
            rooms_for_all("all_to_all", side, size=self.size())
        one_type("all_to_all", *sources, *outputs)
        as_long("all_to_all", outputs[self.rank()], sources[self.rank()].numel())

        def job() -> Asked:
            given = [self._given(part, f"in{n}", only_read=True) for n, part in enumerate(sources)]
            taken = self._rooms_of_all(*outputs)
            parts, rooms = ([one.array.view("u1") for one in side] for side in (given, taken))
            return self._then_back(self._ask_across(parts, rooms, given[0].codec.name), *taken)

        return self._begin([*outputs, *sources], job, opts=opts)

    def _ask_across(self, parts: list[Bytes], rooms: list[Bytes], name: str) -> Asked:
        peers = self._endpoint.peers
        parts = apart(parts, rooms)
        rooms[self.rank()][:] = parts[self.rank()]
        given, taken = ({peer: side[peer] for peer in peers} for side in (parts, rooms))
        return exchange.ask(self._group, send=given, receive=taken, call="all_to_all", dtype=name)

    def alltoall_base(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: list[int],
        source_splits: list[int],
        opts: Any = None,
    ) -> Any:
        one_type("all_to_all_single", source, output)
        sides = (("output", output, output_splits), ("input", source, source_splits))
        counts = [self._counts(what, tensor, splits) for what, tensor, splits in sides]
        room, part = (side[self.rank()] for side in counts)
        if room != part:
            raise ValueError(f"all_to_all_single: a part of {part} elements where {room} are needed")

        def job() -> Asked:
            given, (taken,) = self._given(source, only_read=True), self._rooms_of_all(output)
            parts, rooms = _split(given, counts[1]), _split(taken, counts[0])
            return self._then_back(self._ask_across(parts, rooms, given.codec.name), taken)

        return self._begin([output, source], job, opts=opts)

    all_to_all_single = alltoall_base

    def _counts(self, what: str, tensor: torch.Tensor, splits: list[int]) -> list[int]:
        """Elements for each rank, by rows of the first dimension; no splits mean equal parts. Refused as others do;
        nothing was sent yet."""
        rows, size = len(tensor) if tensor.dim() else 1, self.size()
        if splits and (len(splits) != size or sum(splits) != rows or min(splits) < 0):
            raise ValueError(
                f"all_to_all_single: {what} splits {list(splits)} do not make {rows} rows for {size} ranks"
            )
        if not splits and rows % size:
            raise ValueError(f"all_to_all_single: {rows} rows of {what} can't be divided among {size} ranks")
        row = tensor.numel() // rows if rows else 1
        return [n * row for n in splits] if splits else [tensor.numel() // size] * size

    # --- point to point: by the inner backend, over TCP ------------------------------------------------------------

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Any:
        return self._inner.send(tensors, destination, tag)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Any:
        return self._inner.recv(tensors, source, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        return self._inner.recv_anysource(tensors, tag)


def _split(staged: Staged, counts: list[int]) -> list[Bytes]:
    ends = [*itertools.accumulate(counts)]
    return [staged.array[end - count : end].view("u1") for count, end in zip(counts, ends, strict=True)]
