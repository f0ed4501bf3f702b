"""Bytes that left over a rank's links, with headers, acknowledgements, parity and what was sent again: what a strategy
costs the network (data, whoever sent it), and what a rank needed itself to come to life (control)."""

from __future__ import annotations

import os
from pathlib import Path

from lossbench.contract import Door
from lossbench.workloads.transport import own

DEVICES = Path("/proc/thread-self/net/dev")  # of the host that this thread is in
SENT = 8  # which of the numbers behind a device's name


def bytes_sent(door: Door) -> int | None:
    """So far; none where the run has no link of its own (simulated loss). Called in the rank's own thread."""
    return _sent_over(door.interface)


def control_bytes_sent() -> int:
    """By this process itself, over the control link; 0 where there is none. What goes to and from the store is counted
    there."""
    interface, store = os.environ.get("LOSSBENCH_CONTROL_INTERFACE", ""), os.environ.get("MASTER_PORT", "0")
    return own.sent_over(interface, besides=int(store)) if interface else 0


def _sent_over(interface: str) -> int | None:
    if not interface:
        return None
    for line in DEVICES.read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            return int(numbers.split()[SENT])
    return None
