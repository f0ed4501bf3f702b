"""The most important parts first (MLT, Wang et al., NSDI 2024): packets of a first half are ordered by how large their
numbers are, so that a transport which repairs in order (policy `repair_order = first`) leaves the smallest missing.

Every packet says which part it is. In the second half, whose parts must all come sooner or later, the order is drawn
anew at every step."""

from __future__ import annotations

import numpy as np
import torch

from lossbench.contract import derive_seed
from lossbench.workloads.sync.coding.packed import FIRST, Packed, host
from lossbench.workloads.transport.packet.wire import Array, Bits, Bytes
from lossbench.workloads.transport.plan import evenly

PLACE_BYTES = 8  # as much as keeps the numbers behind it aligned


class Important(Packed):
    """See base.Channel."""

    def width(self, size: int, itemsize: int) -> int:
        return evenly(size * itemsize, self.inner.datagram_bytes, beside=PLACE_BYTES)

    def packets(self, count: int, itemsize: int, width: int) -> int:
        return -(-count // self._each(itemsize, width))

    def _each(self, itemsize: int, width: int) -> int:
        return (width - PLACE_BYTES) // itemsize

    def write(self, block: torch.Tensor, width: int, *, half: str) -> Bytes:
        self.say("the most important parts first")
        numbers = host(block)
        each = self._each(numbers.itemsize, width)
        table = np.zeros((self.packets(len(numbers), numbers.itemsize, width), each), numbers.dtype)
        table.reshape(-1)[: len(numbers)] = numbers
        order = self._order(block, len(table), each, first=half == FIRST)
        out = np.zeros((len(table), width), np.uint8)
        out[:, :PLACE_BYTES] = order.astype("<u8")[:, None].view(np.uint8)
        out[:, PLACE_BYTES : PLACE_BYTES + each * numbers.itemsize] = table[order].view(np.uint8)
        return out.reshape(-1)

    def _order(self, block: torch.Tensor, packets: int, each: int, *, first: bool) -> Array:
        if first:
            numbers = np.zeros(packets * each, np.float32)
            numbers[: block.numel()] = host(block.float())
            return np.argsort(-np.square(numbers).reshape(packets, each).sum(1), kind="stable")
        return np.random.default_rng(derive_seed(self.seed, "important", self._step, self.rank)).permutation(packets)

    def read(self, rows: Bytes, came: Bits, like: torch.Tensor) -> tuple[torch.Tensor, Bits, int]:
        table = rows.reshape(len(came), -1)
        places = np.ascontiguousarray(table[:, :PLACE_BYTES]).view("<u8")[:, 0]
        sound = came & (places < len(came))
        dtype = host(like[:0]).dtype
        each = self._each(dtype.itemsize, table.shape[1])
        numbers, there = np.zeros((len(came), each), dtype), np.zeros(len(came), np.bool_)
        parts = np.ascontiguousarray(table[sound, PLACE_BYTES : PLACE_BYTES + each * dtype.itemsize]).view(dtype)
        numbers[places[sound]] = parts
        there[places[sound]] = True
        bits = torch.from_numpy(numbers.reshape(-1)[: like.numel()].view(np.uint8))  # numpy has no bfloat16
        return bits.view(like.dtype).to(like.device), there, each
