"""Where this rank is: its address, the interface that leads to the others, its share of the machine."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from lossbench.contract import Door

SIOCGIFADDR = 0x8915


def own_address(door: Door) -> str:
    """Under lossbench the data link's; elsewhere that of LOSSBENCH_INTERFACE or GLOO_SOCKET_IFNAME (the first of a list
    that has one), or of whatever interface leads to MASTER_ADDR."""
    if door.addresses:
        return door.addresses[door.rank]
    names = [name for name in (door.interface or os.environ.get("GLOO_SOCKET_IFNAME", "")).split(",") if name]
    for name in names:
        found = _address_of(name)
        if found:
            return found
    if names:
        raise OSError(errno.EADDRNOTAVAIL, f"interface {' or '.join(names)} has no IP address")
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, _, _, _, place = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def _address_of(interface: str) -> str | None:
    """Its IPv4 address, or a global IPv6 one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        name = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, name)[20:24])
    with suppress(OSError), open("/proc/self/net/if_inet6", encoding="ascii") as table:
        for line in table:
            packed, _, _, scope, _, name_of = line.split()
            if name_of == interface and int(scope, 16) in (0x00, 0x10):  # global, or the loopback's
                return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(packed))
    return None


def cores_per_rank(size: int) -> float:
    """Namespaces of one machine share its cores; torchrun says how many ranks this machine has."""
    here = int(os.environ.get("LOSSBENCH_RANKS_HERE", os.environ.get("LOCAL_WORLD_SIZE", str(size))))
    return len(os.sched_getaffinity(0)) / max(here, 1)


def inner_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Connects when it is first used: on a link that loses 40 % even that may take longer than anybody waits."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    where = {"interface": interface} if interface else {"hostname": socket.gethostname()}
    try:
        options._devices = [dist.ProcessGroupGloo.create_device(**where, lazy_init=True)]
    except (TypeError, RuntimeError):  # an older torch, or a name that does not resolve: as torch itself would
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    return dist.ProcessGroupGloo(store, rank, size, options)
