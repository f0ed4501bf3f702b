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
    """`namespace`: its inode; 0: nobody can tell (pinned, and held by no process)."""

    what: str
    namespace: int


def newest() -> int:
    """The last link of this machine; ids grow. PermissionError: it may not be asked for."""
    last = 0
    while (after := _after(last)) is not None:
        last = after
    return last


def since(last: int, known: Collection[int]) -> tuple[list[Held], int]:
    """Those of our two kinds that came after it and stand now in these namespaces, or maybe so, and the last of all."""
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
        if held is None or held.namespace not in (0, *known):
            continue
        if held.namespace or _stands(last):  # else its process ended while we asked who holds it
            out.append(held)
    return out, last


def _stands(link: int) -> bool:
    try:
        os.close(syscalls._bpf(_FD_BY_ID, struct.pack("<III", link, 0, 0)))
    except FileNotFoundError:
        return False
    return True


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
    if kind == _NETFILTER:  # the kernel does not tell whose it is
        holders = _holders(link)
        whose = next((one for one in holders if one in known), holders[0] if holders else 0)
        return Held("a BPF program came to a firewall's hooks (netfilter)", whose)
    if (kind, where) == (_NETNS, _SK_LOOKUP):
        return Held("a BPF program came to where sockets are looked up (sk_lookup)", namespace)
    return None


def _holders(link: int) -> list[int]:
    """The namespaces of the processes, but this one, that hold a link."""
    line, out = f"link_id:\t{link}\n", []
    for process in Path("/proc").glob("[0-9]*"):
        if process.name != str(os.getpid()) and any(line in _text(one) for one in process.glob("fdinfo/*")):
            with suppress(OSError):  # it has ended
                out.append((process / "ns" / "net").stat().st_ino)
    return out


def _text(path: Path) -> str:
    with suppress(OSError):  # closed meanwhile
        return path.read_text()
    return ""
