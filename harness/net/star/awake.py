"""A link that was set up carries packets only once a worker of the kernel has come round to it (linkwatch), which on a
busy machine is after the call that set it up: until then a bridge's port forwards nothing, and an interface drops what
it is given."""

from __future__ import annotations

import fcntl
import socket
import struct
import time
from collections.abc import Callable, Sequence

from pyroute2 import IPRoute

from lossbench.errors import RunError

LIMIT_S, PAUSE_S = 30.0, 0.002
SIOCGIFFLAGS, IFF_RUNNING, FORWARDING = 0x8913, 0x40, 3


def wait(asleep: Callable[[], list[str]]) -> None:
    """`asleep`: links over which nothing passes yet."""
    until = time.monotonic() + LIMIT_S
    while here := asleep():
        if time.monotonic() > until:
            raise RunError(
                f"the kernel has not brought up {', '.join(here[:3])} in {LIMIT_S:g} s",
                next_step="is the machine overloaded? try again, or with fewer hosts",
            )
        time.sleep(PAUSE_S)


def not_running(interfaces: Sequence[str]) -> list[str]:
    """Of the namespace that this thread is in."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return [name for name in interfaces if not _flags(any_socket, name) & IFF_RUNNING]


def _flags(any_socket: socket.socket, name: str) -> int:
    answer = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("<16sH22x", name.encode(), 0))
    return int(struct.unpack_from("<H", answer, 16)[0])


def not_forwarding(switch: IPRoute) -> list[str]:
    """Ports of all its bridges."""
    out = []
    for link in switch.get_links():
        about = link.get_attr("IFLA_LINKINFO")
        port = about.get_attr("IFLA_INFO_SLAVE_DATA") if about is not None else None
        if port is not None and port.get_attr("IFLA_BRPORT_STATE") != FORWARDING:
            out.append(str(link.get_attr("IFLA_IFNAME")))
    return out
