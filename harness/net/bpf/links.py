"""Programs that stand by a link where no message of the kernel's tells of them and no interface shows them: at a
firewall's hooks (netfilter, from Linux 6.4 on), and where a namespace looks for sockets (sk_lookup)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lossbench.net.bpf import syscalls

_INFO_BY_FD, _FD_BY_ID, _NEXT_ID = 15, 30, 31
_NETNS, _NETFILTER, _SK_LOOKUP = 5, 10, 36  # kinds of links; where one of the first is attached


@dataclass(frozen=True)
class Held:
    """`namespace`: its inode; 0: the kernel does not tell, nor who holds it."""

    what: str
    namespace: int


def newest() -> int:
    """The last link of this machine; ids grow. PermissionError: it may not be asked for."""
    last = 0
    while (after := _after(last)) is not None:
        last = after
    return last


def since(last: int, known: Collection[int]) -> tuple[list[Held], int]:
    """Those of our two kinds that came after it and stand now in these namespaces, and the last link of all."""
    out = []
    while (after := _after(last)) is not None:
        last = after
        try:
            fd = syscalls._bpf(_FD_BY_ID, struct.pack("<III", last, 0, 0))
        except FileNotFoundError:
            continue  # gone meanwhile
        try:
            held = _told(fd, last, known)
        finally:
            os.close(fd)
        out += [held] if held is not None and held.namespace in known else []
    return out, last


def _after(last: int) -> int | None:
    buffer = ctypes.create_string_buffer(struct.pack("<III", last, 0, 0), 12)
    try:
        syscalls.asked(_NEXT_ID, buffer)
    except PermissionError:
        raise
    except OSError:  # there is no other; or no links in this kernel
        return None
    return int(struct.unpack_from("<I", buffer.raw, 4)[0])


def _told(fd: int, link: int, known: Collection[int]) -> Held | None:
    info = ctypes.create_string_buffer(64)
    syscalls._bpf(_INFO_BY_FD, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
    kind, _, _, _, namespace, where = struct.unpack_from("<6I", info.raw)
    if kind == _NETFILTER:
        return Held("a BPF program came to a firewall's hooks (netfilter)", _of_its_holder(link, known))
    if (kind, where) == (_NETNS, _SK_LOOKUP):
        return Held("a BPF program came to where sockets are looked up (sk_lookup)", namespace)
    return None


def _of_its_holder(link: int, known: Collection[int]) -> int:
    """Of a firewall's hook the kernel does not tell whose it is: the namespace of a process that holds the link."""
    line = f"link_id:\t{link}\n"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            inode = (process / "ns" / "net").stat().st_ino
            if inode in known and any(line in one.read_text() for one in (process / "fdinfo").iterdir()):
                return inode
    return 0
