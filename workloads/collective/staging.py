"""Tensors as flat numpy arrays and back: CPU tensors without a copy, CUDA tensors through pinned memory, by blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lossbench.workloads.transport.packet.codec import CODECS, Codec
from lossbench.workloads.transport.packet.layout import even
from lossbench.workloads.transport.packet.wire import Array, Bytes

Events = list[tuple[torch.device, torch.cuda.Event]]


def codec_of(tensor: torch.Tensor) -> Codec:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in CODECS:
        raise NotImplementedError(f"the lossy backend has no {name}: convert it, or use another backend for it")
    return CODECS[name]


def as_array(tensor: torch.Tensor) -> Array:
    """A contiguous CPU tensor's memory, flat."""
    flat = tensor.detach().reshape(-1)
    if tensor.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16)
    if tensor.dtype == torch.bool:
        return flat.view(torch.uint8).numpy()
    return flat.numpy()


def on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def events_of(tensors: Any) -> Events:
    """One event on the current stream of each CUDA device that the tensors live on."""
    flat = [t for entry in tensors for t in (entry if isinstance(entry, list) else [entry])]
    out = []
    for device in {t.device for t in flat if not on_host(t)}:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        out.append((device, event))
    return out


def is_seen(tensor: torch.Tensor) -> bool:
    """As the conjugate or the negative of what is in its memory."""
    return tensor.is_conj() or tensor.is_neg()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """With its values in its memory; a copy, if it is seen otherwise."""
    return tensor.resolve_conj().resolve_neg()


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


class Rooms:
    """Numbers of rooms: one for each job under way, from when it begins until it has ended, however it ends."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._made = 0

    def take(self) -> int:
        """Of one thread at a time: jobs begin one by one. They end in other threads."""
        if self._free:
            return self._free.pop()
        self._made += 1
        return self._made - 1

    def give_back(self, room: int) -> None:
        self._free.append(room)


def pinned(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, pin_memory=True)


class Pinned:
    """Pinned memory that is used again, and a stream of its own, in which every job runs (base.py)."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def room(self, name: str, dtype: torch.dtype, count: int) -> torch.Tensor:
        held = self._held.get((name, dtype))
        if held is None or held.numel() < count:
            held = self._held[name, dtype] = pinned(count, dtype)
        return held[:count]

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


class Staged:
    """One tensor of a collective, on the host. `array` is what is sent and received into."""

    def __init__(
        self, tensor: torch.Tensor, pinned: Pinned, *, name: str = "in", fetch: bool = True, only_read: bool = False
    ) -> None:
        self.tensor = tensor
        self.codec = codec_of(tensor)
        if not only_read and _is_expanded(tensor):
            raise ValueError("the lossy backend can't write to an expanded tensor: several elements share one place")
        self._cuda = not on_host(tensor)
        self._pinned = pinned
        self._events: dict[int, torch.cuda.Event] = {}
        self._dense = tensor if tensor.is_contiguous() and not is_seen(tensor) else plain(tensor).contiguous()
        if not self._cuda:
            self._host = self._dense
        else:
            self._host = pinned.room(name, tensor.dtype, tensor.numel())
            if fetch:
                self._fetch(even(tensor.numel(), 1))
        self.array = as_array(self._host)

    def _fetch(self, counts: Sequence[int], first: int = 0) -> None:
        """Copies begin, one event per block, from `first` on."""
        flat, starts = self._dense.reshape(-1), [0, *itertools.accumulate(counts)]
        for block in (*range(first, len(counts)), *range(first)):
            part = slice(starts[block], starts[block + 1])
            self._host[part].copy_(flat[part], non_blocking=True)
            self._events[block] = torch.cuda.Event()
            self._events[block].record()

    def fetch_blocks(self, counts: Sequence[int], *, first: int) -> Callable[[int], None] | None:
        """For sending while copying: waits until block n is here. None if all is (a CPU tensor). The one that is needed
        first comes first, and is waited for."""
        if not self._cuda:
            return None
        self._fetch(counts, first)
        self._events[first].synchronize()
        return lambda block: self._events[block].synchronize()

    def wait(self) -> None:
        """Until all copies have ended."""
        for event in self._events.values():
            event.synchronize()

    def give_back(self) -> None:
        """The result to where the tensor is. The pinned memory is used again by the next call: copied now."""
        if self._cuda:
            self.tensor.copy_(self._host.view(self.tensor.shape))
        elif self._dense is not self.tensor:
            self.tensor.copy_(self._dense)


# What a call's tensors must have in common, as torch says, is looked at before anything is sent: below here they are
# bytes, and numpy would spread them, or turn them into something else.


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
