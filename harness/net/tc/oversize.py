"""Counts super-packets where the backend itself can't: a filter ahead of it matches what is longer than the MTU and
mirrors it to a dead end, and the mirror action's own counter is the answer."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pyroute2 import IPRoute

from lossbench.net.tc.hook import HookPoint, aside, ensure_clsact, put_filter
from lossbench.net.tc.rtnl_messages import Filter

DEAD_END = "oversize"
PRIORITY = 1
ETHERNET_HEADER = 14
LOAD_LENGTH, IF_GREATER, RETURN = 0x80, 0x25, 0x06


def longer_than(limit: int) -> bytes:
    """Classic BPF: match (-1) if the packet is longer than `limit` bytes."""
    items = ((LOAD_LENGTH, 0, 0, 0), (IF_GREATER, 0, 1, limit), (RETURN, 0, 0, 0xFFFFFFFF), (RETURN, 0, 0, 0))
    return b"".join(struct.pack("<HBBI", *item) for item in items)


def count_oversize(switch: IPRoute, point: HookPoint) -> None:
    """One filter of priority 1 at the hook."""
    ensure_clsact(switch, point.port_index)
    limit = point.mtu + ETHERNET_HEADER
    put_filter(switch, point, prio=PRIORITY, ops=longer_than(limit), action=aside(_dead_end(switch), "mirror"))


def _dead_end(switch: IPRoute) -> int:
    found = switch.link_lookup(ifname=DEAD_END)
    if not found:
        switch.link("add", ifname=DEAD_END, kind="ifb")
        found = switch.link_lookup(ifname=DEAD_END)
        switch.link("set", index=found[0], state="up")
    return int(found[0])


def is_counter(one: Filter, point: HookPoint) -> bool:
    return one.priority == PRIORITY and one.instructions == longer_than(point.mtu + ETHERNET_HEADER)


def oversize(filters: Sequence[Filter], point: HookPoint) -> int:
    """Super-packets that came to this hook."""
    return sum(one.acted or 0 for one in filters if is_counter(one, point))
