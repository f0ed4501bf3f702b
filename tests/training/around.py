"""A strategy that talks past the fault: what a library does that stripes over every link it finds."""

from __future__ import annotations

import os
import socket

from lossbench.workloads.sync.rps import Rps

BYTES = 1400
DATAGRAMS = 60  # of each step and rank


class Around(Rps):
    def step(self) -> None:
        super().step()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(DATAGRAMS):
                sender.sendto(bytes(BYTES), (os.environ["MASTER_ADDR"], 9))
