"""One machine's ends of the probes."""

from __future__ import annotations

import base64
import time
from contextlib import ExitStack
from typing import Any

from pydantic import TypeAdapter

from lossbench.net.host.place import Here
from lossbench.proof.probe.flows import Flow
from lossbench.proof.probe.heard import Heard

DRAIN_S = 2.0
FLOWS: TypeAdapter[list[Flow]] = TypeAdapter(list[Flow])


class Probes:
    """Opened for one proof. Every public method is a question."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._heard: list[Heard] = []

    def open(self, *, flows: Any, rank: int, payload_bytes: int, token: int) -> dict[str, list[Any]]:
        """Returns address and port of the UDP flows that begin here."""
        from lossbench.proof.probe.exchange import Exchange  # with scapy, which takes a second to load

        self.close()
        self._rank = rank
        opened = Exchange(
            FLOWS.validate_python(flows),
            place_of=lambda name: Here(name),
            payload_bytes=payload_bytes,
            token=token,
            only={rank},
        )
        self._exchange = self._stack.enter_context(opened)
        return {str(n): list(one) for n, one in self._exchange.origins.items() if isinstance(one, tuple)}

    def know(self, origins: dict[str, list[Any]]) -> None:
        self._exchange.origins |= {int(n): (str(one[0]), int(one[1])) for n, one in origins.items()}

    def begin(self, packets: int) -> None:
        """Nothing of this round was heard yet."""
        self._heard = self._exchange.begun(packets)

    def send(self, *, packets: int, rate_mbit: float | None) -> None:
        self._exchange.send_all(self._heard, packets=packets, rate_mbit=rate_mbit)

    def send_spaced(self, *, listen_s: float) -> None:
        """And what comes is heard at once, also after the last of ours."""
        self._exchange.send_spaced(self._heard)
        self._exchange.listen(self._heard, listen_s)

    def drain(self) -> int:
        """Packets that have arrived here so far, each counted once. All that waits is taken at once: another question
        costs every machine a reading of its network, and sockets may hold a hundred thousand."""
        limit = time.monotonic() + DRAIN_S
        while self._exchange.drain(self._heard) and time.monotonic() < limit:
            pass
        return sum(one.sent - int(one.missing().sum()) for one in self._mine().values())

    def _mine(self) -> dict[int, Heard]:
        return {n: one for n, one in enumerate(self._heard) if one.flow.destination.rank == self._rank}

    def heard(self) -> dict[str, Any]:
        self._exchange.drain(self._heard)
        late = {str(n): one.late_ms for n, one in enumerate(self._heard) if one.flow.source.rank == self._rank}
        flows = {
            str(number): {
                "order": base64.b64encode(one.sequence().astype("<u4").tobytes()).decode(),
                "delays_ms": one.delays_ms,
                "wrong_headers": one.wrong_headers,
            }
            for number, one in self._mine().items()
        }
        return {"flows": flows, "late_ms": late, "overflow": self._exchange.overflow}

    def close(self) -> None:
        self._stack.close()
