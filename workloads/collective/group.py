"""`init_process_group("lossy")`: a torch.distributed backend whose reductions live with lost packets.

Lossy: SUM and AVG of float32, bfloat16 and float16 (all_reduce, reduce_scatter). Everything else must arrive and does:
broadcast, gather, all_to_all, barrier, integers, MAX. What loss means for the result: docs/collectives.md."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.context import PLANS
from lossbench.workloads.collective.moves import Moves, Tensors
from lossbench.workloads.collective.reduce import ask_all_reduce, is_lossy, reduce_scatter
from lossbench.workloads.collective.short import Shape
from lossbench.workloads.collective.staging import codec_of, one_type, plain
from lossbench.workloads.collective.work import AllWork
from lossbench.workloads.transport.half import Result
from lossbench.workloads.transport.jobs import Asked
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.plan import Plan, address
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
NAMES = {hash(op): name for op, name in OPS.items()}  # torch's options hold another type, equal and of the same hash
BITWISE = ("band", "bor", "bxor")


def op_name(opts: Any) -> str:
    if opts is None:
        return "sum"
    name = NAMES.get(hash(opts.reduceOp))
    if name is None:
        raise NotImplementedError(f"the lossy backend has no {opts.reduceOp}: it has {', '.join(OPS.values())}")
    return name


def op_for(tensor: torch.Tensor, op: str) -> str:
    """What is done to such elements; what can't be is refused before anything is sent."""
    kind = str(tensor.dtype).removeprefix("torch.")
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    if tensor.is_sparse:
        raise NotImplementedError("the lossy backend has no sparse tensors")
    if op == "avg" and whole:
        raise NotImplementedError(f"the lossy backend has no AVG of {kind}: sum, then divide as you like")
    if op in BITWISE and not whole:
        raise NotImplementedError(f"the lossy backend has no {op.upper()} of {kind}: it has no bits to combine")
    if tensor.is_complex() and op not in ("sum", "avg"):
        raise NotImplementedError(f"the lossy backend has no {op.upper()} of {kind}: it has SUM and AVG")
    if tensor.dtype == torch.bool:
        return {"sum": "bor", "max": "bor", "product": "band", "min": "band"}.get(op, op)
    return op


def goes_in_two_halves(tensor: torch.Tensor, op: str) -> bool:
    """Means and sums of floating-point numbers: the engine does all of it."""
    name = str(tensor.dtype).removeprefix("torch.")
    return not tensor.is_sparse and name in CODECS and is_lossy(CODECS[name], op)


