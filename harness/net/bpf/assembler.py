"""A small eBPF assembler: instruction encoding is the same on every little-endian machine, so no compiler is needed."""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Reg:
    """An operand that is a register, as opposed to a number."""

    number: int


R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, FP = (Reg(n) for n in range(11))

_SIZE = {8: 0x18, 4: 0x00, 2: 0x08, 1: 0x10}
_ALU = {
    "add": 0x00,
    "sub": 0x10,
    "mul": 0x20,
    "or": 0x40,
    "and": 0x50,
    "lsh": 0x60,
    "rsh": 0x70,
    "mod": 0x90,
    "xor": 0xA0,
    "mov": 0xB0,
}
_JUMP = {"eq": 0x10, "gt": 0x20, "ge": 0x30, "set": 0x40, "ne": 0x50, "lt": 0xA0, "le": 0xB0}

# Helper functions of the kernel, by number.
MAP_LOOKUP, KTIME_GET_NS, PRANDOM_U32, SKB_STORE_BYTES, CLONE_REDIRECT, REDIRECT, SKB_LOAD_BYTES = (
    1,
    5,
    7,
    9,
    13,
    23,
    26,
)
SKB_SET_TSTAMP = 192
SPIN_LOCK, SPIN_UNLOCK = 93, 94
KTIME_GET_BOOT_NS = 125


class Assembler:
    """Collects instructions; labels are resolved by `assemble`."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int]] = []
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def _emit(self, code: int, *, dst: int = 0, src: int = 0, offset: int = 0, immediate: int = 0) -> None:
        self._code.append((code, dst | src << 4, offset, immediate & 0xFFFFFFFF))

    def label(self, name: str) -> None:
        assert name not in self._labels, name
        self._labels[name] = len(self._code)

    def alu(self, operation: str, dst: Reg, value: Reg | int, *, bits: int = 64) -> None:
        """dst = dst OP value (or dst = value for `mov`)."""
        code = (0x07 if bits == 64 else 0x04) | _ALU[operation]
        if isinstance(value, Reg):
            self._emit(code | 0x08, dst=dst.number, src=value.number)
        else:
            assert -(2**31) <= value < 2**31, f"{value:#x} does not fit: use constant()"
            self._emit(code, dst=dst.number, immediate=value)

    def mov(self, dst: Reg, value: Reg | int) -> None:
        self.alu("mov", dst, value)

    def constant(self, dst: Reg, value: int) -> None:
        """A 64-bit number."""
        self._emit(0x18, dst=dst.number, immediate=value)
        self._emit(0, immediate=(value & (2**64 - 1)) >> 32)

    def map_value(self, dst: Reg, map_fd: int, offset: int = 0) -> None:
        """A pointer into the value of a one-entry array map."""
        self._emit(0x18, dst=dst.number, src=2, immediate=map_fd)
        self._emit(0, immediate=offset)

    def map(self, dst: Reg, map_fd: int) -> None:
        """The map itself, for a helper that looks into it."""
        self._emit(0x18, dst=dst.number, src=1, immediate=map_fd)
        self._emit(0)

    def load(self, size: int, dst: Reg, src: Reg, offset: int = 0) -> None:
        self._emit(0x61 | _SIZE[size], dst=dst.number, src=src.number, offset=offset)

    def store(self, size: int, dst: Reg, offset: int, src: Reg) -> None:
        self._emit(0x63 | _SIZE[size], dst=dst.number, src=src.number, offset=offset)

    def store_number(self, size: int, dst: Reg, offset: int, number: int) -> None:
        self._emit(0x62 | _SIZE[size], dst=dst.number, offset=offset, immediate=number)

    def atomic_add(self, dst: Reg, offset: int, src: Reg) -> None:
        """*(u64 *)(dst + offset) += src."""
        self._emit(0xC3 | _SIZE[8], dst=dst.number, src=src.number, offset=offset)

    def from_big_endian(self, dst: Reg, bits: int) -> None:
        self._emit(0xDC, dst=dst.number, immediate=bits)

    def jump(self, target: str) -> None:
        self._jumps.append((len(self._code), target))
        self._emit(0x05)

    def jump_if(self, condition: str, left: Reg, right: Reg | int, target: str, *, bits: int = 64) -> None:
        """Unsigned comparisons; `bits=32` compares the lower words."""
        self._jumps.append((len(self._code), target))
        code = (0x05 if bits == 64 else 0x06) | _JUMP[condition]
        if isinstance(right, Reg):
            self._emit(code | 0x08, dst=left.number, src=right.number)
        else:
            assert bits == 32 or -(2**31) <= right < 2**31, f"{right:#x} does not fit"
            self._emit(code, dst=left.number, immediate=right)

    def call(self, helper: int) -> None:
        self._emit(0x85, immediate=helper)

    def exit(self, value: int | None) -> None:
        """With this value, or with what the last helper returned."""
        if value is not None:
            self.mov(R0, value)
        self._emit(0x95)

    def assemble(self) -> bytes:
        code = list(self._code)
        for at, target in self._jumps:
            operation, registers, _, immediate = code[at]
            code[at] = (operation, registers, self._labels[target] - at - 1, immediate)
        return b"".join(struct.pack("<BBhI", *instruction) for instruction in code)
