"""`init_process_group("lossy")`: a torch.distributed backend whose reductions live with lost packets.

Lossy: SUM and AVG of float32, bfloat16 and float16 (all_reduce, reduce_scatter). Everything else must arrive and does:
broadcast, gather, all_to_all, barrier, integers, MAX. What loss means for the result: docs/collectives.md."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from lossbench.workloads.collective.moves import Moves, Tensors
from lossbench.workloads.collective.reduce import all_reduce, reduce_scatter
from lossbench.workloads.collective.staging import Staged
from lossbench.workloads.transport.packet.layout import even
from lossbench.workloads.transport.policy import Policy

OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}


def op_name(opts: Any) -> str:
    op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    for known, name in OPS.items():
        if op == known:
            return name
    raise NotImplementedError(f"the lossy backend has no {op}: it has {', '.join(OPS.values())}")


class LossyGroup(Moves):
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        op = op_name(opts)

        def job() -> None:
            for tensor in tensors:
                self._all_reduce(tensor, op)

        return self._submit(tensors, job)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def _all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        if tensor.is_sparse:
            raise NotImplementedError("the lossy backend has no sparse tensors")
        if tensor.dtype == torch.bool:
            op = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}.get(op, op)
        if tensor.is_complex():
            self._all_reduce(torch.view_as_real(tensor), op)
            return
        staged = Staged(tensor, self._pinned, fetch=False)
        counts = even(tensor.numel(), self.size())
        ready = staged.fetch_blocks(counts)
        lossy = self._lossy(staged, op)
        all_reduce(self._group, staged.array, codec=staged.codec, op=op, lossy=lossy, counts=counts, ready=ready)
        staged.give_back()

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        """Reliable, and only the root's tensor changes."""
        op = op_name(opts)

        def job() -> None:
            for tensor in tensors:
                staged = self._given(tensor.clone())
                all_reduce(self._group, staged.array, codec=staged.codec, op=op, lossy=False)
                if self.rank() == opts.rootRank:
                    staged.give_back()
                    tensor.copy_(staged.tensor)

        return self._submit(tensors, job)

    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        op = op_name(opts)
        if source.numel() != output.numel() * self.size():
            raise ValueError(f"reduce_scatter: {source.numel()} elements are not {self.size()} x {output.numel()}")

        def job() -> None:
            given = self._given(source)
            taken = self._taken(output)
            counts = (output.numel(),) * self.size()
            lossy = self._lossy(given, op)
            taken.array[:] = reduce_scatter(
                self._group, given.array, codec=given.codec, op=op, lossy=lossy, counts=counts
            )
            taken.give_back()

        return self._submit([output], job)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter(self, outputs: Tensors, sources: list[Tensors], opts: Any = None) -> Any:
        op = op_name(opts)

        def job() -> None:
            for output, parts in zip(outputs, sources, strict=True):
                flat = torch.cat([part.reshape(-1) for part in parts])
                given = self._given(flat)
                taken = self._taken(output)
                counts = tuple(part.numel() for part in parts)
                taken.array[:] = reduce_scatter(
                    self._group, given.array, codec=given.codec, op=op, lossy=self._lossy(given, op), counts=counts
                )
                taken.give_back()

        return self._submit(outputs, job)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Any:
        works = [self._reduce_scatter_base(o, s, opts) for o, s in zip(outputs, sources, strict=True)]
        return works[-1]  # in order: the last one ends last

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced


def create(options: Any, policy: Any = None) -> LossyGroup:
    """For torch: `policy` is what the user gave as pg_options."""
    if policy is not None and not isinstance(policy, Policy):
        raise TypeError(f"pg_options of the lossy backend is a Policy, not {type(policy).__name__}")
    return LossyGroup(
        options.store, options.group_rank, options.group_size, options.timeout, policy or Policy.from_environment()
    )


def register() -> None:
    if not hasattr(dist.Backend, "LOSSY"):
        dist.Backend.register_backend("lossy", create, extended_api=True, devices=["cpu", "cuda"])
