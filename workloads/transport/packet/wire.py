"""The wire format as numpy sees it: contract.py's header, many rows at a time. See docs/wire-format.md."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lossbench.contract import HEADER, HEADER_BYTES, KINDS, MAGIC, VERSION

Bytes: TypeAlias = NDArray[np.uint8]
Bits: TypeAlias = NDArray[np.bool_]
Array: TypeAlias = NDArray[Any]

DATA, MARKER, ACK, RELIABLE = (KINDS[name] for name in ("data", "marker", "ack", "reliable"))
PREFIX_BYTES = 24  # everything before block and chunk: the same in all packets of one flow of one half
BLOCK_AT, CHUNK_AT = 24, 28
SEQUENCES = 1 << 16
_TAIL = struct.Struct("<II")

# Element types on the wire; whatever is not listed travels as bytes.
DTYPES: dict[str, int] = {"bytes": 0, "float32": 1, "bfloat16": 2, "float16": 3}


@dataclass(frozen=True)
class Prefix:
    """What identifies a flow of a half: who to whom, which half of which step, in which order of halves."""

    kind: int
    token: int
    source: int
    destination: int
    step: int
    half: int
    dtype: int
    sequence: int

    def pack(self) -> bytes:
        return HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.token,
            self.source,
            self.destination,
            self.step & 0xFFFFFFFF,
            self.half,
            self.dtype,
            self.sequence % SEQUENCES,
            0,
            0,
        )[:PREFIX_BYTES]


def control(prefix: bytes, *, block: int, chunk: int, body: bytes = b"") -> bytes:
    """A marker or an acknowledgement. Marker: block = packets of this flow in all, chunk = packets sent so far.
    Acknowledgement: chunk = packets taken in, dtype = 1 if nothing more is wanted; body = bitmap of packets that are
    missing from packet `block` on (reliable flows)."""
    return prefix + _TAIL.pack(block, chunk) + body


def tail(packet: bytes | bytearray | memoryview) -> tuple[int, int]:
    """(block, chunk) of a packet."""
    block, chunk = _TAIL.unpack_from(packet, PREFIX_BYTES)
    return block, chunk


def ahead(sequence: int, of: int) -> int:
    """How many halves `sequence` (16 bits) lies ahead of `of` (any size); negative if behind."""
    return (sequence - of + SEQUENCES // 2) % SEQUENCES - SEQUENCES // 2


def column(rows: Bytes, at: int) -> NDArray[np.uint32]:
    """A 32-bit header field of all rows, as a view."""
    out: NDArray[np.uint32] = rows[:, at : at + 4].view(np.uint32)[:, 0]
    return out


def one_flow(rows: Bytes) -> bool:
    """Do all rows carry the same prefix?"""
    if len(rows) == 1:
        return True
    words = rows[:, :PREFIX_BYTES].view(np.uint64)
    return bool((words == words[0]).all())


def flows_of(rows: Bytes) -> list[Bytes]:
    """Runs of rows with the same prefix, in order."""
    if len(rows) == 1:  # as markers and acknowledgements come
        return [rows]
    words = rows[:, :PREFIX_BYTES].view(np.uint64)
    cuts = np.flatnonzero((words[1:] != words[:-1]).any(axis=1)) + 1
    return np.split(rows, cuts)


def payload(rows: Bytes, dtype: np.dtype[Any]) -> Array:
    """The payload of framed rows as elements, without a copy."""
    out: Array = rows[:, HEADER_BYTES:].view(dtype)
    return out


def as_bytes(elements: Array) -> Bytes:
    """Contiguous elements as bytes, without a copy."""
    return elements.view(np.uint8)
