"""A timer that epoll waits for to the microsecond: its own timeout is rounded up to whole milliseconds."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from contextlib import suppress

_CLOCK_MONOTONIC, _ABSOLUTE, _NONBLOCK = 1, 1, 0o4000
_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    def __init__(self) -> None:
        self.fd = int(_libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._set = -1.0

    def at(self, moment: float) -> None:
        """Rings at this moment of time.monotonic()."""
        if moment == self._set:
            return
        self._set = moment
        whole = max(int(moment * 1e9), 1)
        value = ctypes.create_string_buffer(struct.pack("<qqqq", 0, 0, whole // 10**9, whole % 10**9), 32)
        _libc.timerfd_settime(self.fd, _ABSOLUTE, value, None)

    def heard(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)


now = time.monotonic
