"""engine.h's structures as Python sees them; `typed` compares them with what the compiler made."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_float, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

ADD_F32, ADD_BF16, ADD_F16, PUT = 1, 2, 3, 4
BY_COUNT, BY_WORLD = 0, 1
FAILED = 5
IN_ORDER = 2  # of a record's `reliable`: repaired in part, the first packets first
ENDED = ("", "all", "markers", "fraction", "deadline", "failed")
SILENT, DISAGREE, PEER_GAVE_UP, PEER_LEFT, SOCKET_ERROR, ABORTED, UNSENDABLE = 1, 2, 3, 4, 5, 6, 7

_numbers = ("cursor", "limit", "count", "highest", "duplicates", "done", "ended", "known", "marker", "repair_after")
_more = ("repairs", "repaired", "repeats", "given_again", "unheard", "top", "solid")
_times = ("due", "pause", "asked_at", "highest_at", "heard_at", "nacked_at", "given_at", "marker_at", "again_at")
FLOW = np.dtype(
    [
        ("data", "u8"),
        ("arrived", "u8"),
        ("bytes", "u8"),
        ("peer", "u4"),
        ("block", "u4"),
        ("segment", "u4"),
        ("packets", "u4"),
        ("weight", "f4"),
        ("held", "u4"),
        *((name, "u4") for name in (*_numbers, *_more)),
        *((name, "i8") for name in _times),
        ("repair", "u8"),
        ("prefix", "u1", 40),
    ],
    align=True,
)


class HalfRecord(ctypes.Structure):
    """`half`."""

    _fields_ = [
        ("in_", c_void_p),
        ("out", c_void_p),
        ("plan_in", c_void_p),
        ("plan_out", c_void_p),
        ("base_in", c_void_p),
        ("base_out", c_void_p),
        ("arrived", c_void_p),
        ("step", c_uint32),
        ("ins", c_uint32),
        ("outs", c_uint32),
        ("size", c_uint32),
        ("half", c_uint8),
        ("dtype", c_uint8),
        ("traffic", c_uint8),
        ("reliable", c_uint8),
        ("mode", c_uint32),
        ("after", c_uint32),
        ("hold", c_uint32),
        ("close_fraction", c_float),
        ("deadline", c_int64),
        ("sums", c_void_p),
        ("own_part", c_void_p),
        ("room", c_void_p),
        ("rounded", c_void_p),
        ("elements", c_uint64),
        ("width", c_uint32),
        ("kind", c_uint32),
        ("normaliser", c_uint32),
        ("world", c_uint32),
        ("times", c_float),
        ("missing", c_float),
        ("over", c_uint32),
        ("sequence", c_uint32),
        ("ended", c_uint32),
        ("expected", c_uint32),
        ("came", c_uint32),
        ("began", c_int64),
        ("first", c_int64),
        ("closed", c_int64),
        ("progress", c_int64),
        ("_longest", c_uint64),
        ("_state", c_uint32 * 8),
        ("_last_ended", c_int64),
        ("_links", c_void_p * 5),
    ]


class Settings(ctypes.Structure):
    _fields_ = [
        ("fd", c_int32),
        ("rank", c_uint32),
        ("world", c_uint32),
        ("full_tags", c_uint32),
        ("pipeline", c_uint32),
        ("send_thread", c_uint32),
        ("adaptive", c_uint32),
        ("ordered", c_uint32),
        ("key", c_uint64 * 2),
        ("room_bytes", c_uint64),
        ("pace_bytes_s", c_double),
        ("timeout_s", c_double),
        ("reorder_s", c_double),
        ("reorder_most_s", c_double),
    ]


COUNTED = {
    "halves": "ended so far",
    "reliable_halves": "among them; the data counters below are those of the others",
    "data_expected": "packets of lossy halves",
    "data_arrived": "among them",
    "lost": "the peer had sent it, and it never came: the network",
    "cut": "not lost, and not there in time: never sent (a deadline came first, here or there), or `late`",
    "withheld": "not sent: the peer gave no room, or wanted nothing more",
    "by_deadline": "halves that the deadline ended",
    "payload_bytes": "that arrived in lossy halves: proof that bytes went the lossy way",
    "late": "came after its half was over",
    "duplicates": "came more than once",
    "strangers": "not of this group, or not understood",
    "mismatched": "of this group, but not what this half expects: ranks disagree about the call",
    "resent": "packets of reliable halves that were sent again",
    "markers": "sent",
    "acks": "sent",
    "refused": "this host did not take them (a full queue, no way), each time: tried again, and nothing was lost",
    "early": "of halves so far ahead that there was no room for them",
    "reordered": "overtaken by later ones",
    "stalls": "flows that waited for room at the peer",
}


class Counted(ctypes.Structure):
    """Packets, since the engine was made; losses of different causes are never added up under one name."""

    _fields_ = [(name, c_uint64) for name in COUNTED]


class HeaderRecord(ctypes.LittleEndianStructure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [
        ("magic", c_uint16),
        ("version", c_uint8),
        ("kind", c_uint8),
        ("source", c_uint16),
        ("destination", c_uint16),
        ("tag", c_uint64),
        ("sequence", c_uint32),
        ("step", c_uint32),
        ("half", c_uint8),
        ("dtype", c_uint8),
        ("traffic", c_uint8),
        ("behind", c_uint8),
        ("size", c_uint32),
        ("block", c_uint32),
        ("chunk", c_uint32),
    ]


class Failure(ctypes.Structure):
    _fields_ = [
        ("code", c_uint32),
        ("rank", c_uint32),
        ("about", c_uint32),
        ("error", c_uint32),
        ("mine", HeaderRecord),
        ("theirs", HeaderRecord),
        ("my_bytes", c_uint64),
        ("their_bytes", c_uint64),
    ]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Counters, and why the group is broken (code 0: it is not)."""

    counts: dict[str, int]
    failure: Failure
    sent: list[int]
    received: list[int]


