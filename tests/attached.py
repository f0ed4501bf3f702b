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

How: TypeAlias = Literal["tcx", "xdp", "netfilter", "sk_lookup"]
PROG_LOAD, LINK_CREATE = 5, 28
# The type of program, where it is attached, the verdict that drops.
KIND = {"tcx": (3, 46, 2), "xdp": (6, 37, 1), "netfilter": (32, 45, 0), "sk_lookup": (30, 36, 0)}


def attach(how: How, index: int) -> tuple[int, int]:
    """Drops all that comes in at an interface of the current namespace, or for its own sockets, until both descriptors
    are closed."""
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
        *(0, where if how in ("netfilter", "sk_lookup") else 0),
    )
    program = syscalls._bpf(PROG_LOAD, asked)
    if how == "netfilter":  # of IPv4, at what comes in for the host itself
        return program, syscalls._bpf(LINK_CREATE, struct.pack("<8I16x", program, 0, where, 0, 2, 1, 100, 0))
    with open("/proc/thread-self/ns/net") as here:
        target = here.fileno() if how == "sk_lookup" else index
        return program, syscalls._bpf(LINK_CREATE, struct.pack("<IIII32x", program, target, where, 0))


@contextmanager
def attached_by_a_program(how: How, place: str) -> Iterator[None]:
    """Of the host's own, which ends afterwards."""
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with namespaces.inside(place):
                held = attach(how, 0)
                os.write(ready[1], b"1")
                os.close(go[1])
                os.read(go[0], 1)
                code = 0 if held else 1
        finally:
            os._exit(code)
    os.close(ready[1])
    try:
        assert os.read(ready[0], 1), "it could not be attached"
        yield
    finally:
        for one in (go[1], go[0], ready[0]):
            os.close(one)
        os.waitpid(pid, 0)


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
