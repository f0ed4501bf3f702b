"""The hook itself: clsact on a switch port. Ingress = what the host sends (uplink), egress = what it gets (downlink)."""

from __future__ import annotations

import errno
from typing import Any

from pyroute2 import NetNS
from pyroute2.netlink.exceptions import NetlinkError

PARENT = {"uplink": 0xFFFFFFF2, "downlink": 0xFFFFFFF3}


def ensure_clsact(switch: NetNS, port_index: int) -> None:
    try:
        switch.tc("add", "clsact", port_index)
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise


def filters_of(switch: NetNS, port_index: int, direction: str) -> list[dict[str, Any]]:
    """The options of every bpf filter at this hook, as the kernel dumps them."""
    out = []
    for message in switch.get_filters(index=port_index, parent=PARENT[direction]):
        options = message.get_attr("TCA_OPTIONS")
        if message.get_attr("TCA_KIND") == "bpf" and options is not None:
            out.append({name: value for name, value in options["attrs"]})
    return out


def clsact_totals(switch: NetNS, port_index: int) -> tuple[int, int, int]:
    """(packets, bytes, drops) of the port's clsact, both directions together."""
    for qdisc in switch.get_qdiscs(port_index):
        if qdisc.get_attr("TCA_KIND") == "clsact":
            stats = qdisc.get_attr("TCA_STATS2")
            basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
            return basic["packets"], basic["bytes"], queue["drops"]
    return 0, 0, 0
