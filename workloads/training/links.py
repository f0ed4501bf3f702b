"""What a strategy costs the network: bytes that left over a rank's data link, whoever sent them (our datagrams, Gloo's
TCP), with headers, acknowledgements, parity and what was sent again."""

from __future__ import annotations

from pathlib import Path

from lossbench.contract import Door

DEVICES = Path("/proc/thread-self/net/dev")  # of the host that this thread is in
SENT = 8  # which of the numbers behind a device's name


def bytes_sent(door: Door) -> int | None:
    """So far; none where the run has no link of its own (simulated loss). Called in the rank's own thread."""
    if not door.interface:
        return None
    for line in DEVICES.read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == door.interface:
            return int(numbers.split()[SENT])
    return None
