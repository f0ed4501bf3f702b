"""Fewer bits on the wire: bfloat16 or int8, half or a quarter of the bytes and packets; sums are made in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lossbench.contract import derive_seed
from lossbench.workloads.sync.channels.base import Channel, Half
from lossbench.workloads.sync.coding.around import Around, is_its_own_truth
from lossbench.workloads.sync.coding.packed import FIRST, Packed, host
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.packet.wire import Array, Bits, Bytes
from lossbench.workloads.transport.plan import evenly

SCALE_BYTES, MOST = 4, 127


class Bfloat16(Around):
    """See base.Channel."""

    def begin_scatter(self, values: torch.Tensor, **how: Any) -> Half:
        self.say("bfloat16 on the wire")
        return _Widened(self.inner.begin_scatter(values.bfloat16(), **how), values.dtype)

    def begin_gather(self, mine: torch.Tensor, out: torch.Tensor, *, zero_missing: bool = False, **how: Any) -> Half:
        """What is missing keeps all its bits: it is told apart by a number that no mean can be."""
        narrow = torch.full_like(out, float("nan"), dtype=torch.bfloat16)
        half = self.inner.begin_gather(mine.bfloat16(), narrow, **how)
        start, own = sum(how["counts"][: how["owners"][self.rank]]), mine.numel()
        kept = slice(start, start + own) if is_its_own_truth(mine, out[start:]) else slice(0, 0)
        return _Landed(half, narrow, out, kept, zero_missing=zero_missing)


class _Widened:
    def __init__(self, half: Half, dtype: torch.dtype) -> None:
        self._half, self._dtype = half, dtype

    def wait(self) -> tuple[torch.Tensor, Account]:
        out, account = self._half.wait()
        return out.to(self._dtype), account


class _Landed:
    def __init__(self, half: Half, narrow: torch.Tensor, out: torch.Tensor, kept: slice, *, zero_missing: bool) -> None:
        """`kept`: an owner's values, which are not rounded where they are."""
        self._half, self._narrow, self._out, self._kept, self._zero = half, narrow, out, kept, zero_missing

    def wait(self) -> tuple[torch.Tensor, Account]:
        _, account = self._half.wait()
        came = ~torch.isnan(self._narrow)
        came[self._kept] = False
        self._out[came] = self._narrow[came].to(self._out.dtype)
        if self._zero:
            came[self._kept] = True
            self._out[~came] = 0.0
        return self._out, account


class Int8(Packed):
    """A byte a number (QSDP, Markov et al., ICML 2023): every packet has the scale of its own numbers, so whatever
    comes can be read. Rounded up or down by chance in the first half, whose mean is right on average; to the nearest in
    the second, where all ranks must have the same."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self._drawn = 0

    def width(self, size: int, itemsize: int) -> int:
        del itemsize
        return evenly(size, self.inner.datagram_bytes, beside=SCALE_BYTES)

    def packets(self, count: int, itemsize: int, width: int) -> int:
        del itemsize
        return -(-count // (width - SCALE_BYTES))

    def write(self, block: torch.Tensor, width: int, *, half: str) -> Bytes:
        self.say("int8 on the wire, a scale a packet")
        each = width - SCALE_BYTES
        rows = self.packets(block.numel(), 1, width)
        numbers = np.zeros((rows, each), np.float32)
        numbers.reshape(-1)[: block.numel()] = host(block.float())
        scale = np.abs(numbers).max(1, initial=0.0) / MOST
        with np.errstate(invalid="ignore", divide="ignore"):
            steps = numbers / np.where(scale == 0, 1, scale)[:, None]
            steps = np.floor(steps + self._chance(steps.shape)) if half == FIRST else np.rint(steps)
        out = np.empty((rows, width), np.uint8)
        out[:, :SCALE_BYTES] = scale.astype(np.float32)[:, None].view(np.uint8)
        out[:, SCALE_BYTES:] = np.nan_to_num(np.clip(steps, -MOST, MOST)).astype(np.int8).view(np.uint8)
        return out.reshape(-1)

    def read(self, rows: Bytes, came: Bits, like: torch.Tensor) -> tuple[torch.Tensor, Bits, int]:
        table = rows.reshape(len(came), -1)
        scale = np.ascontiguousarray(table[:, :SCALE_BYTES]).view(np.float32)
        numbers = (table[:, SCALE_BYTES:].view(np.int8) * scale).reshape(-1)[: like.numel()]
        return torch.from_numpy(numbers).to(like.device), came, table.shape[1] - SCALE_BYTES

    def _chance(self, shape: tuple[int, ...]) -> Array:
        self._drawn += 1
        random = np.random.default_rng(derive_seed(self.seed, "int8", self._step, self.rank, self._drawn))
        return random.random(shape, dtype=np.float32)
