"""The two halves by themselves, on tensors of any device: what a strategy builds on. Each returns its account."""

from __future__ import annotations

import numpy as np
import torch

from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.group import LossyGroup
from lossbench.workloads.collective.reduce import all_gather, reduce_scatter
from lossbench.workloads.transport.half import Account


def scatter_half(
    group: LossyGroup, values: torch.Tensor, *, counts: tuple[int, ...], owners: tuple[int, ...], normaliser: str
) -> tuple[torch.Tensor, Account]:
    """The mean of what arrived of the block `owners[rank]`; `values` stays as it is."""
    out = torch.empty(counts[owners[group.rank()]], dtype=values.dtype, device=values.device)
    accounts: list[Account] = []

    def job() -> None:
        given = group._given(values)
        taken = group._taken(out)
        taken.array[:] = reduce_scatter(
            group._group,
            given.array,
            codec=given.codec,
            op="avg",
            counts=counts,
            block_of=owners,
            normaliser=normaliser,
        )
        taken.give_back()
        accounts.extend(group._group.accounts)

    group._begin([values, out], job).wait()
    return out, accounts[0]


def gather_half(
    group: LossyGroup,
    mine: torch.Tensor,
    out: torch.Tensor,
    *,
    counts: tuple[int, ...],
    owners: tuple[int, ...],
    zero_missing: bool = False,
) -> Account:
    """Everybody's block into `out`; what is missing keeps what `out` holds, or becomes zero."""
    accounts: list[Account] = []

    def job() -> None:
        # On a GPU `out` comes over, is written into, and goes back: what did not arrive must survive the journey.
        taken = group._given(out, "out")
        given = group._given(mine)
        account = all_gather(
            group._group,
            given.array,
            taken.array,
            codec=given.codec,
            lossy=True,
            counts=counts,
            block_of=owners,
            zero_missing=zero_missing,
        )
        accounts.append(account)
        taken.give_back()

    group._begin([mine, out], job).wait()
    return accounts[0]


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
