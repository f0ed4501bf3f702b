"""The hook itself: clsact on a switch port. Ingress: what the host sends (uplink); egress: what it gets (downlink)."""

from __future__ import annotations

import errno

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from harness.net.impair.base import HookPoint, Look
from harness.net.rtnl_messages import Filter

PARENT = {"uplink": 0xFFFFFFF2, "downlink": 0xFFFFFFF3}
TC_H_ROOT = 0xFFFFFFFF


def ensure_clsact(switch: IPRoute, port_index: int) -> None:
    try:
        switch.tc("add", "clsact", port_index)
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise


def filters_at(point: HookPoint, look: Look) -> list[Filter]:
    """Every filter at this hook, in the order in which packets meet them."""
    return look.reader.filters(point.port_index, PARENT[point.hook.direction])


def totals(point: HookPoint, look: Look, *, both_directions: bool) -> tuple[int, int]:
    """(seen, dropped). clsact counts only directions that have a filter, and both of them together; what entered and
    left the port tells them apart: everything received passed the ingress hook, everything that passed the egress hook
    was sent or queued."""
    packets = drops = queued = 0
    for qdisc in look.qdiscs.get(point.port_index, ()):
        if qdisc.kind == "clsact":
            packets, drops = qdisc.packets, qdisc.dropped
        elif qdisc.parent == TC_H_ROOT:
            queued = qdisc.dropped + qdisc.waiting
    if not both_directions:
        return packets, drops
    link = look.links[point.port_index]
    down_seen = packets - link.rx_packets
    down_dropped = down_seen - link.tx_packets - link.tx_dropped - queued
    return (link.rx_packets, drops - down_dropped) if point.hook.direction == "uplink" else (down_seen, down_dropped)
