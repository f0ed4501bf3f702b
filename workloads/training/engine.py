"""Losses and gradients of all ranks in this process: one after the other, stacked (torch.func), or as one CUDA
graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from lossbench.workloads.errors import OptionError
from lossbench.workloads.sync.base import Strategy
from lossbench.workloads.training.data.batches import Batch

LossOf = Callable[[Any, Batch], torch.Tensor]
WARM_UP = 3


class Engine:
    """`__call__(batch)`: gradients into every rank's vector, losses back. `calls[k]` is what rank k calls (model,
    DDP)."""

    def __init__(
        self,
        *,
        calls: Sequence[Any],
        strategies: Sequence[Strategy],
        loss_of: LossOf,
        device: torch.device,
        precision: str,
    ) -> None:
        self.calls, self.flats, self.loss_of = list(calls), [s.flat for s in strategies], loss_of
        self.device, self.precision = device, precision
        for flat in self.flats:
            flat.collect()  # from now on the parameters' gradients are parts of the vector

    def cast(self) -> AbstractContextManager[Any]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def __call__(self, batch: Batch) -> torch.Tensor:
        losses = []
        for number, call in enumerate(self.calls):
            for parameter in self.flats[number].parameters:
                parameter.grad = None
            with self.cast():
                loss = self.loss_of(call, tuple(part[number] for part in batch))
            loss.backward()
            self.flats[number].collect()
            losses.append(loss.detach())
        return torch.stack(losses)


class Stacked(Engine):
    """All ranks in one batched call. Their vectors are the rows of `values` and `grads`."""

    def __init__(self, *, values: torch.Tensor, grads: torch.Tensor, **keys: Any) -> None:
        super().__init__(**keys)
        model, flat = self.calls[0], self.flats[0]
        names = {id(p): name for name, p in model.named_parameters()}
        self._names = [names[id(p)] for p in flat.parameters]
        self._values, self._grads = (self._split(matrix) for matrix in (values, grads))

        def loss(parameters: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
            with self.cast():
                return self.loss_of(lambda *given: torch.func.functional_call(model, parameters, given), batch)

        self._run = torch.func.vmap(torch.func.grad_and_value(loss), randomness="different")

    def _split(self, matrix: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = torch.split(matrix, self.flats[0].counts, dim=1)
        shapes = [p.shape for p in self.flats[0].parameters]
        return {n: part.unflatten(1, s) for n, part, s in zip(self._names, parts, shapes, strict=True)}

    def __call__(self, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            grads, losses = self._run(self._values, batch)
            for name, gradient in grads.items():
                self._grads[name].copy_(gradient)
        return losses.detach()


class Graphed(Engine):
    """The loop as one CUDA graph: launching so many small kernels one by one costs more than running them."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        self._graph: Any = None
        self._batch: Batch = ()
        self._losses = torch.empty(0)
        self._streams = [torch.cuda.Stream(self.device) for _ in self.calls]

    def _all(self) -> torch.Tensor:
        main, losses = torch.cuda.current_stream(self.device), []
        for number, stream in enumerate(self._streams):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                flat = self.flats[number]
                with self.cast():
                    loss = self.loss_of(self.calls[number], tuple(part[number] for part in self._batch))
                found = torch.autograd.grad(loss, flat.parameters)
                torch._foreach_copy_(flat.views(flat.grads), list(found))
                losses.append(loss.detach())
        for stream in self._streams:  # joined only now: the ranks run side by side
            main.wait_stream(stream)
        return torch.stack(losses)

    def _capture(self, batch: Batch) -> None:
        self._batch = tuple(part.clone() for part in batch)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._all()
        torch.cuda.current_stream(self.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._losses = self._all()

    def __call__(self, batch: Batch) -> torch.Tensor:
        if self._graph is None:
            self._capture(batch)
        for held, part in zip(self._batch, batch, strict=True):
            held.copy_(part)
        self._graph.replay()
        return self._losses.clone()


NAMES: dict[str, type[Engine]] = {"loop": Engine, "vmap": Stacked, "graph": Graphed}


def name_of(engine: Engine) -> str:
    return next(name for name, kind in NAMES.items() if type(engine) is kind)


def choose(wanted: str, *, device: torch.device, ranks: int, model: torch.nn.Module, wrapped: bool) -> type[Engine]:
    """`wrapped`: the strategy calls something else than the model itself (DDP)."""
    odd = any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm | torch.nn.RNNBase) for m in model.modules())
    if wanted == "auto":
        wanted = "loop"
        if not wrapped:
            stacks = ranks > 1 and not odd and getattr(model, "stackable", True)
            wanted = "graph" if device.type == "cuda" else "vmap" if stacks else "loop"
    if wrapped and wanted != "loop":
        raise OptionError("strategy ddp needs engine = loop: it averages gradients while autograd makes them")
    if wanted == "vmap" and odd:
        raise OptionError("engine vmap can't stack BatchNorm or LSTM layers: use loop or graph")
    if wanted == "graph" and device.type != "cuda":
        raise OptionError("engine graph needs a GPU: use loop or vmap")
    return NAMES[wanted]
