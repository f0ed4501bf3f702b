"""Where arriving packets go: added to a sum, or put in their place. In numpy; pump.c does the common ones itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from lossbench.workloads.transport.native import native
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.codec import Codec
from lossbench.workloads.transport.packet.wire import Array


class Sink(Protocol):
    def run(self, first: int, rows: wire.Bytes) -> None:
        """Packets with consecutive numbers."""

    def some(self, index: Array, rows: wire.Bytes) -> None:
        """Packets of any numbers, each once."""

    def native(self) -> tuple[int, int, int] | None:
        """(mode, address, bytes) for pump.c; None if it can't do this."""


class _Rows:
    """A flat array seen as rows of one packet each; the last one may be shorter."""

    def __init__(self, elements: Array, width: int) -> None:
        self.elements = elements
        self.whole = len(elements) // width
        self.rows = elements[: self.whole * width].reshape(self.whole, width)
        self.rest = elements[self.whole * width :]

    def split(self, index: Array, values: Array) -> tuple[Array, Array, Array | None]:
        """(numbers of whole rows, their values, values of the short row if it is among them)."""
        if int(index.max()) < self.whole:
            return index, values, None
        keep = index < self.whole
        return index[keep], values[keep], values[int(index.argmax()), : len(self.rest)]


class Add(_Rows):
    """Added up (or combined) in wide elements."""

    def __init__(self, sums: Array, width: int, codec: Codec, combine: Callable[..., Array] = np.add) -> None:
        super().__init__(sums, width)
        self._codec, self._combine = codec, combine

    def run(self, first: int, rows: wire.Bytes) -> None:
        values = self._codec.widen(wire.payload(rows, self._codec.memory))
        last = first + len(values)
        if last > self.whole:
            self._combine(self.rest, values[-1, : len(self.rest)], out=self.rest)
            values, last = values[:-1], self.whole
        target = self.rows[first:last]
        self._combine(target, values, out=target)

    def some(self, index: Array, rows: wire.Bytes) -> None:
        index, values, short = self.split(index, self._codec.widen(wire.payload(rows, self._codec.memory)))
        if short is not None:
            self._combine(self.rest, short, out=self.rest)
        self.rows[index] = self._combine(self.rows[index], values)

    def native(self) -> tuple[int, int, int] | None:
        mode = {"float32": native.ADD_F32, "bfloat16": native.ADD_BF16}.get(self._codec.name)
        if mode is None or self._combine is not np.add:
            return None
        return mode, self.elements.ctypes.data, self.elements.nbytes


class Put(_Rows):
    """Each packet in its place."""

    def run(self, first: int, rows: wire.Bytes) -> None:
        values = wire.payload(rows, self.elements.dtype)
        last = first + len(values)
        if last > self.whole:
            self.rest[:] = values[-1, : len(self.rest)]
            values, last = values[:-1], self.whole
        self.rows[first:last] = values

    def some(self, index: Array, rows: wire.Bytes) -> None:
        index, values, short = self.split(index, wire.payload(rows, self.elements.dtype))
        if short is not None:
            self.rest[:] = short
        self.rows[index] = values

    def native(self) -> tuple[int, int, int] | None:
        return native.PUT, self.elements.ctypes.data, self.elements.nbytes


class _Nowhere:
    """The sink of a half that is over."""

    def run(self, first: int, rows: wire.Bytes) -> None:
        raise AssertionError(f"{len(rows)} packets from {first} on for a half that is over")

    def some(self, index: Array, rows: wire.Bytes) -> None:
        raise AssertionError(f"{len(rows)} packets {index} for a half that is over")

    def native(self) -> None:
        return None


NOWHERE = _Nowhere()