T = TypeVar("T", bound=ctypes.CDLL)


def typed(library: T) -> T:
    half, engine, settings = ctypes.POINTER(HalfRecord), c_void_p, ctypes.POINTER(Settings)
    halves = ctypes.POINTER(half)
    numbers = c_void_p
    for name, result, arguments in (
        ("lb_new", c_void_p, [settings]),
        ("lb_peer", None, [engine, c_uint32, c_void_p, c_uint32]),
        ("lb_start", c_int, [engine]),
        ("lb_submit", None, [engine, halves, c_uint32, c_int]),
        ("lb_submit_pair", None, [engine, half, half, c_void_p, c_uint64, c_void_p, c_uint32]),
        ("lb_over", c_int, [half]),
        ("lb_wait", c_int, [engine, half, c_double]),
        ("lb_release", None, [engine, half, c_uint32]),
        ("lb_read", None, [engine, ctypes.POINTER(Counted), ctypes.POINTER(Failure), numbers, numbers]),
        ("lb_one_by_one", c_int, [engine]),
        ("lb_break", None, [engine]),
        ("lb_close", None, [engine, c_double]),
        ("lb_free", None, [engine]),
        ("lb_layout", c_uint32, [c_void_p, c_uint32]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    found = (c_uint32 * 16)()
    count = library.lb_layout(found, 16)
    if list(found)[:count] != list(layout()):
        raise OSError(f"engine.h and structures.py differ: {list(found)[:count]} is not {list(layout())}")
    return library


def layout() -> tuple[int, ...]:
    """What `lb_layout` must say."""
    return (
        ctypes.sizeof(HalfRecord),
        HalfRecord.over.offset,
        FLOW.itemsize,
        FLOW.fields["prefix"][1] if FLOW.fields else 0,
        ctypes.sizeof(Settings),
        ctypes.sizeof(Counted),
        ctypes.sizeof(Failure),
        ctypes.sizeof(HeaderRecord),
        60,
    )
