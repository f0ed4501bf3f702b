"""Programs at an interface that stand there as long as a descriptor of somebody's is open: no message tells of them."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from lossbench.net.bpf import syscalls
from lossbench.net.bpf.assembler import Assembler
from lossbench.net.host import namespaces

How: TypeAlias = Literal["tcx", "xdp"]
PROG_LOAD, LINK_CREATE = 5, 28
KIND = {"tcx": (3, 46, 2), "xdp": (6, 37, 1)}  # type of program, where it is attached, the verdict that drops


def attach(how: How, index: int) -> tuple[int, int]:
    """Drops all that comes in at an interface of the current namespace, until both descriptors are closed."""
    kind, where, drop = KIND[how]
    code = Assembler()
    code.exit(drop)
    text = code.assemble()
    instructions, licence = ctypes.create_string_buffer(text, len(text)), ctypes.create_string_buffer(b"GPL")
    asked = struct.pack(
        "<IIQQIIQII16sII",
        kind,
        len(text) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        *(0, 0, 0, 0, 0),
        b"held",
        *(0, 0),
    )
    program = syscalls._bpf(PROG_LOAD, asked)
    return program, syscalls._bpf(LINK_CREATE, struct.pack("<IIII32x", program, index, where, 0))


@contextmanager
def attached(how: How, place: str, interface: str = "eth0") -> Iterator[None]:
    """At an interface of a namespace."""
    with namespaces.open_inside(place) as there:
        index = there.link_lookup(ifname=interface)[0]
    with namespaces.inside(place):
        held = attach(how, index)
    try:
        yield
    finally:
        for one in held:
            os.close(one)
