"""Windows in time, compared with the kernel's clock at every packet: nobody has to be on time to open or close them."""

from __future__ import annotations

from lossbench.net.bpf.assembler import FP, KTIME_GET_NS, R0, R1, R2, Assembler
from lossbench.net.impair.ebpf.match import NOW
from lossbench.net.impair.ebpf.memory import WINDOW_BYTES


def emit_now(a: Assembler) -> None:
    """Asked once: of two rules whose windows meet, one takes the packet."""
    a.call(KTIME_GET_NS)
    a.store(8, FP, NOW, R0)


def emit_window(a: Assembler, window_fd: int, slot: int, *, otherwise: str) -> None:
    """Jump to `otherwise` unless the slot's window is open."""
    a.map_value(R1, window_fd, slot * WINDOW_BYTES)
    a.load(8, R0, FP, NOW)
    for place, shut in ((0, "lt"), (8, "ge")):
        a.load(8, R2, R1, place)
        a.jump_if(shut, R0, R2, otherwise)
