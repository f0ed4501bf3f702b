"""A link that was set up carries packets only once a worker of the kernel has come round to it (linkwatch), which on a
busy machine is after the call that set it up: until then a bridge's port forwards nothing, and an interface drops what
it is given."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

from lossbench.errors import RunError
from lossbench.net.host.place import Place
from lossbench.net.tc.rtnl import Reader
from lossbench.net.tc.rtnl_messages import LINKMSG, RTM_GETLINK, attributes

LIMIT_S, PAUSE_S = 30.0, 0.002
NAME, STATE, UP = 3, 16, 6  # IFLA_IFNAME, IFLA_OPERSTATE, IF_OPER_UP
ANY_LINK = LINKMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0, 0)


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


def not_up(place: Place, interfaces: Sequence[str]) -> list[str]:
    """What they are given is thrown away until the worker has been there. It says so by their operational state: a
    carrier and the name of a queue are shown earlier."""
    reader = Reader(place)
    try:
        found = [attributes(body, LINKMSG.size) for body in reader.dump(RTM_GETLINK, ANY_LINK)]
    finally:
        reader.close()
    ready = {one[NAME].rstrip(b"\0").decode() for one in found if one.get(STATE) == bytes((UP,))}
    return [name for name in interfaces if name not in ready]
