"""Probes from machine to machine: every agent opens its own ends, all send at once, what they heard is put together
here.

Delays are one way. The clocks of two machines are compared over the control network, which no rule touches; by how much
that can be wrong is stated with the delay."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lossbench.net.lab.channel import Channel
from lossbench.net.lab.network import LabNetwork
from lossbench.proof.probe.exchange import DELAY_SAMPLES, SETTLE_S
from lossbench.proof.probe.flows import Flow
from lossbench.proof.probe.heard import Heard
from lossbench.runs.lab.probes import FLOWS

LISTEN_S = 0.5  # machines do not begin at the same moment
SEND_S = 120.0
Clocks = dict[int, tuple[float, float]]


class LabExchange:
    """See probing.Probes."""

    def __init__(self, network: LabNetwork, flows: list[Flow], *, payload_bytes: int, token: int, **_: Any) -> None:
        self._machines, self._all, self._flows = network.machines, network.machines.all, flows
        self._asked = {"flows": FLOWS.dump_python(flows, mode="json"), "payload_bytes": payload_bytes, "token": token}
        self.overflow = 0

    def __enter__(self) -> LabExchange:
        found = self._all(lambda c: c.ask("probes.open", rank=c.rank, **self._asked))
        origins = {number: one for here in found.values() for number, one in here.items()}
        self._all(lambda c: c.ask("probes.know", origins=origins))
        return self

    def __exit__(self, *_: object) -> None:
        self._machines.each(lambda c: c.ask("probes.close"))

    def loss(
        self, *, packets: int, rate_mbit: float | None, settled: Callable[[int], bool], wait_s: float
    ) -> list[Heard]:
        self._all(lambda c: c.ask("probes.begin", packets=packets))
        self._all(lambda c: c.ask("probes.send", packets=packets, rate_mbit=rate_mbit, timeout_s=SEND_S))
        self._settle(settled=settled, wait_s=wait_s)
        return self._put_together(packets)

    def _settle(self, *, settled: Callable[[int], bool], wait_s: float) -> None:
        """Until the counters add up, or nothing has come for a while."""
        before, quiet_since = -1, time.monotonic()
        while time.monotonic() - quiet_since < wait_s + SETTLE_S:
            arrived = sum(self._all(lambda c: c.ask("probes.drain")).values())
            if settled(arrived):
                return
            if arrived != before:
                before, quiet_since = arrived, time.monotonic()

    def delay(self, *, wait_s: float) -> list[Heard]:
        clocks = self._all(_clock)
        self._all(lambda c: c.ask("probes.begin", packets=DELAY_SAMPLES))
        self._all(lambda c: c.ask("probes.send_spaced", listen_s=wait_s + LISTEN_S, timeout_s=SEND_S))
        again = self._all(_clock)
        return self._put_together(DELAY_SAMPLES, clocks={rank: min(one, again[rank]) for rank, one in clocks.items()})

    def _put_together(self, packets: int, clocks: Clocks | None = None) -> list[Heard]:
        found = self._all(lambda c: c.ask("probes.heard"))
        self.overflow = sum(one["overflow"] for one in found.values())
        out = []
        for number, flow in enumerate(self._flows):
            said = found[flow.destination.rank]["flows"][str(number)]
            order = np.frombuffer(base64.b64decode(said["order"]), dtype="<u4")
            one = Heard(flow=flow, sent=flow.count(packets), order=[order], wrong_headers=said["wrong_headers"])
            one.delays_ms = said["delays_ms"]
            one.late_ms = found[flow.source.rank]["late_ms"][str(number)]
            if clocks is not None:
                (wide_s, there), (wide_too_s, here) = clocks[flow.destination.rank], clocks[flow.source.rank]
                one.delays_ms = [ms - 1000 * (there - here) for ms in one.delays_ms]
                one.clock_ms = 1000 * (wide_s + wide_too_s)
            out.append(one)
        return out


def _clock(channel: Channel) -> tuple[float, float]:
    """(known to within, its monotonic clock ahead of ours)."""
    return channel.clock("machine.monotonic", time.monotonic)
