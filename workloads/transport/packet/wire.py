"""The wire format as Python sees it: names of numbers, and the part of a control packet behind the header.
See docs/wire-format.md; the header itself is contract.py's."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lossbench.contract import KINDS

Bytes: TypeAlias = NDArray[np.uint8]
Bits: TypeAlias = NDArray[np.bool_]
Array: TypeAlias = NDArray[Any]

DATA, MARKER, ACK, RELIABLE = (KINDS[name] for name in ("data", "marker", "ack", "reliable"))
PREFIX_BYTES = 36  # everything before the packet's number: the same in all packets of one flow of one half
ASKS, TIMES, ENDS = range(3)  # what a marker wants: an answer; to be timed; an answer, and nothing more will come
GOING_ON, FINISHED, NOT_YET, REFUSED, GAVE_UP, GOODBYE = range(6)  # what an acknowledgement says
NO_WORD = 255  # of `behind`: nothing is said

# The header's `dtype`: low four bits the element type, high four bits the call. Ranks that differ in them disagree.
DTYPES = ("bytes", "float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
CALLS = (
    *("sum", "avg", "max", "min", "product", "band", "bor", "bxor"),
    *("broadcast", "gather", "scatter", "all_gather", "all_to_all", "barrier", "exchange"),
)
REDUCTIONS = CALLS[:8]
CALL_NUMBERS = {name: number for number, name in enumerate(CALLS)}
DTYPE_NUMBERS = {name: number for number, name in enumerate(DTYPES)}


def signature(dtype: str, call: str) -> int:
    """The header's `dtype` byte."""
    return DTYPE_NUMBERS[dtype] | CALL_NUMBERS[call] << 4


def described(dtype: int, size: int, step: int) -> str:
    """The same, and two more fields, for people."""
    name, call = DTYPES[dtype & 15] if dtype & 15 < len(DTYPES) else "?", dtype >> 4
    what = CALLS[call] if call < len(CALLS) else "?"
    what = f"reduction ({what})" if what in REDUCTIONS else what
    return f"{what} of {size} {name} elements in step {step}" if size else f"{what} in step {step}"


class Control(NamedTuple):
    """Behind the header of a marker or an acknowledgement; engine.h says what each field means."""

    number: int = 0
    answers: int = 0
    packets: int = 0
    sent: int = 0
    limit: int = 0
    passed: int = 0
    held_us: int = 0
    state: int = 0
    about: int = 0
    time_ns: int = 0
    size: int = 0  # bytes of the flow's payload
    base: int = 0
    extra: int = 0
    whole: int = 0

    def pack(self) -> bytes:
        return CONTROL.pack(*self)

    @classmethod
    def unpack(cls, body: bytes | memoryview) -> Control:
        return cls(*CONTROL.unpack_from(body))


CONTROL = struct.Struct("<7I2H2Q3I")
CONTROL_BYTES = CONTROL.size
SEQUENCES = 1 << 32


def ahead(sequence: int, of: int) -> int:
    """How many halves `sequence` lies ahead of `of`; negative if behind. Both wrap at 32 bits."""
    return (sequence - of + SEQUENCES // 2) % SEQUENCES - SEQUENCES // 2
