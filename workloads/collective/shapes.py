"""What a call's tensors must have in common, as torch says. Looked at before anything is sent: below here they are
bytes, and numpy would spread them, or turn them into something else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lossbench.workloads.transport.packet.wire import Bytes


def one_type(call: str, *tensors: torch.Tensor) -> None:
    kinds = list(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors))
    if len(kinds) > 1:
        raise ValueError(f"{call}: tensors of {' and '.join(kinds)}; all must be of one type")


def rooms_for_all(call: str, rooms: Sequence[torch.Tensor], *, size: int) -> None:
    if len(rooms) != size:
        raise ValueError(f"{call}: {len(rooms)} tensors for {size} ranks")


def as_long(call: str, tensor: torch.Tensor, elements: int) -> None:
    if tensor.numel() != elements:
        raise ValueError(f"{call}: a tensor of {tensor.numel()} elements where {elements} are needed")


def apart(parts: list[Bytes], rooms: list[Bytes]) -> list[Bytes]:
    """What is sent while others write into the same memory is sent from a copy."""
    ends = [(int(one.ctypes.data), int(one.ctypes.data) + one.nbytes) for one in rooms if one.nbytes]
    low, high = min((at for at, _ in ends), default=0), max((end for _, end in ends), default=0)

    def shared(part: Bytes) -> bool:
        at = int(part.ctypes.data)
        near = part.nbytes and at < high and low < at + part.nbytes
        return bool(near) and any(np.may_share_memory(part, room) for room in rooms)

    return [part.copy() if shared(part) else part for part in parts]
