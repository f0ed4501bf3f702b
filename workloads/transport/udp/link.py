"""One UDP socket: super-packets out (UDP_SEGMENT), merged packets in (UDP_GRO). Falls back to single packets."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import struct
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from lossbench.contract import HEADER_BYTES
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.udp.admission import admit_only

UDP_SEGMENT, UDP_GRO, SO_RCVBUFFORCE, SO_SNDBUFFORCE, SO_MEMINFO, SO_TIMESTAMPNS = 103, 104, 33, 32, 55, 35
IP_MTU, IPV6_MTU, IPV6_TCLASS, IP_RECVERR, IPV6_RECVERR = 14, 24, 67, 11, 25
MEMINFO_RCVBUF, MEMINFO_DROPS = 1, 8
RECEIVE_BYTES, SEND_BYTES = 64 << 20, 2 << 20  # doubled by the kernel: less than a host's queue holds
LARGEST_DATAGRAM = 65_000
MAX_SEGMENTS = 64  # of one super-packet, on all kernels
PENDING_TRIES = 8  # errors in a row that packets to others may have left on the socket: what the network says of one
# packet is said when the next is to leave, whoever that is for
PENDING = frozenset(
    (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENONET)
    + (errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EPROTO, errno.EMSGSIZE)
)
TRUESIZE = 3  # what a packet costs in the receive buffer, at worst, in its own size

Address = tuple[str, int]


class Link:
    """Sends and receives; judges nothing, counts only what the host refused."""

    def __init__(self, address: str, port: int, *, dscp: int = 0) -> None:
        self.family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket = socket.socket(self.family, socket.SOCK_DGRAM)
        self._buffer(SO_RCVBUFFORCE, socket.SO_RCVBUF, RECEIVE_BYTES)
        self._buffer(SO_SNDBUFFORCE, socket.SO_SNDBUF, SEND_BYTES)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        v6 = self.family == socket.AF_INET6
        # Without it a full queue of this host loses packets and says nothing.
        self.socket.setsockopt(socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP, IPV6_RECVERR if v6 else IP_RECVERR, 1)
        self.segments = self._option(UDP_SEGMENT, 0)
        self.merges = self._option(UDP_GRO, 1)
        if dscp:
            self.socket.setsockopt(
                socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP, IPV6_TCLASS if v6 else socket.IP_TOS, dscp << 2
            )
        self.socket.bind((address, port))
        self.socket.setblocking(False)
        self.address: Address = self.socket.getsockname()[:2]
        self._room = bytearray(1 << 16)
        self._array = np.frombuffer(self._room, dtype=np.uint8)
        self._rest = self._array[:0]
        # Opened now: they stay those of the host that this thread is in.
        places = [f"/proc/thread-self/net/{name}" for name in ("snmp", "snmp6")]
        self._tables = [os.open(place, os.O_RDONLY) for place in places if os.access(place, os.R_OK)]
        self._errors_before = self._errors()
        self.sender: Address = ("", 0)  # of what was received last
        self.refused = 0  # packets, as often as they were; not those that waited for room in the socket's own buffer
        self._narrow: set[Address] = set()  # of whom a batch was too wide, and a packet alone was not
        if not self.segments or not self.merges:
            missing = " and ".join(n for n, has in (("GSO", self.segments), ("GRO", self.merges)) if not has)
            warnings.warn(f"no UDP {missing} here: every packet is a system call, several times slower", stacklevel=3)

    def _buffer(self, force: int, plain: int, size: int) -> None:
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, force, size)
        except PermissionError:  # up to the system's limit; the window is made to fit
            self.socket.setsockopt(socket.SOL_SOCKET, plain, size)

    def _option(self, option: int, value: int) -> bool:
        try:
            self.socket.setsockopt(socket.IPPROTO_UDP, option, value)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()
        for table in self._tables:
            os.close(table)
        self._tables = []

    def fileno(self) -> int:
        return self.socket.fileno()

    def datagram_bytes(self, peer: Address) -> int:
        """The largest UDP payload that fits the path's MTU; loopback's is cut to what a batch can hold."""
        v6 = self.family == socket.AF_INET6
        with socket.socket(self.family, socket.SOCK_DGRAM) as probe:
            probe.connect(peer)
            mtu = probe.getsockopt(socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP, IPV6_MTU if v6 else IP_MTU)
        return min(mtu, 9000) - (48 if v6 else 28)

    def window_bytes(self, peers: int) -> int:
        """What each of so many senders may have under way here without any chance of overflow."""
        return max(self._memory()[MEMINFO_RCVBUF] // TRUESIZE // max(peers, 1), 2 * HEADER_BYTES)

    def admit_only(self, peers: Iterable[Address]) -> None:
        admit_only(self.socket, peers)

    def dropped(self) -> int:
        """Packets that reached this socket and did not fit, or were damaged."""
        all_of_them = self._memory()[MEMINFO_DROPS]
        return min(all_of_them, self._errors() - self._errors_before) if all_of_them else 0

    def turned_away(self) -> int:
        """Strangers' packets that the filter kept out."""
        return self._memory()[MEMINFO_DROPS] - self.dropped()

    def _errors(self) -> int:
        """No room, no memory, wrong checksums, of all UDP sockets here; a socket counts what the filter drops, too."""
        texts = [os.pread(table, 65536, 0).decode("ascii", "replace") for table in self._tables]
        return sum(_counted(text, name) for text in texts for name in ("RcvbufErrors", "InCsumErrors", "MemErrors"))

    def _memory(self) -> tuple[int, ...]:
        return struct.unpack("9I", self.socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))

    # --- sending -----------------------------------------------------------------------------------------------------

    def batch(self, segment: int) -> int:
        """Packets per system call."""
        return max(1, min(MAX_SEGMENTS, LARGEST_DATAGRAM // segment))

    def send_rows(self, rows: wire.Bytes, peer: Address) -> int:
        """At most one batch; how many went: fewer if there is no room now. OSError: the host does not take them."""
        segment = rows.shape[1]
        if self.segments and len(rows) > 1:
            cut = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", segment))]
            try:
                if not self._out([rows.reshape(-1).data], cut, peer, len(rows)):
                    return 0
                self._narrow.discard(peer)
                return len(rows)
            except OSError as error:
                if error.errno == errno.EINVAL:  # what older kernels say of a batch that is too wide
                    return self._too_wide(rows, peer)
                if error.errno != errno.EIO:  # EIO: this device can't have its packets cut
                    raise
            self.one_by_one()
        for went, row in enumerate(rows):
            try:
                if not self.send(row.data, peer):
                    return went
            except OSError:
                if not went:
                    raise
                return went
        return len(rows)

    def _too_wide(self, rows: wire.Bytes, peer: Address) -> int:
        """One by one they pass (in pieces), as a batch they do not: said when it is so twice in a row, since a way may
        be narrow for a moment."""
        if not self.send(rows[0].data, peer):
            return 0
        if peer in self._narrow:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        self._narrow.add(peer)
        return 1

    def one_by_one(self) -> None:
        """The device can't cut batches: said once."""
        if self.segments:
            self.segments = False
            warnings.warn("this device takes no UDP GSO: every packet is a system call", stacklevel=3)

    def send(self, packet: bytes | memoryview, peer: Address) -> bool:
        """One datagram."""
        return self._out([packet], [], peer)

    def _out(self, parts: list[Any], cut: list[Any], peer: Address, packets: int = 1) -> bool:
        """False if a queue is full. What the host does not take was not sent; what it says of another packet is not
        about this one."""
        for tries in range(PENDING_TRIES + 1):
            try:
                self.socket.sendmsg(parts, cut, 0, peer)
            except BlockingIOError:
                return False
            except OSError as error:
                self.refused += packets * (error.errno != errno.EIO)
                if error.errno in (errno.ENOBUFS, errno.ENOMEM):
                    return False
                if error.errno not in PENDING or tries == PENDING_TRIES:
                    raise
                self._drain_errors()  # else the socket stays "ready" for what is said of it
            else:
                return True
        return False

    def wait_either(self, seconds: float) -> None:
        """Until something can be sent or received."""
        _select([self.socket.fileno()], [self.socket.fileno()], seconds)

    def wait_writable(self, seconds: float) -> None:
        _select([], [self.socket.fileno()], seconds)

    # --- receiving ---------------------------------------------------------------------------------------------------

    def receive(self) -> tuple[wire.Bytes, bool] | None:
        """(rows, more follow of another size): the packets of one system call, valid until the next; None if there are
        none. Rows of equal length; a shorter last packet is its own row: see `leftover`."""
        try:
            count, ancillary, _, sender = self.socket.recvmsg_into([self._room], 64)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EBADF:
                raise
            self._drain_errors()
            return None
        self.sender = sender[:2]
        segment = count
        for level, kind, value in ancillary:
            if level == socket.IPPROTO_UDP and kind == UDP_GRO:
                segment = struct.unpack_from("i", value)[0]
        if segment == 0:
            return self._array[:0].reshape(0, 1), False
        whole = count // segment
        self._rest = self._array[whole * segment : count]
        return self._array[: whole * segment].reshape(whole, segment), len(self._rest) > 0

    def _drain_errors(self) -> None:
        """What the host says of packets that went: full queues, peers that are not there."""
        with contextlib.suppress(OSError):
            for _ in range(64):
                self.socket.recvmsg(1, 512, socket.MSG_ERRQUEUE)

    def leftover(self) -> wire.Bytes:
        """The shorter packet that ended the last merged run."""
        return self._rest.reshape(1, -1)

    def wait(self, seconds: float, wake: int) -> bool:
        """Until a packet comes, somebody writes to `wake`, or the time is over; True if a packet is there."""
        return self.socket.fileno() in _select([self.socket.fileno(), wake], [], seconds)


def _counted(text: str, name: str) -> int:
    """Of /proc/net/snmp (two lines for each protocol: names, numbers) or snmp6 (a line for each counter)."""
    lines = [line.split() for line in text.splitlines()]
    for names, numbers in itertools.pairwise(lines):
        if names[0] == numbers[0] == "Udp:" and name in names:
            return int(numbers[names.index(name)])
    return next((int(line[1]) for line in lines if line[0] == f"Udp6{name}"), 0)


def _select(read: list[int], write: list[int], seconds: float) -> list[int]:
    """select, which knows microseconds; poll, which knows milliseconds, where descriptors are too many for it."""
    if max(*read, *write, 0) < 1024:
        readable, writable, _ = select.select(read, write, [], seconds)
        return [*readable, *writable]
    poll = select.poll()
    for descriptor in read:
        poll.register(descriptor, select.POLLIN)
    for descriptor in write:
        poll.register(descriptor, select.POLLOUT)
    return [descriptor for descriptor, _ in poll.poll(seconds * 1000)]
