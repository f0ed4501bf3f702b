"""One TCP connection that takes what it can get, beside the contenders: from rank 1 to rank 0, in processes of its own.

stream.py receive ADDRESS PORT HANDLE | stream.py send ADDRESS PORT CONTROL      (HANDLE: of memory for bytes so far)"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time

from lossbench.contract import Door
from lossbench.workloads.errors import OptionError

PORT = 29392
CONTROLS = ("bbr", "cubic", "reno")
PR_SET_PDEATHSIG = 1
CHUNK = 1 << 18


class Stream:
    """On every rank; only two of them do something."""

    def __init__(self, door: Door, control: str) -> None:
        if control not in CONTROLS:
            raise OptionError(f"no congestion control '{control}' for a stream beside: {', '.join(CONTROLS)}")
        self._handle = os.memfd_create("stream")  # shared with the receiver; nothing is left behind
        os.ftruncate(self._handle, 8)
        self._count = mmap.mmap(self._handle, 8)
        self._process: subprocess.Popen[bytes] | None = None
        address = door.addresses[0]
        if door.rank == 0:
            self._start("receive", address, str(self._handle))
        elif door.rank == 1:
            self._start("send", address, control)

    def _start(self, what: str, address: str, last: str) -> None:
        command = [sys.executable, os.path.abspath(__file__), what, address, str(PORT), last]
        self._process = subprocess.Popen(command, pass_fds=[self._handle])

    @property
    def received(self) -> int:
        """Bytes so far, at rank 0."""
        return int(struct.unpack("<q", self._count[:8])[0])

    def wait_for_bytes(self, seconds: float = 30.0) -> None:
        """OptionError if none comes: a run beside nothing would say that it had everything."""
        until = time.monotonic() + seconds
        while not self.received:
            if time.monotonic() > until:
                raise OptionError("the TCP stream beside did not begin: is its congestion control on this kernel?")
            time.sleep(0.05)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        os.close(self._handle)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def receive(address: str, port: int, handle: int) -> None:
    room = bytearray(CHUNK)
    with mmap.mmap(handle, 8) as count, socket.create_server((address, port), family=_family(address)) as server:
        one, _ = server.accept()
        total = 0
        while got := one.recv_into(room):
            total += got
            count[:8] = struct.pack("<q", total)


def send(address: str, port: int, control: str) -> None:
    data = bytes(CHUNK)
    until = time.monotonic() + 30
    while True:
        one = socket.socket(_family(address))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        try:
            one.connect((address, port))
            break
        except OSError:
            one.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
    while True:
        one.sendall(data)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.argv[1] == "receive":
        receive(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        send(sys.argv[2], int(sys.argv[3]), sys.argv[4])
