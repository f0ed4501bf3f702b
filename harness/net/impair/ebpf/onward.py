"""The shorter way: a packet that lives goes straight to the switch port of the host it is for, past the bridge. That
port's own hook and queues still see it, and whoever is not one of our hosts is left to the bridge."""

from __future__ import annotations

from lossbench.net.bpf.assembler import FP, R0, R1, R2, R3, R4, R6, REDIRECT, SKB_LOAD_BYTES, Assembler
from lossbench.net.impair.ebpf.match import SCRATCH
from lossbench.spec.topology import MAC_PREFIX

_MAC_BYTES = 6


def stride_of(ports: tuple[int, ...]) -> int:
    """Interface indices of the ports by rank are a row, since they were made in a row; 0 if somehow they are not."""
    steps = {after - before for before, after in zip(ports, ports[1:], strict=False)}
    return steps.pop() if len(steps) == 1 and min(steps) > 0 else 0


def emit_onward(a: Assembler, ports: tuple[int, ...], *, otherwise: int) -> None:
    """The end of a program: to the port of the packet's destination, or `otherwise`."""
    a.mov(R1, R6)
    a.mov(R2, 0)
    a.mov(R3, FP)
    a.alu("add", R3, SCRATCH)
    a.mov(R4, _MAC_BYTES)
    a.call(SKB_LOAD_BYTES)
    a.jump_if("ne", R0, 0, "bridge")
    a.load(4, R0, FP, SCRATCH)
    a.jump_if("ne", R0, int.from_bytes(MAC_PREFIX[:4], "little"), "bridge", bits=32)
    a.load(1, R0, FP, SCRATCH + 4)
    a.jump_if("ne", R0, MAC_PREFIX[4], "bridge")
    a.load(1, R1, FP, SCRATCH + 5)
    a.jump_if("ge", R1, len(ports), "bridge")
    a.alu("mul", R1, stride_of(ports))
    a.alu("add", R1, ports[0])
    a.mov(R2, 0)
    a.call(REDIRECT)
    a.exit(None)
    a.label("bridge")
    a.exit(otherwise)
