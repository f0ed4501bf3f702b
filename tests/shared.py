"""What several tests compute: a frame off the wire as our header, a count as deviations from what a chain makes."""

from __future__ import annotations

import math

from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether

from harness import contract, lossmodel
from harness.lossmodel import Chain
from harness.net.probe import datagram


def dissect_frame(frame: bytes) -> dict[str, int] | None:
    """The header of one of our datagrams, or None if the frame holds none."""
    packet = Ether(frame)
    if UDP not in packet or len(bytes(packet[UDP].payload)) < contract.HEADER_BYTES:
        return None
    fields = datagram.dissect(bytes(packet[UDP].payload))
    return fields if fields["magic"] == contract.MAGIC else None


def z_score(dropped: int, seen: int, chain: Chain) -> float:
    """For bounds of tests; verdicts use exact tails."""
    deviation = math.sqrt(seen * lossmodel.loss_variance_per_packet(chain))
    return (dropped - seen * lossmodel.mean_loss(chain)) / deviation if deviation else 0.0
