"""Element types: how they look in memory, in what they are summed, how a sum is rounded back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lossbench.workloads.transport.packet.wire import Array


@dataclass(frozen=True, kw_only=True)
class Codec:
    """numpy knows no bfloat16: it is seen as its 16 bits."""

    name: str
    memory: np.dtype[Any]
    wide: np.dtype[Any]

    def widen(self, elements: Array) -> Array:
        """As sums are made; no copy where nothing changes."""
        if self.name == "bfloat16":
            return (elements.astype(np.uint32) << 16).view(np.float32)
        return elements if self.memory == self.wide else elements.astype(self.wide)

    def narrow(self, values: Array) -> Array:
        """Rounded to the nearest, ties to even, as torch does."""
        if self.name == "bfloat16":
            bits = np.ascontiguousarray(values).view(np.uint32)
            rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
            return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
        if self.memory == self.wide:
            return values
        with np.errstate(over="ignore"):  # too large is infinite, as everywhere
            return values.astype(self.memory)


LOSSY = ("float32", "bfloat16", "float16")  # what may lose packets: a mean over arrivals makes sense


def _codec(name: str, memory: str, wide: str) -> Codec:
    return Codec(name=name, memory=np.dtype(memory), wide=np.dtype(wide))


CODECS: dict[str, Codec] = {
    "float32": _codec("float32", "f4", "f4"),
    "bfloat16": _codec("bfloat16", "u2", "f4"),
    "float16": _codec("float16", "f2", "f4"),
    **{name: _codec(name, name, name) for name in ("float64", "int64", "int32", "int16", "int8", "uint8")},
    "bool": _codec("bool", "u1", "u1"),
}
