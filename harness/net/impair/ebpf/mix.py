"""Random numbers, as lossmodel draws them."""

from __future__ import annotations

from lossbench.net.bpf.assembler import Assembler, Reg
from lossbench.spec.lossmodel import MIX_ROUNDS


def emit_mix(a: Assembler, z: Reg, temporary: Reg) -> None:
    """splitmix64's finaliser, as lossmodel.mix."""
    for shift, factor in (*MIX_ROUNDS, (31, 0)):
        a.mov(temporary, z)
        a.alu("rsh", temporary, shift)
        a.alu("xor", z, temporary)
        if factor:
            a.constant(temporary, factor)
            a.alu("mul", z, temporary)
