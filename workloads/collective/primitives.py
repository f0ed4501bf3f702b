"""The two halves by themselves, on tensors of any device: what a strategy builds on. Each returns its account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.group import LossyGroup
from lossbench.workloads.collective.reduce import ask_all_gather, ask_reduce_scatter, is_lossy
from lossbench.workloads.collective.staging import Staged
from lossbench.workloads.transport.half import Account, Result
from lossbench.workloads.transport.jobs import Asked
from lossbench.workloads.transport.packet.wire import Bytes
from lossbench.workloads.transport.plan import Parcels


@dataclass
class Carried:
    """Bytes under way."""

    work: Any
    accounts: list[Account]
    taken: dict[int, Bytes]

    def wait(self) -> tuple[dict[int, Bytes], Account]:
        """By peer, zero where nothing came."""
        self.work.wait()
        return self.taken, self.accounts[0]


@dataclass
class Pending:
    """A half under way."""

    work: Any
    accounts: list[Account]
    out: torch.Tensor

    def wait(self) -> tuple[torch.Tensor, Account]:
        self.work.wait()
        return self.out, self.accounts[0]


def _staged(group: LossyGroup, tensor: torch.Tensor, name: str) -> Staged:
    """In a room of this slot's own: strategies wait for all slots before they begin again."""
    staged = group._given(tensor, name, numbered=False)
    if not is_lossy(staged.codec, "avg"):
        raise ValueError(f"{staged.codec.name} does not go lossy: train in float32, bfloat16 or float16")
    return staged


def _noting(asked: Asked, accounts: list[Account], taken: Staged) -> Asked:
    def then(results: list[Result]) -> None:
        assert asked.then is not None
        asked.then(results)
        accounts.append(results[0].account)
        taken.give_back()

    return Asked(halves=asked.halves, then=then)


def begin_scatter(
    group: LossyGroup,
    values: torch.Tensor,
    *,
    counts: tuple[int, ...],
    owners: tuple[int, ...],
    normaliser: str,
    slot: int = 0,
) -> Pending:
    """The mean of what arrived of the block `owners[rank]`; `values` stays as it is. `slot`: of several under way."""
    out = torch.empty(counts[owners[group.rank()]], dtype=values.dtype, device=values.device)
    accounts: list[Account] = []
    staged = partial(_staged, group)

    def job() -> Asked:
        given, taken = staged(values, f"scatter{slot}"), group._taken(out, f"scattered{slot}", numbered=False)
        asked = ask_reduce_scatter(
            group._group,
            given.array,
            taken.array,
            codec=given.codec,
            op="avg",
            counts=counts,
            block_of=owners,
            normaliser=normaliser,
        )
        return _noting(asked, accounts, taken)

    return Pending(group._begin([values, out], job), accounts, out)


def begin_gather(
    group: LossyGroup,
    mine: torch.Tensor,
    out: torch.Tensor,
    *,
    counts: tuple[int, ...],
    owners: tuple[int, ...],
    zero_missing: bool = False,
    slot: int = 0,
) -> Pending:
    """Everybody's block into `out`; what is missing keeps what `out` holds, or becomes zero."""
    accounts: list[Account] = []
    staged = partial(_staged, group)

    def job() -> Asked:
        # On a GPU `out` comes over, is written into, and goes back: what did not arrive must survive the journey.
        taken, given = staged(out, f"gathered{slot}"), staged(mine, f"gather{slot}")
        asked = ask_all_gather(
            group._group,
            given.array,
            taken.array,
            codec=given.codec,
            lossy=True,
            counts=counts,
            block_of=owners,
            zero_missing=zero_missing,
        )
        return _noting(asked, accounts, taken)

    return Pending(group._begin([mine, out], job), accounts, out)


def begin_exchange(
    group: LossyGroup,
    send: Mapping[int, Bytes],
    sizes: Mapping[int, int],
    *,
    half: str,
    size: int,
    cut: Parcels,
    reliable: bool = False,
) -> Carried:
    """Bytes as they are, to and from peers, packet by packet: for codings that know what is in a packet."""
    accounts: list[Account] = []
    taken: dict[int, Bytes] = {peer: np.zeros(count, np.uint8) for peer, count in sizes.items()}

    def job() -> Asked:
        asked = exchange.ask(group._group, send=send, receive=taken, size=size, half=half, reliable=reliable, cut=cut)

        def then(results: list[Result]) -> None:
            assert asked.then is not None
            accounts.append(results[0].account)
            asked.then(results)
            if not reliable:
                group._group.noted(results, measure=True)

        return Asked(halves=asked.halves, then=then)

    return Carried(group._begin([], job), accounts, taken)


def numbers_of_all(group: LossyGroup, mine: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """What each rank says, by rank; reliably."""
    given = np.array(mine, np.int64).view(np.uint8)
    rooms = {rank: np.zeros_like(given) for rank in group._endpoint.present}
    rooms[group.rank()][:] = given

    def job() -> None:
        peers = group._endpoint.peers
        taken = {peer: rooms[peer] for peer in peers}
        exchange.exchange(group._group, send=dict.fromkeys(peers, given), receive=taken, call="all_gather")

    group._begin([], job).wait()
    return {rank: tuple(room.view(np.int64).tolist()) for rank, room in rooms.items()}


def bytes_of(group: LossyGroup, rank: int, mine: bytes | None) -> bytes:
    """What this rank has to say, reliably; its length first."""
    size = numbers_of_all(group, (len(mine or b""),))[rank][0]
    data = np.frombuffer(mine, np.uint8).copy() if mine is not None else np.zeros(size, np.uint8)
    group._begin([], lambda: exchange.broadcast(group._group, data, root=rank)).wait()
    return data.tobytes()
