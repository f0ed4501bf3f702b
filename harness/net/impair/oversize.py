"""Counts super-packets where the backend itself can't: a filter ahead of it matches what is longer than the MTU and
mirrors it to a dead end, and the mirror action's own counter is the answer."""

from __future__ import annotations

import struct

from pyroute2 import IPRoute

from harness.net.impair.base import HookPoint
from harness.net.impair.clsact import PARENT, ensure_clsact

DEAD_END = "oversize"
ETHERNET_HEADER = 14
LOAD_LENGTH, IF_GREATER, RETURN = 0x80, 0x25, 0x06


def longer_than(limit: int) -> bytes:
    """Classic BPF: match (-1) if the packet is longer than `limit` bytes."""
    items = ((LOAD_LENGTH, 0, 0, 0), (IF_GREATER, 0, 1, limit), (RETURN, 0, 0, 0xFFFFFFFF), (RETURN, 0, 0, 0))
    return b"".join(struct.pack("<HBBI", *item) for item in items)


class OversizeCounter:
    """One filter of priority 1 per hook."""

    def __init__(self, switch: IPRoute) -> None:
        self._switch = switch

    def _dead_end(self) -> int:
        found = self._switch.link_lookup(ifname=DEAD_END)
        if not found:
            self._switch.link("add", ifname=DEAD_END, kind="ifb")
            found = self._switch.link_lookup(ifname=DEAD_END)
            self._switch.link("set", index=found[0], state="up")
        return int(found[0])

    def put(self, point: HookPoint) -> None:
        ensure_clsact(self._switch, point.port_index)
        self._switch.tc(
            "replace-filter", "bpf", point.port_index, handle=1, parent=PARENT[point.hook.direction], prio=1,
            ops=longer_than(point.mtu + ETHERNET_HEADER),
            action={"kind": "mirred", "direction": "egress", "action": "mirror", "ifindex": self._dead_end()},
        )  # fmt: skip

    def count(self, point: HookPoint) -> int:
        return action_packets(self._switch, point, prio=1)


def action_packets(switch: IPRoute, point: HookPoint, *, prio: int) -> int:
    """Packets that met the action of the filter with this priority."""
    total = 0
    for message in switch.get_filters(index=point.port_index, parent=PARENT[point.hook.direction]):
        options = message.get_attr("TCA_OPTIONS")
        if message["info"] >> 16 != prio or options is None:
            continue
        for name in ("TCA_BPF_ACT", "TCA_U32_ACT", "TCA_MATCHALL_ACT"):
            for _, action in (options.get_attr(name) or {"attrs": []})["attrs"]:
                stats = action.get_attr("TCA_ACT_STATS")
                if stats is not None:
                    total += stats.get_attr("TCA_STATS_BASIC")["packets"]
    return total