class LossyGroup(Moves):
    def __init__(self, *given: Any, **keys: Any) -> None:
        super().__init__(*given, **keys)
        self._plans: dict[object, Plan] = {}
        self._shapes: dict[object, Shape] = {}

    def _forget(self) -> None:
        self._plans.clear()
        self._shapes.clear()

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        op = op_name(opts)
        tensor = tensors[0]
        if len(tensors) == 1:
            if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and self._endpoint.idle():
                shape = self._shapes.get((tensor.numel(), tensor.dtype, op)) or self._shape(tensor, op)
                if shape is not None:
                    place = tensor.data_ptr()
                    span = ((place, place + shape.bytes),)
                    if not self._under_way.before(span):
                        work = shape.begin(tensor, place, self._next_step(), self._results)
                        self._under_way.add(work, span)
                        return work
            if goes_in_two_halves(tensor, op):
                return self._begin(tensors, lambda: self._ask_all_reduce(tensor, op), opts=opts)

        ops = [op_for(one, op) for one in tensors]

        def job() -> None:
            for one, its_op in zip(tensors, ops, strict=True):
                self._all_reduce(one, its_op)

        return self._begin(tensors, job, opts=opts, steps=True)

    def _shape(self, tensor: torch.Tensor, op: str) -> Shape | None:
        """None if it can't go the short way."""
        if not goes_in_two_halves(tensor, op):
            return None
        if len(self._shapes) > PLANS:
            self._shapes.clear()
        lossy = tensor.numel() * tensor.element_size() >= self.policy.reliable_below_bytes
        out = self._shapes[tensor.numel(), tensor.dtype, op] = Shape(
            self._group, self._plan_of(tensor), op=op, lossy=lossy
        )
        return out

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def _ask_all_reduce(self, tensor: torch.Tensor, op: str) -> Asked:
        lossy = tensor.numel() * tensor.element_size() >= self.policy.reliable_below_bytes
        return self._ask_staged(tensor, self._plan_of(tensor), op=op, lossy=lossy)

    def _plan_of(self, tensor: torch.Tensor) -> Plan:
        key = (tensor.numel(), tensor.dtype)
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) > PLANS:
                self._plans.clear()
            found = self._plans[key] = self._group.plan(self._endpoint.even(key[0]), codec_of(tensor))
        return found

    def _ask_staged(self, tensor: torch.Tensor, plan: Plan, *, op: str, lossy: bool) -> Asked:
        """From a GPU block by block: what has been copied is sent while the rest comes."""
        staged = self._taken(tensor, "all_reduce")
        wait_for = staged.fetch_blocks(plan.layout.counts, first=self.rank())
        held = wait_for is not None
        asked = ask_all_reduce(
            self._group, address(staged.array), plan=plan, op=op, lossy=lossy, held=held, holds=staged
        )
        if wait_for is not None:
            first = asked.halves[0]
            for number, block in enumerate(first.plan[0].template["block"].tolist()):
                wait_for(block)
                self._endpoint.engine.release(first, number)

        def then(results: list[Result]) -> None:
            assert asked.then is not None
            asked.then(results)
            staged.give_back()

        return Asked(halves=asked.halves, then=then)

    def _all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """Until it ends; of anything."""
        if tensor.is_complex():
            parts = _real(tensor)
            self._all_reduce(parts, op)
            _back(parts, tensor)
        elif goes_in_two_halves(tensor, op):
            self._finish(self._ask_all_reduce(tensor, op))
        else:
            staged = self._given(tensor)
            exchange.all_reduce(self._group, staged.array, codec=staged.codec, op=op)
            staged.give_back()

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        """Reliable, and only the root's tensor changes."""
        ops = [op_for(tensor, op_name(opts)) for tensor in tensors]

        def job() -> None:
            for tensor, op in zip(tensors, ops, strict=True):
                copy = plain(tensor).clone()
                staged = self._given(_real(copy))
                exchange.all_reduce(self._group, staged.array, codec=staged.codec, op=op)
                if self.rank() == opts.rootRank:
                    staged.give_back()
                    tensor.copy_(copy)

        return self._begin(tensors, job, opts=opts, steps=True)

    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        if source.numel() != output.numel() * self.size():
            raise ValueError(f"reduce_scatter: {source.numel()} elements are not {self.size()} x {output.numel()}")
        one_type("reduce_scatter", source, output)
        op = op_for(source, op_name(opts))

        def job() -> None:
            given, out = self._given(_real(source), only_read=True), _real(output)
            taken = self._taken(out)
            counts = (out.numel(),) * self.size()
            lossy = self._lossy(given, op)
            taken.array[:] = reduce_scatter(
                self._group, given.array, codec=given.codec, op=op, lossy=lossy, counts=counts
            )
            taken.give_back()
            _back(out, output)

        return self._begin([output, source], job, opts=opts, steps=True)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter(self, outputs: Tensors, sources: list[Tensors], opts: Any = None) -> Any:
        ops = [op_for(output, op_name(opts)) for output in outputs]
        for output, parts in zip(outputs, sources, strict=True):
            one_type("reduce_scatter", output, *parts)
            if len(parts) != self.size() or parts[self.rank()].numel() != output.numel():
                found = [part.numel() for part in parts]
                raise ValueError(
                    f"reduce_scatter: parts of {found} elements for {self.size()} ranks, {output.numel()} here"
                )

        def job() -> None:
            for output, parts, op in zip(outputs, sources, ops, strict=True):
                reals, out = [_real(part) for part in parts], _real(output)
                given = self._given(torch.cat([part.reshape(-1) for part in reals]))
                taken = self._taken(out)
                counts = tuple(part.numel() for part in reals)
                taken.array[:] = reduce_scatter(
                    self._group, given.array, codec=given.codec, op=op, lossy=self._lossy(given, op), counts=counts
                )
                taken.give_back()
                _back(out, output)

        return self._begin([*outputs, *(part for parts in sources for part in parts)], job, opts=opts, steps=True)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Any:
        works = [self._reduce_scatter_base(o, s, opts) for o, s in zip(outputs, sources, strict=True)]
        return AllWork(works, outputs, self._results)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Sums and means of complex numbers are those of their parts. The same memory, or that of a copy: see `_back`."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _back(parts: torch.Tensor, tensor: torch.Tensor) -> None:
    """What came of `_real(tensor)`, if that is a copy."""
    if tensor.is_conj():
        tensor.copy_(torch.view_as_complex(parts))


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
