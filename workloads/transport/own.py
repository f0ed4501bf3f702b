"""What this process itself has sent over TCP, as the kernel counts it for its sockets: whatever else leaves over the
same link is somebody else's."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

HEADERS = {socket.AF_INET: 14 + 20 + 32, socket.AF_INET6: 14 + 40 + 32}  # Ethernet, IP, TCP with time stamps
# Where tcp_info has what was sent: segments; bytes, since Linux 4.19; before that what was acknowledged of them, 4.2.
SEGMENTS, BYTES, ACKNOWLEDGED, LONGEST = 136, 200, 120, 256
SIOCGIFADDR = 0x8915
MAPPED = "::ffff:"  # before an IPv4 address, in a socket of both families


def connected() -> dict[str, int]:
    """Descriptors of this process's TCP connections, by what names each of them for good."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            name = str(Path(f"/proc/self/fd/{fd}").readlink())
            if name.startswith("socket:") and _end_of(fd):
                found[name] = fd
    return found


def sent(descriptors: Iterable[int]) -> int:
    """Bytes with their headers, what was sent again included. A kernel before 4.19 tells only what was acknowledged:
    little less where nothing is lost."""
    return sum(_sent(fd) for fd in descriptors)


def sent_over(interface: str, *, besides: int = 0) -> int:
    """By the connections that are open now from one of its addresses, but for those from or to a port."""
    here = _addresses(interface)
    return sent(fd for fd in connected().values() if _end_of(fd) in here and besides not in _ports_of(fd))


def _sent(fd: int) -> int:
    one = socket.socket(fileno=fd)
    try:
        known = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LONGEST)
        if len(known) < SEGMENTS + 4:  # before Linux 4.2, which has no hook of ours either
            return 0
        size = struct.unpack_from("Q", known, BYTES if len(known) >= BYTES + 8 else ACKNOWLEDGED)[0]
        return int(size) + int(struct.unpack_from("I", known, SEGMENTS)[0]) * HEADERS[one.family]
    except OSError:
        return 0
    finally:
        one.detach()  # it is not ours to close


def _end_of(fd: int) -> str:
    """The address of its own end; empty for what is no TCP connection."""
    one = socket.socket(fileno=fd)
    try:
        if one.family not in HEADERS or one.type != socket.SOCK_STREAM:
            return ""
        one.getpeername()
        return str(one.getsockname()[0]).removeprefix(MAPPED)
    except OSError:
        return ""
    finally:
        one.detach()


def _ports_of(fd: int) -> tuple[int, ...]:
    one = socket.socket(fileno=fd)
    try:
        return one.getsockname()[1], one.getpeername()[1]
    except OSError:
        return ()
    finally:
        one.detach()


def _addresses(interface: str) -> set[str]:
    out = set()
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        said = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        out.add(socket.inet_ntoa(said[20:24]))
    with suppress(OSError):
        for line in Path("/proc/thread-self/net/if_inet6").read_text(encoding="ascii").splitlines():
            number, *_, name = line.split()
            if name == interface:
                out.add(str(ipaddress.IPv6Address(bytes.fromhex(number))))
    return out
