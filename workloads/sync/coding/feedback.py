"""Error feedback around a channel: what was lost of a worker's own contribution joins its next one (Seide et al. 2014,
Karimireddy et al. 2019, who lose by compression what a network loses here).

Owners say which packets came, reliably, while the second half is under way; sums are divided by the number of workers,
since what is missing is not gone but late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lossbench.workloads.sync.channels.base import Carried, Channel, Half
from lossbench.workloads.sync.channels.means import spread
from lossbench.workloads.sync.coding.packed import SECOND, Packed, host
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.packet.wire import Bits, Bytes
from lossbench.workloads.transport.plan import Parcels


@dataclass
class _Told:
    """What others say of one exchange, under way."""

    carried: Carried
    given: torch.Tensor
    counts: tuple[int, ...]
    owners: tuple[int, ...]
    width: int


class ErrorFeedback(Packed):
    """See base.Channel."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        if inner.members is not None:
            raise ValueError("error_feedback can't go on without a rank that is gone (absent=continue)")
        self._told: dict[int, _Told] = {}

    def packets(self, count: int, itemsize: int, width: int) -> int:
        return -(-count * itemsize // width)

    def write(self, block: torch.Tensor, width: int, *, half: str) -> Bytes:
        del half
        flat = host(block).view(np.uint8)
        out = np.zeros(-(-len(flat) // width) * width, np.uint8)
        out[: len(flat)] = flat
        return out

    def read(self, rows: Bytes, came: Bits, like: torch.Tensor) -> tuple[torch.Tensor, Bits, int]:
        size = like.element_size()
        flat = torch.from_numpy(rows[: like.numel() * size])
        return flat.view(like.dtype).to(like.device), came, len(rows) // len(came) // size

    def begin_scatter(self, values: torch.Tensor, *, slot: int = 0, normaliser: str = "world", **how: Any) -> Half:
        del normaliser
        self.say("what is lost joins the next step")
        given = values + self._late(slot) if slot in self._told else values.clone()
        half = super().begin_scatter(given, normaliser="world", **how)
        return _Telling(self, half, given, slot, how["counts"], how["owners"])

    def begin_gather(self, mine: torch.Tensor, out: torch.Tensor, **how: Any) -> Half:
        """What is lost of means is nobody's contribution: as without."""
        return self.inner.begin_gather(mine, out, **how)

    def _late(self, slot: int) -> torch.Tensor:
        """What others did not get of what was given last time."""
        told = self._told.pop(slot)
        said, _ = told.carried.wait()
        out = torch.zeros_like(told.given)
        parts, lates = (torch.split(one, list(told.counts)) for one in (told.given, out))
        for peer, bits in said.items():
            block = told.owners[peer]
            packets = self.packets(told.counts[block], told.given.element_size(), told.width)
            came = np.unpackbits(bits, count=packets).astype(np.bool_)
            there = spread(came, told.width // told.given.element_size(), parts[block])
            lates[block].copy_(torch.where(there, 0.0, parts[block]))
        return out

    def tell(
        self, given: torch.Tensor, slot: int, counts: tuple[int, ...], owners: tuple[int, ...], met: Account
    ) -> None:
        """Each peer which of its packets came."""
        width = self.width(max(counts), given.element_size())
        packets = [self.packets(count, given.element_size(), width) for count in counts]
        send = {peer: np.packbits(bits) for peer, bits in met.arrived.items()}
        sizes = {
            peer: -(-packets[owners[peer]] // 8) for peer in self.present if peer != self.rank and packets[owners[peer]]
        }
        carried = self.inner.begin_exchange(send, sizes, half=SECOND, size=sum(counts), cut=Parcels(), reliable=True)
        self._told[slot] = _Told(carried, given, counts, owners, width)


class _Telling:
    """A first half under way, whose senders are told what came of it."""

    def __init__(
        self,
        coding: ErrorFeedback,
        half: Half,
        given: torch.Tensor,
        slot: int,
        counts: tuple[int, ...],
        owners: tuple[int, ...],
    ) -> None:
        self._coding, self._half, self._about = coding, half, (given, slot, counts, owners)

    def wait(self) -> tuple[torch.Tensor, Account]:
        out, account = self._half.wait()
        self._coding.tell(*self._about, account)
        return out, account
