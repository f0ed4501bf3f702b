"""The hook itself: clsact on an interface, on the side where packets come in or on the one where they go out."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from lossbench.errors import RunError
from lossbench.net.tc.look import Look
from lossbench.net.tc.rtnl_messages import Filter

if TYPE_CHECKING:  # a watchdog has no use for what experiments are, and starts in half the time
    from lossbench.spec.placement import Hook

Side: TypeAlias = Literal["ingress", "egress"]
PARENT: dict[Side, int] = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
TC_H_ROOT = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class HookPoint:
    """A hook made concrete: an interface, and the side of it that the hook's packets pass. What a host sends comes in
    at its switch port (ingress), and goes out at its own interface (egress)."""

    hook: Hook
    port_index: int
    mtu: int
    side: Side
    onward: tuple[int, ...] = ()  # where packets come in: the ports that they may go out at, by rank


def ensure_clsact(switch: IPRoute, port_index: int) -> None:
    try:
        switch.tc("add", "clsact", port_index)
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise


def put_filter(switch: IPRoute, point: HookPoint, *, prio: int, **what: Any) -> None:
    """In place of the one with this priority, if there is one."""
    switch.tc("replace-filter", "bpf", point.port_index, handle=1, parent=PARENT[point.side], prio=prio, **what)


def remove_filter(switch: IPRoute, point: HookPoint, *, prio: int) -> None:
    switch.tc("del-filter", "bpf", point.port_index, handle=1, parent=PARENT[point.side], prio=prio)


def aside(device: int, how: str = "redirect") -> dict[str, Any]:
    """A filter's action: to another device, or a copy there (`mirror`)."""
    return {"kind": "mirred", "direction": "egress", "action": how, "ifindex": device}


def filters_at(point: HookPoint, look: Look) -> list[Filter]:
    """Every filter at this hook, in the order in which packets meet them."""
    return look.filters(point.port_index, PARENT[point.side])


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
    link = look.links.get(point.port_index)
    if link is None:
        raise RunError(f"links went away during the run: that of h{point.hook.rank}")
    down_seen = packets - link.rx_packets
    down_dropped = down_seen - link.tx_packets - link.tx_dropped - queued
    return (link.rx_packets, drops - down_dropped) if point.side == "ingress" else (down_seen, down_dropped)
