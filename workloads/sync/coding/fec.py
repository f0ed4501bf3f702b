"""Forward error correction around a channel: the middle between lossy and reliable. Of every `k` packets and `m` of
parity that go with them any `k` are enough.

Reed-Solomon over bytes (a Cauchy matrix whose first row is all ones, so that one packet of parity is their exclusive
or). Neighbours on the wire belong to different groups: a burst takes a little of many."""

from __future__ import annotations

import numpy as np
import torch

from lossbench.workloads.sync.channels.base import Channel
from lossbench.workloads.sync.coding import gf256
from lossbench.workloads.sync.coding.packed import Packed, host
from lossbench.workloads.transport.packet.wire import Bits, Bytes


class Fec(Packed):
    """See base.Channel."""

    def __init__(self, inner: Channel, k: int = 10, m: int = 2) -> None:
        super().__init__(inner)
        self.k, self.m = k, m
        self._matrix = gf256.cauchy(m, k)

    @staticmethod
    def told(numbers: list[int]) -> tuple[int, int]:
        """fec(10,2)."""
        if len(numbers) != 2 or not (1 <= numbers[0] <= 128 and 1 <= numbers[1] <= 64):
            raise ValueError(f"fec({','.join(map(str, numbers))}): packets of data (1 to 128), of parity (1 to 64)")
        return numbers[0], numbers[1]

    def packets(self, count: int, itemsize: int, width: int) -> int:
        data = -(-count * itemsize // width)
        return data + self.m * self._groups(data)

    def _groups(self, data: int) -> int:
        return -(-data // self.k)

    def write(self, block: torch.Tensor, width: int, *, half: str) -> Bytes:
        del half
        self.say(f"{self.m} packets of parity for {self.k} of data")
        flat = host(block).view(np.uint8)
        data = -(-len(flat) // width)
        groups = self._groups(data)
        table = self._table(groups, width)
        table.reshape(-1)[: len(flat)] = flat
        parity = gf256.combine(self._matrix[:, : len(table)], table)
        return np.concatenate([table.reshape(-1)[: data * width], parity.reshape(-1)])

    def _table(self, groups: int, width: int) -> Bytes:
        """Packet n is in group n modulo `groups`: rows are packets of one number within their groups."""
        return np.zeros((self.k, groups, width), np.uint8)

    def read(self, rows: Bytes, came: Bits, like: torch.Tensor) -> tuple[torch.Tensor, Bits, int]:
        size = like.element_size()
        width = len(rows) // len(came)
        data = -(-like.numel() * size // width)
        groups = self._groups(data)
        table, there = self._table(groups, width), np.ones((self.k, groups), np.bool_)
        table.reshape(-1)[: data * width] = rows[: data * width]
        there.reshape(-1)[:data] = came[:data]
        if not came[:data].all():
            gf256.restore(
                table, there, rows[data * width :].reshape(self.m, groups, width), came[data:].reshape(self.m, groups),
                self._matrix,
            )  # fmt: skip
        flat = table.reshape(-1)[: like.numel() * size].copy()
        numbers = torch.from_numpy(flat).view(like.dtype).to(like.device)
        return numbers, there.reshape(-1)[:data], width // size
