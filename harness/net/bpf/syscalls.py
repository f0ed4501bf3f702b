"""bpf(2) through ctypes: array maps and classifier programs, by descriptor or by the kernel's id."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_NUMBER = {"aarch64": 280, "arm64": 280, "riscv64": 280, "x86_64": 321}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _PROG_LOAD = 0, 1, 2, 5
_MAP_FD_BY_ID, _INFO_BY_FD, _PROG_QUERY, _BTF_LOAD = 14, 15, 16, 18
_TCX = {"ingress": 46, "egress": 47}  # attach types: ingress and egress of an interface
_MAP_TYPE_ARRAY, _PROG_TYPE_SCHED_CLS = 2, 3

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _bpf(command: int, attributes: bytes) -> int:
    return asked(command, ctypes.create_string_buffer(attributes, len(attributes)))


def asked(command: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
    """What the kernel answers beside a number it writes there."""
    number = _NUMBER.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) is not known for {platform.machine()}")
    result = int(_libc.syscall(number, ctypes.c_int(command), buffer, ctypes.c_uint(len(buffer))))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf({command}): {os.strerror(code)}")
    return result


class ArrayMap:
    """An array map: a piece of kernel memory that programs and we share. Usually of one entry."""

    def __init__(self, *, fd: int, value_bytes: int) -> None:
        self.fd = fd
        self.value_bytes = value_bytes

    @classmethod
    def create(
        cls, *, value_bytes: int, name: str, btf: tuple[int, int, int] = (0, 0, 0), entries: int = 1
    ) -> ArrayMap:
        attributes = struct.pack(
            "<IIIIIII16sIIII", _MAP_TYPE_ARRAY, 4, value_bytes, entries, 0, 0, 0, name.encode()[:15], 0, *btf
        )
        return cls(fd=_bpf(_MAP_CREATE, attributes), value_bytes=value_bytes)

    @classmethod
    def open(cls, *, map_id: int, value_bytes: int) -> ArrayMap:
        return cls(fd=_bpf(_MAP_FD_BY_ID, struct.pack("<III", map_id, 0, 0)), value_bytes=value_bytes)

    def read(self, entry: int = 0) -> bytes:
        key, value = ctypes.c_uint32(entry), ctypes.create_string_buffer(self.value_bytes)
        _bpf(_MAP_LOOKUP, struct.pack("<IIQQQ", self.fd, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
        return value.raw

    def write(self, value: bytes, entry: int = 0) -> None:
        assert len(value) == self.value_bytes
        key, buffer = ctypes.c_uint32(entry), ctypes.create_string_buffer(value, len(value))
        _bpf(_MAP_UPDATE, struct.pack("<IIQQQ", self.fd, 0, ctypes.addressof(key), ctypes.addressof(buffer), 0))

    def kernel_id(self) -> int:
        return _id_of(self.fd)

    def close(self) -> None:
        os.close(self.fd)


def load_classifier(code: bytes, *, name: str) -> int:
    """Load a tc program; returns its descriptor. A rejected program is our own mistake: the verifier's log is shown."""
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")  # random numbers and skb helpers are GPL-only

    def attributes(level: int, log: int, log_bytes: int) -> bytes:
        return struct.pack(
            "<IIQQIIQII16sII",
            _PROG_TYPE_SCHED_CLS,
            len(code) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(licence),
            level,
            log_bytes,
            log,
            0,
            0,
            name.encode()[:15],
            0,
            0,
        )

    try:
        return _bpf(_PROG_LOAD, attributes(0, 0, 0))
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            raise
        log = ctypes.create_string_buffer(1 << 20)
        try:
            return _bpf(_PROG_LOAD, attributes(1, ctypes.addressof(log), len(log)))
        except OSError as again:
            raise OSError(again.errno, f"the verifier said:\n{log.value.decode()[-4000:]}") from None


def program_id(fd: int) -> int:
    return _id_of(fd)


def tcx_programs(port_index: int, side: str) -> int:
    """Programs that run ahead of every filter of this interface of the current namespace; kernels before 6.6 have none.
    Raises PermissionError where it may not be asked."""
    try:
        buffer = ctypes.create_string_buffer(struct.pack("<IIIIQI36x", port_index, _TCX[side], 0, 0, 0, 0), 64)
        asked(_PROG_QUERY, buffer)
    except PermissionError:
        raise
    except OSError:
        return 0
    return int(struct.unpack_from("<I", buffer.raw, 24)[0])


def _id_of(fd: int) -> int:
    info = ctypes.create_string_buffer(80)
    _bpf(_INFO_BY_FD, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
    return int(struct.unpack_from("<I", info.raw, 4)[0])


def load_lock_btf(words: int) -> tuple[int, int, int]:
    """Type information for `struct v { struct bpf_spin_lock lock; u32 state; u64 word[words]; }`.

    The kernel lets a program lock a map value only if BTF says where the lock is. Returns (fd, key and value type)."""
    strings = bytearray(b"\0")

    def text(name: str) -> int:
        offset = len(strings)
        strings.extend(name.encode() + b"\0")
        return offset

    def entry(name: int, kind: int, members: int, size_or_type: int) -> bytes:
        return struct.pack("<III", name, kind << 24 | members, size_or_type)

    integer, array, structure = 1, 3, 4
    types = entry(text("u32"), integer, 0, 4) + struct.pack("<I", 32)
    types += entry(text("u64"), integer, 0, 8) + struct.pack("<I", 64)
    types += entry(text("bpf_spin_lock"), structure, 1, 4) + struct.pack("<III", text("val"), 1, 0)
    types += entry(0, array, 0, 0) + struct.pack("<III", 2, 1, words)
    types += entry(text("v"), structure, 3, 8 + 8 * words)
    for name, kind, bit in (("lock", 3, 0), ("state", 1, 32), ("word", 4, 64)):
        types += struct.pack("<III", text(name), kind, bit)
    blob = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings)) + types + bytes(strings)
    buffer = ctypes.create_string_buffer(blob, len(blob))
    fd = _bpf(_BTF_LOAD, struct.pack("<QQIIII", ctypes.addressof(buffer), 0, len(blob), 0, 0, 0))
    return fd, 1, 5
