"""Codings that know what is in a packet: blocks become packets of their own making, and means are made of what can be
read of those that came."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lossbench.contract import HALVES
from lossbench.workloads.collective.staging import as_array
from lossbench.workloads.sync.channels.base import Carried, Channel, Half
from lossbench.workloads.sync.channels.means import Means, spread
from lossbench.workloads.sync.coding.around import Around, is_its_own_truth
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.packet.wire import Array, Bits, Bytes
from lossbench.workloads.transport.plan import Parcels, evenly

FIRST, SECOND = "reduce_scatter", "all_gather"


class Packed(Around):
    """See base.Channel. A coding says how a block is written and read."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self._step = 0
        self.means = Means()

    def width(self, size: int, itemsize: int) -> int:
        """Bytes a packet, for a call whose longest block has so many numbers."""
        return evenly(size * itemsize, self.inner.datagram_bytes)

    def packets(self, count: int, itemsize: int, width: int) -> int:
        """That a block of so many numbers becomes."""
        raise NotImplementedError

    def write(self, block: torch.Tensor, width: int, *, half: str) -> Bytes:
        """One after the other, `width` bytes each."""
        raise NotImplementedError

    def read(self, rows: Bytes, came: Bits, like: torch.Tensor) -> tuple[torch.Tensor, Bits, int]:
        """The numbers of a block, which data packets of it are there now, and how many numbers each of them has."""
        raise NotImplementedError

    # --- the two halves ----------------------------------------------------------------------------------------------

    def set_step(self, step: int) -> None:
        self._step = step
        super().set_step(step)

    def begin_scatter(
        self,
        values: torch.Tensor,
        *,
        counts: tuple[int, ...],
        owners: tuple[int, ...],
        normaliser: str = "count",
        slot: int = 0,
    ) -> Half:
        del slot
        blocks = torch.split(values, list(counts))
        width, mine = self.width(max(counts), values.element_size()), owners[self.rank]
        peers = [peer for peer in self.present if peer != self.rank]
        send = {peer: self.write(blocks[owners[peer]], width, half=FIRST) for peer in peers if counts[owners[peer]]}
        room = self.packets(counts[mine], values.element_size(), width) * width
        cut = Parcels(width=width, sent=owners, taken=(mine,) * self.world)
        sizes = dict.fromkeys(peers, room) if counts[mine] else {}
        carried = self.inner.begin_exchange(send, sizes, half=FIRST, size=sum(counts), cut=cut)
        return _Mean(self, carried, blocks[mine], normaliser)

    def begin_gather(
        self,
        mine: torch.Tensor,
        out: torch.Tensor,
        *,
        counts: tuple[int, ...],
        owners: tuple[int, ...],
        zero_missing: bool = False,
        slot: int = 0,
    ) -> Half:
        del slot
        blocks = torch.split(out, list(counts))
        width, block = self.width(max(counts), out.element_size()), owners[self.rank]
        peers = [peer for peer in self.present if peer != self.rank]
        rows = self.write(mine, width, half=SECOND)
        sizes = {
            peer: self.packets(counts[owners[peer]], out.element_size(), width) * width
            for peer in peers
            if counts[owners[peer]]
        }
        cut = Parcels(width=width, sent=(block,) * self.world, taken=owners)
        send = dict.fromkeys(peers, rows) if counts[block] else {}
        carried = self.inner.begin_exchange(send, sizes, half=SECOND, size=sum(counts), cut=cut)
        if not is_its_own_truth(mine, blocks[block]):  # all have the same numbers, also whoever sent them
            packets = len(rows) // width
            blocks[block].copy_(self.read(rows, np.ones(packets, np.bool_), mine)[0] if packets else mine)
        return _Landed(self, carried, out, {peer: blocks[owners[peer]] for peer in sizes}, zero_missing=zero_missing)

    def account(self, half: str, wire: Account, arrived: dict[int, Bits]) -> Account:
        """What a strategy met: data that is not there. What the wire lost the transport counts."""
        missing = sum(len(bits) - int(bits.sum()) for bits in arrived.values())
        cut = min(wire.cut, missing)  # parity, too, may be among what was cut
        return Account(
            half=HALVES[half],
            step=self._step,
            ended=wire.ended,
            seconds=wire.seconds,
            waited=wire.waited,
            arrived=arrived,
            cut=cut,
            lost=missing - cut,
            withheld=wire.withheld,
        )


def host(block: torch.Tensor) -> Array:
    """Its numbers, in this machine's memory."""
    return as_array(block.detach().cpu().contiguous())


class _Mean:
    """A first half under way."""

    def __init__(self, coding: Packed, carried: Carried, own: torch.Tensor, normaliser: str) -> None:
        self._coding, self._carried, self._own, self._normaliser = coding, carried, own, normaliser

    def wait(self) -> tuple[torch.Tensor, Account]:
        taken, wire = self._carried.wait()
        coding, own = self._coding, self._own
        given = [(peer, *coding.read(taken[peer], wire.arrived[peer], own)) for peer in sorted(taken)]
        mean = coding.means.of(own, given, normaliser=self._normaliser, world=len(coding.present))
        arrived = {peer: bits for peer, _, bits, _ in given}
        return mean, coding.account(FIRST, wire, arrived)


class _Landed:
    """A second half under way."""

    def __init__(
        self, coding: Packed, carried: Carried, out: torch.Tensor, places: dict[int, Any], *, zero_missing: bool
    ) -> None:
        self._coding, self._carried, self._out, self._places, self._zero = coding, carried, out, places, zero_missing

    def wait(self) -> tuple[torch.Tensor, Account]:
        taken, wire = self._carried.wait()
        arrived = {}
        for peer, place in self._places.items():
            values, arrived[peer], width = self._coding.read(taken[peer], wire.arrived[peer], place)
            there = spread(arrived[peer], width, place)
            place.copy_(torch.where(there, values.to(place.dtype), torch.zeros_like(place) if self._zero else place))
        return self._out, self._coding.account(SECOND, wire, arrived)
