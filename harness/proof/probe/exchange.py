"""The fast path: probe packets by the thousand through real sockets of the hosts, 64 to a system call.

Sending with UDP_SEGMENT is deliberate: if offloads were not in order, the probe itself would show it in its bursts.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import numpy as np
from numpy.typing import NDArray

from lossbench import contract
from lossbench.errors import RunError
from lossbench.net.host.place import Place
from lossbench.proof.probe import ancillary, datagram, foils
from lossbench.proof.probe.flows import Flow, addresses
from lossbench.proof.probe.heard import Heard

PACKET_OUTGOING = 4
UDP_SEGMENT, UDP_GRO, SO_RCVBUFFORCE, SO_SNDBUFFORCE = 103, 104, 33, 32
BATCH = 64  # packets per system call, the kernel's limit on older versions
STAMP_AT = contract.HEADER_BYTES  # 8 bytes: when it was sent, monotonic nanoseconds
TOKEN_AT, CHUNK_AT = contract.HEADER_FIELDS["tag"][0], contract.HEADER_FIELDS["chunk"][0]
SETTLE_S = 1.0  # a busy machine may deliver late; where the counters add up nobody waits
DRAIN_CALLS, DRAIN_BYTES = 1000, 4 << 20  # of one socket; that are looked at together
DELAY_SAMPLES, DELAY_SPACING_S = 150, 0.004


class Exchange:
    """Sockets in every host that takes part; closed together. `only`: ranks whose ends are here, the others' are
    elsewhere (in a lab every machine has its own ends)."""

    def __init__(
        self,
        flows: list[Flow],
        *,
        place_of: Callable[[str], Place],
        payload_bytes: int,
        token: int,
        only: set[int] | None = None,
    ) -> None:
        self.flows = flows
        self.size = payload_bytes
        self.token = token & ~0xFFFF  # the low bits number the flows
        self._overflow: dict[socket.socket, int] = {}
        self._place_of = place_of
        self._stack = ExitStack()
        self._only = only
        self._senders: dict[int, socket.socket] = {}  # by the flow's number
        self._receivers: dict[tuple[int, int, int, str], socket.socket] = {}
        self._templates: list[bytes] = []
        self.origins: dict[int, tuple[str, int] | bytes] = {}  # where each flow's packets must come from

    def __enter__(self) -> Exchange:
        try:
            for number, flow in enumerate(self.flows):
                self._open(number, flow)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self, number: int, flow: Flow) -> None:
        header = contract.Header(
            kind=contract.KINDS[flow.kind],
            tag=self.token + number,
            source=flow.source.rank,
            destination=flow.destination.rank,
            step=flow.step,
            half=flow.half,
            block=flow.block,
        )
        data = datagram.payload(header, size=self.size)
        key = (flow.destination.rank, flow.family, flow.destination_port, flow.protocol)
        udp = flow.protocol == "udp"
        self._templates.append(data if udp else datagram.tcp_frame(datagram.ends_of(flow), data))
        if not udp:
            self.origins[number] = datagram.origin(self._templates[-1])
        if self._here(flow.destination.rank) and key not in self._receivers:
            with self._place_of(flow.destination.name).inside():
                self._receivers[key] = self._receiver(flow)
        if self._here(flow.source.rank):
            with self._place_of(flow.source.name).inside():
                self._senders[number] = self._sender(flow)
            if udp:
                self.origins[number] = self._senders[number].getsockname()[:2]

    def _here(self, rank: int) -> bool:
        return self._only is None or rank in self._only

    def _keep(self, one: socket.socket) -> socket.socket:
        for option in (SO_RCVBUFFORCE, SO_SNDBUFFORCE):
            with suppress(OSError):  # without privilege the default size must do; rounds are small
                one.setsockopt(socket.SOL_SOCKET, option, 32 << 20)
        return self._stack.enter_context(one)

    def _receiver(self, flow: Flow) -> socket.socket:
        if flow.protocol == "tcp":
            one = self._keep(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)))
            one.bind((flow.destination.interface, 0x0003))
        else:
            one = self._keep(socket.socket(socket.AF_INET if flow.family == 4 else socket.AF_INET6, socket.SOCK_DGRAM))
            with suppress(OSError):
                one.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            try:
                one.bind((addresses(flow)[1], flow.destination_port))
            except OSError as error:
                where = f"{flow.destination.name} port {flow.destination_port}"
                raise RunError(
                    f"the probe can't listen on {where} ({error.strerror}): is a program using it?"
                ) from None
        ancillary.ask(one)
        one.setblocking(False)
        return one

    def _sender(self, flow: Flow) -> socket.socket:
        if flow.protocol == "tcp":
            one = self._keep(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            one.bind((flow.source.interface, 0))
            return one
        source, destination = addresses(flow)
        one = self._keep(socket.socket(socket.AF_INET if flow.family == 4 else socket.AF_INET6, socket.SOCK_DGRAM))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if flow.dscp:
            level, option = (socket.IPPROTO_IP, socket.IP_TOS) if flow.family == 4 else (socket.IPPROTO_IPV6, 67)
            one.setsockopt(level, option, flow.dscp << 2)
        one.bind((source, flow.source_port))
        one.connect((destination, flow.destination_port))
        return one

    @property
    def overflow(self) -> int:
        """Packets that reached a socket of ours and did not fit into it."""
        return sum(self._overflow.values())

    # --- sending -----------------------------------------------------------------------------------------------

    def loss(
        self, *, packets: int, rate_mbit: float | None, settled: Callable[[int], bool], wait_s: float
    ) -> list[Heard]:
        """`packets` per flow, all flows in turn, never faster than half the links' rate. `settled(received)` says from
        the kernel's counters that nothing is under way any more."""
        heard = self.begun(packets)
        self.send_all(heard, packets=packets, rate_mbit=rate_mbit)
        self._settle(heard, settled=settled, wait_s=wait_s)
        return heard

    def begun(self, packets: int) -> list[Heard]:
        """Nothing was heard yet."""
        return [Heard(flow=flow, sent=flow.count(packets)) for flow in self.flows]

    def send_all(self, heard: list[Heard], *, packets: int, rate_mbit: float | None) -> None:
        """Of every flow that begins here; what comes meanwhile is heard."""
        batch = (
            BATCH if rate_mbit is None else max(1, min(BATCH, round(rate_mbit * 1e6 / 8 * 0.002 / (self.size + 66))))
        )
        round_s = 0.0 if rate_mbit is None else batch * (self.size + 66) * 8 / (rate_mbit * 1e6 * 0.5)
        frames = {number: self._frames(number, batch) for number in self._senders}
        clock = time.monotonic()
        for together in foils.rounds({number: self.flows[number] for number in frames}, packets=packets, batch=batch):
            for number, first, count in together:
                self._send(number, self._senders[number], frames[number], first, count)
            self.drain(heard)
            # Whoever was held up makes good one round, no more: all of them at once would fill a slow link's queue.
            clock = max(clock + round_s, time.monotonic() - round_s)
            if round_s:
                time.sleep(max(clock - time.monotonic(), 0))

    def _frames(self, number: int, count: int) -> NDArray[np.uint8]:
        return np.tile(np.frombuffer(self._templates[number], dtype=np.uint8), (count, 1))

    def _send(self, number: int, sender: socket.socket, frames: NDArray[np.uint8], first: int, count: int) -> None:
        flow, rows = self.flows[number], frames[:count]
        at = frames.shape[1] - self.size  # headers of a crafted frame
        index = np.arange(first, first + count, dtype=np.uint32)
        rows[:, at + CHUNK_AT : at + CHUNK_AT + 4] = index.view(np.uint8).reshape(count, 4)
        if flow.blocks:
            blocks = np.array([flow.block_of(i) for i in range(first, first + count)], dtype=np.uint32)
            offset = contract.HEADER_FIELDS["block"][0]
            rows[:, at + offset : at + offset + 4] = blocks.view(np.uint8).reshape(count, 4)
        stamp = np.frombuffer(struct.pack("<Q", time.monotonic_ns()), dtype=np.uint8)
        rows[:, at + STAMP_AT : at + STAMP_AT + 8] = stamp
        try:
            if flow.protocol == "udp" and count > 1:
                self._send_segmented(sender, rows)
            else:
                for row in rows:
                    sender.send(row.tobytes())
        except OSError as error:
            raise RunError(f"probe from {flow.source.name} to {flow.destination.name} can't be sent: {error}") from None

    def _send_segmented(self, sender: socket.socket, rows: NDArray[np.uint8]) -> None:
        try:
            sender.sendmsg([rows.tobytes()], [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("<H", self.size))])
        except OSError as error:
            if error.errno != errno.EIO:  # older kernels segment only if the device does checksums
                raise
            for row in rows:
                sender.send(row.tobytes())

    # --- receiving ---------------------------------------------------------------------------------------------

    def drain(self, heard: list[Heard]) -> int:
        """What waits in any socket, as much as may be held at once; returns how many packets came."""
        total = 0
        for (host, _, _, protocol), receiver in self._receivers.items():
            reads: dict[tuple[str, int] | bytes, list[tuple[bytes, int]]] = {}
            held = 0
            for _ in range(DRAIN_CALLS):  # others may send faster than we can look
                try:
                    data, beside, _, address = receiver.recvmsg(65536, ancillary.ANCILLARY_BYTES)
                except BlockingIOError:
                    break
                now = ancillary.came_ns(beside)
                if protocol == "tcp" and address[2] == PACKET_OUTGOING:
                    continue  # a tap also sees what its own host sends, before the loss point
                self._overflow[receiver] = ancillary.overflowed(beside) or self._overflow.get(receiver, 0)
                origin = address[:2] if protocol == "udp" else datagram.origin(data)
                data = data if protocol == "udp" else data[-self.size :]
                if data and len(data) % self.size == 0:
                    reads.setdefault(origin, []).append((data, now))
                    held += len(data)
                if held >= DRAIN_BYTES:  # the rest waits
                    break
            total += sum(self._account(heard, some, host=host, origin=origin) for origin, some in reads.items())
        return total

    def _account(
        self, heard: list[Heard], reads: list[tuple[bytes, int]], *, host: int, origin: tuple[str, int] | bytes
    ) -> int:
        """All that was read at once: one by one, a packet costs more here than in the kernel."""
        rows = np.frombuffer(b"".join(data for data, _ in reads), dtype=np.uint8).reshape(-1, self.size)
        read_of = np.repeat(np.arange(len(reads)), [len(data) // self.size for data, _ in reads])
        came = np.array([now for _, now in reads], dtype=np.int64)
        tokens = np.ascontiguousarray(rows[:, TOKEN_AT : TOKEN_AT + 8]).view(np.uint64)[:, 0]
        chunks = np.ascontiguousarray(rows[:, CHUNK_AT : CHUNK_AT + 4]).view(np.uint32)[:, 0]
        stamps = np.ascontiguousarray(rows[:, STAMP_AT : STAMP_AT + 8]).view(np.int64)[:, 0]
        total = 0
        for token in np.unique(tokens):
            number = int(token) - self.token
            if not 0 <= number < len(heard) or self.origins.get(number) != origin:
                continue  # a stranger's packet
            one = heard[number]
            if one.flow.destination.rank != host:
                continue  # somebody else's, seen by a tap
            mine = np.flatnonzero(tokens == token)
            if not one.order:
                one.wrong_headers += not datagram.is_right(one.flow, bytes(rows[mine[0]]))
            one.order.append(chunks[mine])
            firsts = mine[np.unique(read_of[mine], return_index=True)[1]]  # what one read brings came together
            one.delays_ms += ((came[read_of[firsts]] - stamps[firsts]) / 1e6).tolist()
            total += len(mine)
        return total

    def _settle(self, heard: list[Heard], *, settled: Callable[[int], bool], wait_s: float) -> None:
        """Until the counters add up, or nothing has come for a while."""
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < wait_s + SETTLE_S:
            if self.drain(heard):
                quiet_since = time.monotonic()
            if settled(sum(h.sent - int(h.missing().sum()) for h in heard)):
                return
            select.select(list(self._receivers.values()), [], [], 0.005)

    def delay(self, *, wait_s: float) -> list[Heard]:
        """Single packets, spaced, received at once: one-way delay on one clock."""
        heard = self.begun(DELAY_SAMPLES)
        self.send_spaced(heard)
        sent = DELAY_SAMPLES * sum(not flow.turn for flow in self.flows)
        self._settle(heard, settled=lambda received: received == sent, wait_s=wait_s)
        return heard

    def send_spaced(self, heard: list[Heard]) -> None:
        """How late we were ourselves, each time that we wanted to go on, is written down: who waits for a core makes
        others' packets wait too."""
        frames = {number: self._frames(number, 1) for number in self._senders if not self.flows[number].turn}
        for first in range(DELAY_SAMPLES):
            for number, rows in frames.items():
                self._send(number, self._senders[number], rows, first, 1)
            late_ms = 1000 * self.listen(heard, DELAY_SPACING_S)
            for number in frames:
                heard[number].late_ms.append(late_ms)

    def listen(self, heard: list[Heard], seconds: float) -> float:
        """Whatever comes is heard at once. Returns by how much longer this took."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select(list(self._receivers.values()), [], [], left)[0]:
                self.drain(heard)
        return -left
