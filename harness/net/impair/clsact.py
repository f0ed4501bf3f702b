"""The hook itself: clsact on a switch port. Ingress: what the host sends (uplink); egress: what it gets (downlink)."""

from __future__ import annotations

import errno
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

PARENT = {"uplink": 0xFFFFFFF2, "downlink": 0xFFFFFFF3}


def ensure_clsact(switch: IPRoute, port_index: int) -> None:
    try:
        switch.tc("add", "clsact", port_index)
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise


def filters_of(switch: IPRoute, port_index: int, direction: str) -> list[dict[str, Any]]:
    """The options of every bpf filter at this hook, as the kernel dumps them."""
    out = []
    for message in switch.get_filters(index=port_index, parent=PARENT[direction]):
        options = message.get_attr("TCA_OPTIONS")
        if message.get_attr("TCA_KIND") == "bpf" and options is not None:
            out.append(dict(options["attrs"]))
    return out


def totals(switch: IPRoute, port_index: int, *, both_directions: bool) -> dict[str, tuple[int, int]]:
    """(seen, dropped) per direction. clsact counts only directions that have a filter, and both of them together; what
    entered and left the port tells them apart: everything received passed the ingress hook, everything that passed the
    egress hook was sent or queued."""
    packets = drops = queued = 0
    for qdisc in switch.get_qdiscs(port_index):
        stats = qdisc.get_attr("TCA_STATS2")
        if stats is None:
            continue
        basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
        if qdisc.get_attr("TCA_KIND") == "clsact":
            packets, drops = basic["packets"], queue["drops"]
        elif qdisc["parent"] == 0xFFFFFFFF:
            queued = queue["drops"] + queue["qlen"]
    if not both_directions:
        return {"uplink": (packets, drops), "downlink": (packets, drops)}
    link = switch.get_links(port_index)[0].get_attr("IFLA_STATS64")
    received, sent = link["rx_packets"], link["tx_packets"]
    down_seen = packets - received
    down_dropped = down_seen - sent - queued
    return {"uplink": (received, drops - down_dropped), "downlink": (down_seen, down_dropped)}
